"""Requests about the rules themselves."""

from __future__ import annotations

from firnmq.brokers.kafka.access.asked import Asked, Proceed
from firnmq.brokers.kafka.access.table import ALTER_CLUSTER, DESCRIBE_CLUSTER, TEXTS
from firnmq.brokers.kafka.protocol import ErrorCode, Message
from firnmq.brokers.kafka.protocol.messages import acls
from firnmq.brokers.security.acl import ResourceType

_REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_TEXT = TEXTS[ResourceType.CLUSTER]


async def describe(asked: Asked, request: acls.DescribeAclsRequest, proceed: Proceed) -> Message:
    if asked.may(DESCRIBE_CLUSTER):
        return await proceed(request)
    return acls.DescribeAclsResponse(error_code=_REFUSED, error_message=_TEXT, resources=[])


async def create(asked: Asked, request: acls.CreateAclsRequest, proceed: Proceed) -> Message:
    if asked.may(ALTER_CLUSTER):
        return await proceed(request)
    refused = acls.AclCreationResult(error_code=_REFUSED, error_message=_TEXT)
    return acls.CreateAclsResponse(results=[refused] * len(request.creations))


async def delete(asked: Asked, request: acls.DeleteAclsRequest, proceed: Proceed) -> Message:
    if asked.may(ALTER_CLUSTER):
        return await proceed(request)
    refused = acls.DeleteAclsFilterResult(
        error_code=_REFUSED, error_message=_TEXT, matching_acls=[]
    )
    return acls.DeleteAclsResponse(filter_results=[refused] * len(request.filters))
