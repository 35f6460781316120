"""DescribeAcls, CreateAcls, DeleteAcls: the rules of the authorizer."""

from __future__ import annotations

import asyncio
from itertools import groupby
from typing import TypeVar

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.acls import (
    AclCreation,
    AclCreationResult,
    AclDescription,
    CreateAclsRequest,
    CreateAclsResponse,
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from firnmq.brokers.net.loop_turns import Turns
from firnmq.brokers.security.acl import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleFilter,
    RuleStore,
)
from firnmq.brokers.security.acl.model import checked
from firnmq.errors import AuthorizationOff, FirnError, InvalidArgument, TooManyRules

EnumT = TypeVar("EnumT", ResourceType, PatternType, Operation, Permission)


class AclHandler:
    """Changes wait for the disk, so threads make them."""

    def __init__(self, rules: RuleStore | None, turns: Turns) -> None:
        """`rules`: None if the node has no authorizer."""
        self._rules = rules
        self._turns = turns

    async def describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        code, text, resources = ErrorCode.NONE, None, []
        try:
            found = self._there().select(_filter(request))
            for (kind, name, pattern), rules in groupby(found, key=_resource):
                described = [_described(rule) async for rule in self._turns.over(rules)]
                resources.append(
                    DescribeAclsResource(
                        resource_type=kind,
                        resource_name=name,
                        pattern_type=pattern,
                        acls=described,
                    )
                )
        except FirnError as error:
            code, text = _code_of(error), str(error)
        return DescribeAclsResponse(error_code=code, error_message=text, resources=resources)

    async def create(self, request: CreateAclsRequest) -> CreateAclsResponse:
        """Adds those that are valid."""
        valid: list[Rule] = []
        refusals: list[FirnError | None] = []
        failure: FirnError | None = None
        async for creation in self._turns.over(request.creations):
            try:
                valid.append(_rule(creation))
                refusals.append(None)
            except FirnError as error:
                refusals.append(error)
        try:
            rules = self._there()
            if valid:
                await asyncio.get_running_loop().run_in_executor(None, rules.add, valid)
        except FirnError as error:
            failure = error
        return CreateAclsResponse(
            results=[_created(refusal or failure) async for refusal in self._turns.over(refusals)]
        )

    async def delete(self, request: DeleteAclsRequest) -> DeleteAclsResponse:
        filters: list[RuleFilter] = []
        refusals: list[FirnError | None] = []
        removed: list[list[Rule]] = []
        failure: FirnError | None = None
        async for each in self._turns.over(request.filters):
            try:
                filters.append(_filter(each))
                refusals.append(None)
            except FirnError as error:
                refusals.append(error)
        try:
            rules = self._there()
            if filters:
                loop = asyncio.get_running_loop()
                removed = await loop.run_in_executor(None, rules.remove, filters)
        except FirnError as error:
            failure = error
        results = []
        found = iter(removed)
        for refusal in refusals:
            failed = refusal or failure
            if failed is not None:
                results.append(
                    DeleteAclsFilterResult(
                        error_code=_code_of(failed), error_message=str(failed), matching_acls=[]
                    )
                )
                continue
            matching = [_removed(rule) async for rule in self._turns.over(next(found))]
            results.append(DeleteAclsFilterResult(matching_acls=matching))
        return DeleteAclsResponse(filter_results=results)

    def _there(self) -> RuleStore:
        if self._rules is None:
            raise AuthorizationOff
        return self._rules


def _code_of(error: FirnError) -> ErrorCode:
    if isinstance(error, AuthorizationOff):
        return ErrorCode.SECURITY_DISABLED
    if isinstance(error, InvalidArgument):
        return ErrorCode.INVALID_REQUEST
    if isinstance(error, TooManyRules):
        return ErrorCode.POLICY_VIOLATION
    return code_of(error)


def _created(error: FirnError | None) -> AclCreationResult:
    if error is None:
        return AclCreationResult()
    return AclCreationResult(error_code=_code_of(error), error_message=str(error))


def _rule(creation: AclCreation) -> Rule:
    return checked(
        Rule(
            resource_type=_enum(ResourceType, creation.resource_type),
            pattern=_enum(PatternType, creation.resource_pattern_type),
            name=creation.resource_name,
            principal=creation.principal,
            host=creation.host,
            operation=_enum(Operation, creation.operation),
            permission=_enum(Permission, creation.permission_type),
        )
    )


def _filter(wanted: DescribeAclsRequest | DeleteAclsFilter) -> RuleFilter:
    return RuleFilter(
        resource_type=_enum(ResourceType, wanted.resource_type_filter),
        pattern=_enum(PatternType, wanted.pattern_type_filter),
        name=wanted.resource_name_filter,
        principal=wanted.principal_filter,
        host=wanted.host_filter,
        operation=_enum(Operation, wanted.operation),
        permission=_enum(Permission, wanted.permission_type),
    )


def _enum(kind: type[EnumT], number: int) -> EnumT:
    try:
        return kind(number)
    except ValueError:
        raise InvalidArgument(kind.__name__, f"{number} is not known") from None


def _resource(rule: Rule) -> tuple[ResourceType, str, PatternType]:
    return rule.resource_type, rule.name, rule.pattern


def _described(rule: Rule) -> AclDescription:
    return AclDescription(
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )


def _removed(rule: Rule) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        resource_type=rule.resource_type,
        resource_name=rule.name,
        pattern_type=rule.pattern,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission_type=rule.permission,
    )
