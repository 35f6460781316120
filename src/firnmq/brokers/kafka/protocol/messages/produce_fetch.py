"""Produce, Fetch, ListOffsets, OffsetForLeaderEpoch: the calls that move and locate records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.primitives import ZERO_UUID
from firnmq.brokers.kafka.protocol.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    Records,
    String,
    Uuid,
    since,
    tag,
    until,
)

# What both Produce and Fetch say of a leader that has changed.


class LeaderIdAndEpoch(Message):
    leader_id: Int32 = -1
    leader_epoch: Int32 = -1


class NodeEndpoint(Message):
    node_id: Int32
    host: String
    port: Int32
    rack: String | None = None


NO_LEADER = LeaderIdAndEpoch()


# Produce.


class PartitionProduceData(Message):
    index: Int32
    records: Records | None


class TopicProduceData(Message):
    name: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partition_data: Sequence[PartitionProduceData]


class ProduceRequest(Message):
    """Versions 0 to 2 carry older record formats; they are read only to be refused."""

    transactional_id: Annotated[String | None, since(3)] = None
    acks: Int16
    timeout_ms: Int32
    topic_data: Sequence[TopicProduceData]


class BatchIndexAndErrorMessage(Message):
    batch_index: Int32
    batch_index_error_message: String | None = None


class PartitionProduceResponse(Message):
    index: Int32
    error_code: Int16 = 0
    base_offset: Int64
    log_append_time_ms: Annotated[Int64, since(2)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    record_errors: Annotated[Sequence[BatchIndexAndErrorMessage], since(8)] = ()
    error_message: Annotated[String | None, since(8)] = None
    current_leader: Annotated[LeaderIdAndEpoch, since(10), tag(0)] = NO_LEADER


class TopicProduceResponse(Message):
    name: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partition_responses: Sequence[PartitionProduceResponse]


class ProduceResponse(Message):
    responses: Sequence[TopicProduceResponse]
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    node_endpoints: Annotated[Sequence[NodeEndpoint], since(10), tag(0)] = ()


# Fetch.


class FetchPartition(Message):
    partition: Int32
    current_leader_epoch: Annotated[Int32, since(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, since(12)] = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    partition_max_bytes: Int32
    replica_directory_id: Annotated[Uuid, since(17), tag(0)] = ZERO_UUID
    high_watermark: Annotated[Int64, since(18), tag(1)] = 2**63 - 1


class FetchTopic(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partitions: Sequence[FetchPartition]


class ForgottenTopic(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partitions: Sequence[Int32]


class ReplicaState(Message):
    """Of a node that copies; consumers leave it out."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


NO_REPLICA = ReplicaState()


class FetchRequest(Message):
    cluster_id: Annotated[String | None, since(12), tag(0)] = None
    replica_id: Annotated[Int32, until(14)] = -1
    replica_state: Annotated[ReplicaState, since(15), tag(1)] = NO_REPLICA
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Int32 = 0x7FFFFFFF
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, since(7)] = 0
    session_epoch: Annotated[Int32, since(7)] = -1
    topics: Sequence[FetchTopic]
    forgotten_topics_data: Annotated[Sequence[ForgottenTopic], since(7)] = ()
    rack_id: Annotated[String, since(11)] = ""


class EpochEndOffset(Message):
    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(Message):
    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Message):
    producer_id: Int64
    first_offset: Int64


NO_DIVERGING_EPOCH = EpochEndOffset()
NO_SNAPSHOT = SnapshotId()


class PartitionData(Message):
    """Records that are missing are empty, not null: some clients do not expect null."""

    partition_index: Int32
    error_code: Int16 = 0
    high_watermark: Int64
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, since(5)] = -1
    diverging_epoch: Annotated[EpochEndOffset, since(12), tag(0)] = NO_DIVERGING_EPOCH
    current_leader: Annotated[LeaderIdAndEpoch, since(12), tag(1)] = NO_LEADER
    snapshot_id: Annotated[SnapshotId, since(12), tag(2)] = NO_SNAPSHOT
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: Annotated[Int32, since(11)] = -1
    records: Records | None = b""


class FetchableTopicResponse(Message):
    topic: Annotated[String, until(12)] = ""
    topic_id: Annotated[Uuid, since(13)] = ZERO_UUID
    partitions: Sequence[PartitionData]


class FetchResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, since(7)] = 0
    session_id: Annotated[Int32, since(7)] = 0
    responses: Sequence[FetchableTopicResponse]
    node_endpoints: Annotated[Sequence[NodeEndpoint], since(16), tag(0)] = ()


# ListOffsets.


class ListOffsetsPartition(Message):
    partition_index: Int32
    current_leader_epoch: Annotated[Int32, since(4)] = -1
    timestamp: Int64


class ListOffsetsTopic(Message):
    name: String
    partitions: Sequence[ListOffsetsPartition]


class ListOffsetsRequest(Message):
    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, since(2)] = 0
    topics: Sequence[ListOffsetsTopic]
    timeout_ms: Annotated[Int32, since(10)] = 0


class ListOffsetsPartitionResponse(Message):
    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, since(4)] = -1


class ListOffsetsTopicResponse(Message):
    name: String
    partitions: Sequence[ListOffsetsPartitionResponse]


class ListOffsetsResponse(Message):
    throttle_time_ms: Annotated[Int32, since(2)] = 0
    topics: Sequence[ListOffsetsTopicResponse]


# OffsetForLeaderEpoch.


class OffsetForLeaderPartition(Message):
    partition: Int32
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32


class OffsetForLeaderTopic(Message):
    topic: String
    partitions: Sequence[OffsetForLeaderPartition]


class OffsetForLeaderEpochRequest(Message):
    """A replica id of -2 is a consumer that debugs; consumers proper send -1."""

    replica_id: Annotated[Int32, since(3)] = -2
    topics: Sequence[OffsetForLeaderTopic]


class OffsetForLeaderPartitionResult(Message):
    error_code: Int16 = 0
    partition: Int32
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Message):
    topic: String
    partitions: Sequence[OffsetForLeaderPartitionResult]


class OffsetForLeaderEpochResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetForLeaderTopicResult]
