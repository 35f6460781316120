"""The calls of consumer groups whose coordinator assigns the partitions (KIP-848)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.messages.metadata import OPERATIONS_NOT_REQUESTED
from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Message,
    String,
    Uuid,
    since,
)

# ConsumerGroupHeartbeat.


class TopicPartitions(Message):
    topic_id: Uuid
    partitions: Sequence[Int32]


class ConsumerGroupHeartbeatRequest(Message):
    """Null, and -1, stand for what has not changed since the last one."""

    group_id: String
    member_id: String
    member_epoch: Int32
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: Sequence[String] | None = None
    subscribed_topic_regex: Annotated[String | None, since(1)] = None
    server_assignor: String | None = None
    topic_partitions: Sequence[TopicPartitions] | None = None


class HeartbeatAssignment(Message):
    topic_partitions: Sequence[TopicPartitions]


class ConsumerGroupHeartbeatResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: HeartbeatAssignment | None = None


# ConsumerGroupDescribe.


class ConsumerGroupDescribeRequest(Message):
    group_ids: Sequence[String]
    include_authorized_operations: Bool = False


class NamedTopicPartitions(Message):
    topic_id: Uuid
    topic_name: String
    partitions: Sequence[Int32]


class DescribedAssignment(Message):
    topic_partitions: Sequence[NamedTopicPartitions]


class DescribedConsumer(Message):
    member_id: String
    instance_id: String | None = None
    rack_id: String | None = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: Sequence[String]
    subscribed_topic_regex: String | None = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[Int8, since(1)] = -1


class DescribedConsumerGroup(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    group_id: String
    group_state: String
    group_epoch: Int32
    assignment_epoch: Int32
    assignor_name: String
    members: Sequence[DescribedConsumer]
    authorized_operations: Int32 = OPERATIONS_NOT_REQUESTED


class ConsumerGroupDescribeResponse(Message):
    throttle_time_ms: Int32 = 0
    groups: Sequence[DescribedConsumerGroup]
