"""Which APIs this broker speaks, in which versions: the level of Kafka 4.3.

The minimums are lower than what we like to serve, because librdkafka decides which features to use
by looking for exact old versions. Produce is advertised from 0 for the same reason (with a minimum
of 3 it sends uncompressed batches), though versions 0 to 2 are refused when they are used.

The maximums are the highest versions all of whose promises are kept. Below those of Kafka are
AddPartitionsToTxn, of which versions 4 and 5 are for brokers, EndTxn, whose version 5 gives the
producer a new epoch with each transaction, and ListTransactions, whose version 2 has a regular
expression: a client could keep the node busy with one for hours.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final

from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersion, ApiVersionsResponse


class ApiKey(enum.IntEnum):
    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


NEVER: Final = 0x7FFF
"""In place of the first flexible version: there is none."""


@dataclass(frozen=True, slots=True)
class ApiVersions:
    """The versions of an API that we speak, and the first with compact encodings and tags."""

    first: int
    last: int
    flexible_first: int

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last


ADVERTISED: Final[dict[int, ApiVersions]] = {
    ApiKey.PRODUCE: ApiVersions(0, 13, 9),
    ApiKey.FETCH: ApiVersions(4, 18, 12),
    ApiKey.LIST_OFFSETS: ApiVersions(1, 11, 6),
    ApiKey.METADATA: ApiVersions(0, 13, 9),
    ApiKey.OFFSET_COMMIT: ApiVersions(2, 10, 8),
    ApiKey.OFFSET_FETCH: ApiVersions(1, 10, 6),
    ApiKey.FIND_COORDINATOR: ApiVersions(0, 6, 3),
    ApiKey.JOIN_GROUP: ApiVersions(0, 9, 6),
    ApiKey.HEARTBEAT: ApiVersions(0, 4, 4),
    ApiKey.LEAVE_GROUP: ApiVersions(0, 5, 4),
    ApiKey.SYNC_GROUP: ApiVersions(0, 5, 4),
    ApiKey.DESCRIBE_GROUPS: ApiVersions(0, 6, 5),
    ApiKey.LIST_GROUPS: ApiVersions(0, 5, 3),
    ApiKey.SASL_HANDSHAKE: ApiVersions(0, 1, NEVER),
    ApiKey.API_VERSIONS: ApiVersions(0, 4, 3),
    ApiKey.CREATE_TOPICS: ApiVersions(2, 7, 5),
    ApiKey.DELETE_TOPICS: ApiVersions(1, 6, 4),
    ApiKey.DELETE_RECORDS: ApiVersions(0, 2, 2),
    ApiKey.INIT_PRODUCER_ID: ApiVersions(0, 5, 2),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: ApiVersions(2, 4, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: ApiVersions(0, 3, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: ApiVersions(0, 4, 3),
    ApiKey.END_TXN: ApiVersions(0, 4, 3),
    ApiKey.TXN_OFFSET_COMMIT: ApiVersions(0, 5, 3),
    ApiKey.DESCRIBE_ACLS: ApiVersions(1, 3, 2),
    ApiKey.CREATE_ACLS: ApiVersions(1, 3, 2),
    ApiKey.DELETE_ACLS: ApiVersions(1, 3, 2),
    ApiKey.DESCRIBE_CONFIGS: ApiVersions(1, 4, 4),
    ApiKey.ALTER_CONFIGS: ApiVersions(0, 2, 2),
    ApiKey.SASL_AUTHENTICATE: ApiVersions(0, 2, 2),
    ApiKey.CREATE_PARTITIONS: ApiVersions(0, 3, 2),
    ApiKey.DELETE_GROUPS: ApiVersions(0, 2, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ApiVersions(0, 1, 1),
    ApiKey.OFFSET_DELETE: ApiVersions(0, 0, NEVER),
    ApiKey.DESCRIBE_CLUSTER: ApiVersions(0, 2, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: ApiVersions(0, 1, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: ApiVersions(0, 1, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ApiVersions(0, 0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ApiVersions(0, 0, 0),
    ApiKey.DESCRIBE_LOG_DIRS: ApiVersions(1, 5, 2),
    ApiKey.ELECT_LEADERS: ApiVersions(0, 2, 2),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: ApiVersions(0, 1, 0),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: ApiVersions(0, 0, 0),
    ApiKey.DESCRIBE_PRODUCERS: ApiVersions(0, 0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ApiVersions(0, 0, 0),
    ApiKey.LIST_TRANSACTIONS: ApiVersions(0, 1, 0),
    ApiKey.LIST_CONFIG_RESOURCES: ApiVersions(0, 1, 0),
    ApiKey.DESCRIBE_QUORUM: ApiVersions(0, 1, 0),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: ApiVersions(0, 0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: ApiVersions(0, 1, 0),
    ApiKey.CONSUMER_GROUP_DESCRIBE: ApiVersions(0, 1, 0),
}

PRODUCE_VERSION_SERVED_MIN: Final = 3
"""Below it, records come in formats older than the RecordBatch we store."""


def is_supported(api_key: int, version: int) -> bool:
    versions = ADVERTISED.get(api_key)
    return versions is not None and version in versions


def is_flexible(api_key: int, version: int) -> bool:
    """Whether the version has compact encodings; also right for versions we do not speak."""
    versions = ADVERTISED.get(api_key)
    return versions is not None and version >= versions.flexible_first


def api_versions_response(
    error_code: ErrorCode = ErrorCode.NONE, *, throttle_time_ms: int = 0
) -> ApiVersionsResponse:
    """The answer to ApiVersions. With UNSUPPORTED_VERSION it lists the versions just the same,
    so that the client can ask again in one that we speak."""
    return ApiVersionsResponse(
        error_code=error_code, api_keys=_API_KEYS, throttle_time_ms=throttle_time_ms
    )


_API_KEYS: Final = tuple(
    ApiVersion(api_key=int(key), min_version=versions.first, max_version=versions.last)
    for key, versions in ADVERTISED.items()
)
