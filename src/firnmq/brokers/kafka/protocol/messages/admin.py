"""Topics and configurations: create, delete, grow, trim, describe, alter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from firnmq.brokers.kafka.protocol.primitives import ZERO_UUID
from firnmq.brokers.kafka.protocol.schema import (
    Bool,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Uuid,
    null_since,
    since,
    tag,
    until,
)

# CreateTopics.


class CreatableReplicaAssignment(Message):
    partition_index: Int32
    broker_ids: Sequence[Int32]


class CreatableTopicConfig(Message):
    name: String
    value: String | None = None


class CreatableTopic(Message):
    name: String
    num_partitions: Int32
    replication_factor: Int16
    assignments: Sequence[CreatableReplicaAssignment] = ()
    configs: Sequence[CreatableTopicConfig] = ()


class CreateTopicsRequest(Message):
    topics: Sequence[CreatableTopic]
    timeout_ms: Int32 = 60_000
    validate_only: Bool = False


class CreatableTopicConfigs(Message):
    name: String
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False


class CreatableTopicResult(Message):
    """The protocol allows null configs, but the Java client fails on them; so they are empty."""

    name: String
    topic_id: Annotated[Uuid, since(7)] = ZERO_UUID
    error_code: Int16 = 0
    error_message: String | None = None
    topic_config_error_code: Annotated[Int16, since(5), tag(0)] = 0
    num_partitions: Annotated[Int32, since(5)] = -1
    replication_factor: Annotated[Int16, since(5)] = -1
    configs: Annotated[Sequence[CreatableTopicConfigs] | None, since(5)] = ()


class CreateTopicsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: Sequence[CreatableTopicResult]


# DeleteTopics: by name up to version 5, by name or id from version 6 on.


class DeleteTopicState(Message):
    name: String | None = None
    topic_id: Uuid = ZERO_UUID


class DeleteTopicsRequest(Message):
    topics: Annotated[Sequence[DeleteTopicState], since(6)] = ()
    topic_names: Annotated[Sequence[String], until(5)] = ()
    timeout_ms: Int32


class DeletableTopicResult(Message):
    name: Annotated[String | None, null_since(6)]
    topic_id: Annotated[Uuid, since(6)] = ZERO_UUID
    error_code: Int16 = 0
    error_message: Annotated[String | None, since(5)] = None


class DeleteTopicsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: Sequence[DeletableTopicResult]


# DeleteRecords.


class DeleteRecordsPartition(Message):
    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Message):
    name: String
    partitions: Sequence[DeleteRecordsPartition]


class DeleteRecordsRequest(Message):
    topics: Sequence[DeleteRecordsTopic]
    timeout_ms: Int32


class DeleteRecordsPartitionResult(Message):
    partition_index: Int32
    low_watermark: Int64
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message):
    name: String
    partitions: Sequence[DeleteRecordsPartitionResult]


class DeleteRecordsResponse(Message):
    throttle_time_ms: Int32 = 0
    topics: Sequence[DeleteRecordsTopicResult]


# CreatePartitions.


class CreatePartitionsAssignment(Message):
    broker_ids: Sequence[Int32]


class CreatePartitionsTopic(Message):
    name: String
    count: Int32
    assignments: Sequence[CreatePartitionsAssignment] | None = None


class CreatePartitionsRequest(Message):
    topics: Sequence[CreatePartitionsTopic]
    timeout_ms: Int32
    validate_only: Bool = False


class CreatePartitionsTopicResult(Message):
    name: String
    error_code: Int16 = 0
    error_message: String | None = None


class CreatePartitionsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: Sequence[CreatePartitionsTopicResult]


# DescribeConfigs.


class DescribeConfigsResource(Message):
    """Null keys ask for all of them."""

    resource_type: Int8
    resource_name: String
    configuration_keys: Sequence[String] | None = None


class DescribeConfigsRequest(Message):
    resources: Sequence[DescribeConfigsResource]
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, since(3)] = False


class DescribeConfigsSynonym(Message):
    name: String
    value: String | None = None
    source: Int8


class DescribeConfigsResourceResult(Message):
    name: String
    value: String | None = None
    read_only: Bool = False
    config_source: Int8 = -1
    is_sensitive: Bool = False
    synonyms: Sequence[DescribeConfigsSynonym] = ()
    config_type: Annotated[Int8, since(3)] = 0
    documentation: Annotated[String | None, since(3)] = None


class DescribeConfigsResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    configs: Sequence[DescribeConfigsResourceResult]


class DescribeConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: Sequence[DescribeConfigsResult]


# AlterConfigs replaces all settings of a resource, IncrementalAlterConfigs changes some.


class AlterableConfig(Message):
    name: String
    value: String | None = None


class AlterConfigsResource(Message):
    resource_type: Int8
    resource_name: String
    configs: Sequence[AlterableConfig]


class AlterConfigsRequest(Message):
    resources: Sequence[AlterConfigsResource]
    validate_only: Bool = False


class AlterConfigsResourceResponse(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8
    resource_name: String


class AlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse]


class IncrementalAlterableConfig(Message):
    """The operation: 0 sets, 1 deletes, 2 appends to a list, 3 takes away from a list."""

    name: String
    config_operation: Int8
    value: String | None = None


class IncrementalAlterConfigsResource(Message):
    resource_type: Int8
    resource_name: String
    configs: Sequence[IncrementalAlterableConfig]


class IncrementalAlterConfigsRequest(Message):
    resources: Sequence[IncrementalAlterConfigsResource]
    validate_only: Bool = False


class IncrementalAlterConfigsResponse(Message):
    throttle_time_ms: Int32 = 0
    responses: Sequence[AlterConfigsResourceResponse]
