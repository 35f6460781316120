"""What administrators' tools ask for: directories, producers, transactions, leaders, copies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    since,
)

# DescribeLogDirs.


class DescribableLogDirTopic(Message):
    topic: String
    partitions: Sequence[Int32]


class DescribeLogDirsRequest(Message):
    """Null topics ask for all of them."""

    topics: Sequence[DescribableLogDirTopic] | None = None


class DescribeLogDirsPartition(Message):
    partition_index: Int32
    partition_size: Int64
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message):
    name: String
    partitions: Sequence[DescribeLogDirsPartition]


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: String
    topics: Sequence[DescribeLogDirsTopic]
    total_bytes: Annotated[Int64, since(4)] = -1
    usable_bytes: Annotated[Int64, since(4)] = -1
    is_cordoned: Annotated[Bool, since(5)] = False


class DescribeLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(3)] = 0
    results: Sequence[DescribeLogDirsResult]


# ListTransactions.


class ListTransactionsRequest(Message):
    state_filters: Sequence[String] = ()
    producer_id_filters: Sequence[Int64] = ()
    duration_filter: Annotated[Int64, since(1)] = -1
    transactional_id_pattern: Annotated[String | None, since(2)] = None


class ListedTransactionState(Message):
    transactional_id: String
    producer_id: Int64
    transaction_state: String


class ListTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    unknown_state_filters: Sequence[String] = ()
    transaction_states: Sequence[ListedTransactionState]


# DescribeTransactions.


class DescribeTransactionsRequest(Message):
    transactional_ids: Sequence[String]


class TransactionTopicData(Message):
    topic: String
    partitions: Sequence[Int32]


class DescribedTransactionState(Message):
    error_code: Int16 = 0
    transactional_id: String
    transaction_state: String = ""
    transaction_timeout_ms: Int32 = 0
    transaction_start_time_ms: Int64 = -1
    producer_id: Int64 = -1
    producer_epoch: Int16 = -1
    topics: Sequence[TransactionTopicData] = ()


class DescribeTransactionsResponse(Message):
    throttle_time_ms: Int32 = 0
    transaction_states: Sequence[DescribedTransactionState]


# DescribeProducers.


class ProducersTopicRequest(Message):
    name: String
    partition_indexes: Sequence[Int32]


class DescribeProducersRequest(Message):
    topics: Sequence[ProducersTopicRequest]


class ProducerState(Message):
    producer_id: Int64
    producer_epoch: Int32
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32
    current_txn_start_offset: Int64 = -1


class ProducersPartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None
    active_producers: Sequence[ProducerState]


class ProducersTopicResponse(Message):
    name: String
    partitions: Sequence[ProducersPartitionResponse]


class DescribeProducersResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: Sequence[ProducersTopicResponse]


# ListConfigResources: of client metrics alone in version 0.


class ListConfigResourcesRequest(Message):
    resource_types: Annotated[Sequence[Int8], since(1)] = ()


class ConfigResource(Message):
    resource_name: String
    resource_type: Annotated[Int8, since(1)] = 16


class ListConfigResourcesResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: Sequence[ConfigResource]


# ElectLeaders.


class TopicPartitions(Message):
    topic: String
    partitions: Sequence[Int32]


class ElectLeadersRequest(Message):
    """Null partitions ask for all of them."""

    election_type: Annotated[Int8, since(1)] = 0
    topic_partitions: Sequence[TopicPartitions] | None = None
    timeout_ms: Int32 = 60_000


class ElectionPartitionResult(Message):
    partition_id: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class ReplicaElectionResult(Message):
    topic: String
    partition_result: Sequence[ElectionPartitionResult]


class ElectLeadersResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(1)] = 0
    replica_election_results: Sequence[ReplicaElectionResult]


# AlterPartitionReassignments.


class ReassignablePartition(Message):
    """Null replicas end a reassignment that is under way."""

    partition_index: Int32
    replicas: Sequence[Int32] | None = None


class ReassignableTopic(Message):
    name: String
    partitions: Sequence[ReassignablePartition]


class AlterPartitionReassignmentsRequest(Message):
    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    topics: Sequence[ReassignableTopic]


class ReassignablePartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class ReassignableTopicResponse(Message):
    name: String
    partitions: Sequence[ReassignablePartitionResponse]


class AlterPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, since(1)] = True
    error_code: Int16 = 0
    error_message: String | None = None
    responses: Sequence[ReassignableTopicResponse]


# ListPartitionReassignments.


class ListPartitionReassignmentsTopics(Message):
    name: String
    partition_indexes: Sequence[Int32]


class ListPartitionReassignmentsRequest(Message):
    """Null topics ask for all of them."""

    timeout_ms: Int32 = 60_000
    topics: Sequence[ListPartitionReassignmentsTopics] | None = None


class OngoingPartitionReassignment(Message):
    partition_index: Int32
    replicas: Sequence[Int32]
    adding_replicas: Sequence[Int32]
    removing_replicas: Sequence[Int32]


class OngoingTopicReassignment(Message):
    name: String
    partitions: Sequence[OngoingPartitionReassignment]


class ListPartitionReassignmentsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    topics: Sequence[OngoingTopicReassignment]
