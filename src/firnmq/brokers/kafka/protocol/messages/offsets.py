"""The offsets a group commits: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.primitives import ZERO_UUID
from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    between,
    null_since,
    since,
    until,
)

# OffsetCommit.


class OffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(6)] = -1
    committed_metadata: String | None = None


class OffsetCommitRequestTopic(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partitions: Sequence[OffsetCommitRequestPartition]


class OffsetCommitRequest(Message):
    group_id: String
    generation_id: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, since(7)] = None
    retention_time_ms: Annotated[Int64, between(2, 4)] = -1
    topics: Sequence[OffsetCommitRequestTopic]


class OffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partitions: Sequence[OffsetCommitResponsePartition]


class OffsetCommitResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: Sequence[OffsetCommitResponseTopic]


# OffsetFetch: one group up to version 7, several from version 8 on.


class OffsetFetchRequestTopic(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partition_indexes: Sequence[Int32]


class OffsetFetchRequestGroup(Message):
    """Null topics ask for everything the group has committed."""

    group_id: String
    member_id: Annotated[String | None, since(9)] = None
    member_epoch: Annotated[Int32, since(9)] = -1
    topics: Sequence[OffsetFetchRequestTopic] | None


class OffsetFetchRequest(Message):
    group_id: Annotated[String, until(7)] = ""
    topics: Annotated[Sequence[OffsetFetchRequestTopic] | None, until(7), null_since(2)] = ()
    groups: Annotated[Sequence[OffsetFetchRequestGroup], since(8)] = ()
    require_stable: Annotated[Bool, since(7)] = False


class OffsetFetchResponsePartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(5)] = -1
    metadata: String | None = None
    error_code: Int16 = 0


class OffsetFetchResponseTopic(Message):
    name: Annotated[String, until(9)] = ""
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    partitions: Sequence[OffsetFetchResponsePartition]


class OffsetFetchResponseGroup(Message):
    group_id: String
    topics: Sequence[OffsetFetchResponseTopic]
    error_code: Int16 = 0


class OffsetFetchResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    topics: Annotated[Sequence[OffsetFetchResponseTopic], until(7)] = ()
    error_code: Annotated[Int16, between(2, 7)] = 0
    groups: Annotated[Sequence[OffsetFetchResponseGroup], since(8)] = ()


# OffsetDelete.


class OffsetDeleteRequestPartition(Message):
    partition_index: Int32


class OffsetDeleteRequestTopic(Message):
    name: String
    partitions: Sequence[OffsetDeleteRequestPartition]


class OffsetDeleteRequest(Message):
    group_id: String
    topics: Sequence[OffsetDeleteRequestTopic]


class OffsetDeleteResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message):
    name: String
    partitions: Sequence[OffsetDeleteResponsePartition]


class OffsetDeleteResponse(Message):
    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: Sequence[OffsetDeleteResponseTopic]
