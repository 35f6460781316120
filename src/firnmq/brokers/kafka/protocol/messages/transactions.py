"""Producer ids and transactions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    since,
)

# InitProducerId.


class InitProducerIdRequest(Message):
    transactional_id: String | None = None
    transaction_timeout_ms: Int32
    producer_id: Annotated[Int64, since(3)] = -1
    producer_epoch: Annotated[Int16, since(3)] = -1


class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16


# AddPartitionsToTxn.


class AddPartitionsToTxnTopic(Message):
    name: String
    partitions: Sequence[Int32]


class AddPartitionsToTxnRequest(Message):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    topics: Sequence[AddPartitionsToTxnTopic]


class AddPartitionsToTxnPartitionResult(Message):
    partition_index: Int32
    error_code: Int16 = 0


class AddPartitionsToTxnTopicResult(Message):
    name: String
    results: Sequence[AddPartitionsToTxnPartitionResult]


class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    results: Sequence[AddPartitionsToTxnTopicResult]


# AddOffsetsToTxn.


class AddOffsetsToTxnRequest(Message):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    group_id: String


class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


# EndTxn.


class EndTxnRequest(Message):
    transactional_id: String
    producer_id: Int64
    producer_epoch: Int16
    committed: Bool


class EndTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0


# TxnOffsetCommit.


class TxnOffsetCommitRequestPartition(Message):
    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, since(2)] = -1
    committed_metadata: String | None = None


class TxnOffsetCommitRequestTopic(Message):
    name: String
    partitions: Sequence[TxnOffsetCommitRequestPartition]


class TxnOffsetCommitRequest(Message):
    transactional_id: String
    group_id: String
    producer_id: Int64
    producer_epoch: Int16
    generation_id: Annotated[Int32, since(3)] = -1
    member_id: Annotated[String, since(3)] = ""
    group_instance_id: Annotated[String | None, since(3)] = None
    topics: Sequence[TxnOffsetCommitRequestTopic]


class TxnOffsetCommitResponsePartition(Message):
    partition_index: Int32
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Message):
    name: String
    partitions: Sequence[TxnOffsetCommitResponsePartition]


class TxnOffsetCommitResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: Sequence[TxnOffsetCommitResponseTopic]
