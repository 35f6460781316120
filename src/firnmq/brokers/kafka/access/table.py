"""What each API needs: the table of Kafka's documentation, as data.

An API may be begun by every client unless it is here with operations. Which of several operations
an API needs, and when, is said beside it; the modules beside this one do what it says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.security.acl import Operation, ResourceType

_TOPIC, _GROUP, _CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
_TRANSACTION = ResourceType.TRANSACTIONAL_ID


@dataclass(frozen=True, slots=True)
class Need:
    """An operation on a type of resource."""

    operation: Operation
    kind: ResourceType


CODES: Final[dict[ResourceType, ErrorCode]] = {
    _TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    _GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    _CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    _TRANSACTION: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
"""What a refused client is told, by the type of resource."""

TEXTS: Final[dict[ResourceType, str]] = {
    _TOPIC: "Topic authorization failed.",
    _GROUP: "Group authorization failed.",
    _CLUSTER: "Cluster authorization failed.",
    _TRANSACTION: "Transactional id authorization failed.",
}

READ_TOPIC = Need(Operation.READ, _TOPIC)
WRITE_TOPIC = Need(Operation.WRITE, _TOPIC)
CREATE_TOPIC = Need(Operation.CREATE, _TOPIC)
DELETE_TOPIC = Need(Operation.DELETE, _TOPIC)
ALTER_TOPIC = Need(Operation.ALTER, _TOPIC)
DESCRIBE_TOPIC = Need(Operation.DESCRIBE, _TOPIC)
DESCRIBE_TOPIC_CONFIGS = Need(Operation.DESCRIBE_CONFIGS, _TOPIC)
ALTER_TOPIC_CONFIGS = Need(Operation.ALTER_CONFIGS, _TOPIC)
READ_GROUP = Need(Operation.READ, _GROUP)
DELETE_GROUP = Need(Operation.DELETE, _GROUP)
DESCRIBE_GROUP = Need(Operation.DESCRIBE, _GROUP)
DESCRIBE_GROUP_CONFIGS = Need(Operation.DESCRIBE_CONFIGS, _GROUP)
ALTER_GROUP_CONFIGS = Need(Operation.ALTER_CONFIGS, _GROUP)
WRITE_TRANSACTION = Need(Operation.WRITE, _TRANSACTION)
DESCRIBE_TRANSACTION = Need(Operation.DESCRIBE, _TRANSACTION)
CREATE_CLUSTER = Need(Operation.CREATE, _CLUSTER)
ALTER_CLUSTER = Need(Operation.ALTER, _CLUSTER)
DESCRIBE_CLUSTER = Need(Operation.DESCRIBE, _CLUSTER)
CLUSTER_ACTION = Need(Operation.CLUSTER_ACTION, _CLUSTER)
DESCRIBE_CLUSTER_CONFIGS = Need(Operation.DESCRIBE_CONFIGS, _CLUSTER)
ALTER_CLUSTER_CONFIGS = Need(Operation.ALTER_CONFIGS, _CLUSTER)
IDEMPOTENT_WRITE = Need(Operation.IDEMPOTENT_WRITE, _CLUSTER)

TABLE: Final[dict[ApiKey, tuple[Need, ...]]] = {
    # The transactional id only with transactional batches.
    ApiKey.PRODUCE: (WRITE_TOPIC, WRITE_TRANSACTION),
    # A replica needs the cluster's operation instead of the topics'.
    ApiKey.FETCH: (READ_TOPIC, CLUSTER_ACTION),
    ApiKey.LIST_OFFSETS: (DESCRIBE_TOPIC,),
    # A topic that is created because it is named needs one of the two operations to create it.
    ApiKey.METADATA: (DESCRIBE_TOPIC, CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_CLUSTER),
    ApiKey.OFFSET_COMMIT: (READ_GROUP, READ_TOPIC),
    ApiKey.OFFSET_FETCH: (DESCRIBE_GROUP, DESCRIBE_TOPIC),
    # By the type of the key.
    ApiKey.FIND_COORDINATOR: (DESCRIBE_GROUP, DESCRIBE_TRANSACTION),
    ApiKey.JOIN_GROUP: (READ_GROUP,),
    ApiKey.HEARTBEAT: (READ_GROUP,),
    ApiKey.LEAVE_GROUP: (READ_GROUP,),
    ApiKey.SYNC_GROUP: (READ_GROUP,),
    ApiKey.DESCRIBE_GROUPS: (DESCRIBE_GROUP,),
    # With the cluster's operation all groups are listed, else those that can be described.
    ApiKey.LIST_GROUPS: (DESCRIBE_CLUSTER, DESCRIBE_GROUP),
    ApiKey.SASL_HANDSHAKE: (),
    ApiKey.API_VERSIONS: (),
    # One of the two to create; the options of a new topic are shown only with the third.
    ApiKey.CREATE_TOPICS: (CREATE_CLUSTER, CREATE_TOPIC, DESCRIBE_TOPIC_CONFIGS),
    # The name of a topic that was given by its id is shown only with the second.
    ApiKey.DELETE_TOPICS: (DELETE_TOPIC, DESCRIBE_TOPIC),
    ApiKey.DELETE_RECORDS: (DELETE_TOPIC,),
    # With a transactional id that id; else the cluster's operation, or Write on any topic.
    ApiKey.INIT_PRODUCER_ID: (WRITE_TRANSACTION, IDEMPOTENT_WRITE, WRITE_TOPIC),
    # One of the two.
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (CLUSTER_ACTION, DESCRIBE_TOPIC),
    ApiKey.ADD_PARTITIONS_TO_TXN: (WRITE_TRANSACTION, WRITE_TOPIC),
    ApiKey.ADD_OFFSETS_TO_TXN: (WRITE_TRANSACTION, READ_GROUP),
    ApiKey.END_TXN: (WRITE_TRANSACTION,),
    ApiKey.TXN_OFFSET_COMMIT: (WRITE_TRANSACTION, READ_GROUP, READ_TOPIC),
    ApiKey.DESCRIBE_ACLS: (DESCRIBE_CLUSTER,),
    ApiKey.CREATE_ACLS: (ALTER_CLUSTER,),
    ApiKey.DELETE_ACLS: (ALTER_CLUSTER,),
    # By the type of the resource.
    ApiKey.DESCRIBE_CONFIGS: (
        *(DESCRIBE_TOPIC_CONFIGS, DESCRIBE_CLUSTER_CONFIGS, DESCRIBE_GROUP_CONFIGS),
    ),
    ApiKey.ALTER_CONFIGS: (ALTER_TOPIC_CONFIGS, ALTER_CLUSTER_CONFIGS, ALTER_GROUP_CONFIGS),
    ApiKey.SASL_AUTHENTICATE: (),
    ApiKey.CREATE_PARTITIONS: (ALTER_TOPIC,),
    ApiKey.DELETE_GROUPS: (DELETE_GROUP,),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        *(ALTER_TOPIC_CONFIGS, ALTER_CLUSTER_CONFIGS, ALTER_GROUP_CONFIGS),
    ),
    ApiKey.OFFSET_DELETE: (DELETE_GROUP, READ_TOPIC),
    # Only to be told what the client may do.
    ApiKey.DESCRIBE_CLUSTER: (DESCRIBE_CLUSTER,),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (DESCRIBE_CLUSTER_CONFIGS,),
    ApiKey.ALTER_CLIENT_QUOTAS: (ALTER_CLUSTER_CONFIGS,),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (DESCRIBE_CLUSTER,),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (ALTER_CLUSTER,),
    ApiKey.DESCRIBE_LOG_DIRS: (DESCRIBE_CLUSTER,),
    ApiKey.ELECT_LEADERS: (ALTER_CLUSTER,),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (ALTER_CLUSTER,),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (DESCRIBE_CLUSTER,),
    ApiKey.DESCRIBE_PRODUCERS: (READ_TOPIC,),
    # The topics of a transaction are shown only with the second.
    ApiKey.DESCRIBE_TRANSACTIONS: (DESCRIBE_TRANSACTION, DESCRIBE_TOPIC),
    # Those that can be described are listed.
    ApiKey.LIST_TRANSACTIONS: (DESCRIBE_TRANSACTION,),
    ApiKey.LIST_CONFIG_RESOURCES: (DESCRIBE_CLUSTER_CONFIGS,),
    ApiKey.DESCRIBE_QUORUM: (DESCRIBE_CLUSTER,),
    # Of all topics those are shown that can be described.
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (DESCRIBE_TOPIC,),
    # A regular expression finds the topics that can be described; for names each needs the second.
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (READ_GROUP, DESCRIBE_TOPIC),
    # Of a group only if its members' topics can be described too.
    ApiKey.CONSUMER_GROUP_DESCRIBE: (DESCRIBE_GROUP, DESCRIBE_TOPIC),
}
