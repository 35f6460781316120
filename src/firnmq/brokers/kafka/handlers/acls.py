"""DescribeAcls, CreateAcls, DeleteAcls: the rules of the authorizer."""

from __future__ import annotations

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
from firnmq.disk import call_blocking
from firnmq.errors import AuthorizationOff, FirnError, InvalidArgument, TooManyRules

EnumT = TypeVar("EnumT", ResourceType, PatternType, Operation, Permission)


class AclHandler:
    """Threads change the rules, which waits for the disk, and look through them."""

    def __init__(self, rules: RuleStore | None, turns: Turns) -> None:
        """`rules`: None if the node has no authorizer."""
        self._rules = rules
        self._turns = turns

    async def describe(self, request: DescribeAclsRequest) -> DescribeAclsResponse:
        try:
            found = await call_blocking(None, self._there().select, _filter(request))
        except FirnError as error:
            return DescribeAclsResponse(
                error_code=_code_of(error), error_message=str(error), resources=[]
            )
        by_resource: dict[tuple[ResourceType, str, PatternType], list[AclDescription]] = {}
        async for rule in self._turns.over(found):
            by_resource.setdefault(_resource(rule), []).append(_described(rule))
        return DescribeAclsResponse(
            resources=[
                DescribeAclsResource(
                    resource_type=kind, resource_name=name, pattern_type=pattern, acls=described
                )
                async for (kind, name, pattern), described in self._turns.over(by_resource.items())
            ]
        )

    async def create(self, request: CreateAclsRequest) -> CreateAclsResponse:
        """Adds those that are valid."""
        valid: list[Rule] = []
        results: list[AclCreationResult | None] = []
        async for creation in self._turns.over(request.creations):
            # No error is kept: to free thousands with their tracebacks takes long.
            try:
                valid.append(_rule(creation))
                results.append(None)
            except FirnError as error:
                results.append(_created(error))
        added = AclCreationResult()
        try:
            rules = self._there()
            if valid:
                await call_blocking(None, rules.add, valid)
        except FirnError as error:
            added = _created(error)
        return CreateAclsResponse(results=[each or added for each in results])

    async def delete(self, request: DeleteAclsRequest) -> DeleteAclsResponse:
        filters: list[RuleFilter] = []
        results: list[DeleteAclsFilterResult | None] = []
        async for each in self._turns.over(request.filters):
            try:
                filters.append(_filter(each))
                results.append(None)
            except FirnError as error:
                results.append(_not_deleted(error))
        removed: list[list[Rule]] = []
        failed: DeleteAclsFilterResult | None = None
        try:
            rules = self._there()
            if filters:
                removed = await call_blocking(None, rules.remove, filters)
        except FirnError as error:
            failed = _not_deleted(error)
        answers = []
        found = iter(removed)
        async for result in self._turns.over(results):
            answer = result or failed
            if answer is None:
                matching = [_removed(rule) async for rule in self._turns.over(next(found))]
                answer = DeleteAclsFilterResult(matching_acls=matching)
            answers.append(answer)
        return DeleteAclsResponse(filter_results=answers)

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


def _created(error: FirnError) -> AclCreationResult:
    return AclCreationResult(error_code=_code_of(error), error_message=str(error))


def _not_deleted(error: FirnError) -> DeleteAclsFilterResult:
    return DeleteAclsFilterResult(
        error_code=_code_of(error), error_message=str(error), matching_acls=[]
    )


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
