"""Metadata, DescribeCluster, FindCoordinator, ApiVersions: who is where and speaks what."""

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
    between,
    null_since,
    since,
    tag,
    until,
)

OPERATIONS_NOT_REQUESTED = -(2**31)
"""In place of a bit set of authorized operations: the client did not ask for it."""


# Metadata.


class MetadataRequestTopic(Message):
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    name: Annotated[String | None, null_since(10)]


class MetadataRequest(Message):
    """Without topics: version 0 means all of them by an empty array, later ones by null."""

    topics: Annotated[Sequence[MetadataRequestTopic] | None, null_since(1)]
    allow_auto_topic_creation: Annotated[Bool, since(4)] = True
    include_cluster_authorized_operations: Annotated[Bool, between(8, 10)] = False
    include_topic_authorized_operations: Annotated[Bool, since(8)] = False


class MetadataResponseBroker(Message):
    node_id: Int32
    host: String
    port: Int32
    rack: Annotated[String | None, since(1)] = None


class MetadataResponsePartition(Message):
    error_code: Int16 = 0
    partition_index: Int32
    leader_id: Int32
    leader_epoch: Annotated[Int32, since(7)] = -1
    replica_nodes: Sequence[Int32]
    isr_nodes: Sequence[Int32]
    offline_replicas: Annotated[Sequence[Int32], since(5)] = ()


class MetadataResponseTopic(Message):
    error_code: Int16 = 0
    name: Annotated[String | None, null_since(12)]
    topic_id: Annotated[Uuid, since(10)] = ZERO_UUID
    is_internal: Annotated[Bool, since(1)] = False
    partitions: Sequence[MetadataResponsePartition]
    topic_authorized_operations: Annotated[Int32, since(8)] = OPERATIONS_NOT_REQUESTED


class MetadataResponse(Message):
    throttle_time_ms: Annotated[Int32, since(3)] = 0
    brokers: Sequence[MetadataResponseBroker]
    cluster_id: Annotated[String | None, since(2)] = None
    controller_id: Annotated[Int32, since(1)] = -1
    topics: Sequence[MetadataResponseTopic]
    cluster_authorized_operations: Annotated[Int32, between(8, 10)] = OPERATIONS_NOT_REQUESTED
    error_code: Annotated[Int16, since(13)] = 0


# DescribeCluster.


class DescribeClusterRequest(Message):
    include_cluster_authorized_operations: Bool = False
    endpoint_type: Annotated[Int8, since(1)] = 1
    include_fenced_brokers: Annotated[Bool, since(2)] = False


class DescribeClusterBroker(Message):
    broker_id: Int32
    host: String
    port: Int32
    rack: String | None = None
    is_fenced: Annotated[Bool, since(2)] = False


class DescribeClusterResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    endpoint_type: Annotated[Int8, since(1)] = 1
    cluster_id: String
    controller_id: Int32 = -1
    brokers: Sequence[DescribeClusterBroker]
    cluster_authorized_operations: Int32 = OPERATIONS_NOT_REQUESTED


# FindCoordinator: one key up to version 3, several from version 4 on.


class FindCoordinatorRequest(Message):
    """A key type of 0 is a group, 1 a transactional id."""

    key: Annotated[String, until(3)] = ""
    key_type: Annotated[Int8, since(1)] = 0
    coordinator_keys: Annotated[Sequence[String], since(4)] = ()


class Coordinator(Message):
    key: String
    node_id: Int32
    host: String
    port: Int32
    error_code: Int16 = 0
    error_message: String | None = None


class FindCoordinatorResponse(Message):
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    error_code: Annotated[Int16, until(3)] = 0
    error_message: Annotated[String | None, between(1, 3)] = None
    node_id: Annotated[Int32, until(3)] = -1
    host: Annotated[String, until(3)] = ""
    port: Annotated[Int32, until(3)] = -1
    coordinators: Annotated[Sequence[Coordinator], since(4)] = ()


# ApiVersions.


class ApiVersionsRequest(Message):
    client_software_name: Annotated[String, since(3)] = ""
    client_software_version: Annotated[String, since(3)] = ""


class ApiVersion(Message):
    api_key: Int16
    min_version: Int16
    max_version: Int16


class SupportedFeatureKey(Message):
    name: String
    min_version: Int16
    max_version: Int16


class FinalizedFeatureKey(Message):
    name: String
    max_version_level: Int16
    min_version_level: Int16


class ApiVersionsResponse(Message):
    error_code: Int16 = 0
    api_keys: Sequence[ApiVersion]
    throttle_time_ms: Annotated[Int32, since(1)] = 0
    supported_features: Annotated[Sequence[SupportedFeatureKey], since(3), tag(0)] = ()
    finalized_features_epoch: Annotated[Int64, since(3), tag(1)] = -1
    finalized_features: Annotated[Sequence[FinalizedFeatureKey], since(3), tag(2)] = ()
