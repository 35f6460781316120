"""DescribeTopicPartitions: topics with their partitions, page by page; DescribeQuorum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.messages.metadata import OPERATIONS_NOT_REQUESTED
from firnmq.brokers.kafka.protocol.primitives import ZERO_UUID
from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    since,
)

# DescribeTopicPartitions.


class PagedTopic(Message):
    name: String


class PageCursor(Message):
    """Where the next page begins."""

    topic_name: String
    partition_index: Int32


class DescribeTopicPartitionsRequest(Message):
    """Without topics it asks for all."""

    topics: Sequence[PagedTopic]
    response_partition_limit: Int32 = 2_000
    cursor: PageCursor | None = None


class PagedPartition(Message):
    """The protocol allows null for the eligible leaders, but the Java client fails on it."""

    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Int32 = -1
    replica_nodes: Sequence[Int32]
    isr_nodes: Sequence[Int32]
    eligible_leader_replicas: Sequence[Int32] | None = ()
    last_known_elr: Sequence[Int32] | None = ()
    offline_replicas: Sequence[Int32] = ()


class PagedTopicPartitions(Message):
    error_code: Int16 = 0
    name: String | None
    topic_id: Uuid = ZERO_UUID
    is_internal: Bool = False
    partitions: Sequence[PagedPartition]
    topic_authorized_operations: Int32 = OPERATIONS_NOT_REQUESTED


class DescribeTopicPartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: Sequence[PagedTopicPartitions]
    next_cursor: PageCursor | None = None


# DescribeQuorum.


class QuorumPartition(Message):
    partition_index: Int32


class QuorumTopic(Message):
    topic_name: String
    partitions: Sequence[QuorumPartition]


class DescribeQuorumRequest(Message):
    topics: Sequence[QuorumTopic]


class QuorumReplica(Message):
    replica_id: Int32
    log_end_offset: Int64
    last_fetch_timestamp: Annotated[Int64, since(1)] = -1
    last_caught_up_timestamp: Annotated[Int64, since(1)] = -1


class DescribedQuorumPartition(Message):
    partition_index: Int32
    error_code: Int16 = 0
    leader_id: Int32
    leader_epoch: Int32
    high_watermark: Int64
    current_voters: Sequence[QuorumReplica]
    observers: Sequence[QuorumReplica]


class DescribedQuorumTopic(Message):
    topic_name: String
    partitions: Sequence[DescribedQuorumPartition]


class DescribeQuorumResponse(Message):
    error_code: Int16 = 0
    topics: Sequence[DescribedQuorumTopic]
