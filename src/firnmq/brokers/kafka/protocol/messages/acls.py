"""Rules about who may do what: describe, create, delete. Numbers are those of Kafka's enums."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.brokers.kafka.protocol.schema import Int8, Int16, Int32, Message, String

# DescribeAcls.


class DescribeAclsRequest(Message):
    resource_type_filter: Int8
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8
    permission_type: Int8


class AclDescription(Message):
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DescribeAclsResource(Message):
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    acls: Sequence[AclDescription]


class DescribeAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    resources: Sequence[DescribeAclsResource]


# CreateAcls.


class AclCreation(Message):
    resource_type: Int8
    resource_name: String
    resource_pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class CreateAclsRequest(Message):
    creations: Sequence[AclCreation]


class AclCreationResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None


class CreateAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    results: Sequence[AclCreationResult]


# DeleteAcls.


class DeleteAclsFilter(Message):
    resource_type_filter: Int8
    resource_name_filter: String | None = None
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = None
    host_filter: String | None = None
    operation: Int8
    permission_type: Int8


class DeleteAclsRequest(Message):
    filters: Sequence[DeleteAclsFilter]


class DeleteAclsMatchingAcl(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    resource_type: Int8
    resource_name: String
    pattern_type: Int8 = 3
    principal: String
    host: String
    operation: Int8
    permission_type: Int8


class DeleteAclsFilterResult(Message):
    error_code: Int16 = 0
    error_message: String | None = None
    matching_acls: Sequence[DeleteAclsMatchingAcl]


class DeleteAclsResponse(Message):
    throttle_time_ms: Int32 = 0
    filter_results: Sequence[DeleteAclsFilterResult]
