"""What requests have changed, for the audit log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from firnmq.brokers.kafka.protocol import ApiKey, Message
from firnmq.brokers.security.acl import Operation, PatternType, Permission, ResourceType, Rule


def names_of_changes(api_key: int, request: Message, response: Message) -> Sequence[str]:
    """What a request of the table below has changed; empty if it has changed nothing."""
    if getattr(request, "validate_only", False):
        return ()
    return list(dict.fromkeys(_NAMES[ApiKey(api_key)](request, response)))


def _successes(path: str, name: str) -> Callable[[Any, Any], Iterable[str]]:
    """The names of those elements of a response that have no error."""

    def names(_: Any, response: Any) -> Iterable[str]:
        return (str(getattr(each, name)) for each in getattr(response, path) if not each.error_code)

    return names


def _trimmed(_: Any, response: Any) -> Iterable[str]:
    return (
        topic.name
        for topic in response.topics
        if any(not each.error_code for each in topic.partitions)
    )


def _without_offsets(request: Any, response: Any) -> Iterable[str]:
    is_changed = any(not each.error_code for topic in response.topics for each in topic.partitions)
    return (request.group_id,) if is_changed else ()


def _added(request: Any, response: Any) -> Iterable[str]:
    for each, result in zip(request.creations, response.results, strict=True):
        if not result.error_code:
            yield _shown(each, each.resource_pattern_type)


def _removed(_: Any, response: Any) -> Iterable[str]:
    for result in response.filter_results:
        for each in result.matching_acls:
            yield _shown(each, each.pattern_type)


def _shown(rule: Any, pattern: int) -> str:
    return str(
        Rule(
            resource_type=ResourceType(rule.resource_type),
            pattern=PatternType(pattern),
            name=rule.resource_name,
            principal=rule.principal,
            host=rule.host,
            operation=Operation(rule.operation),
            permission=Permission(rule.permission_type),
        )
    )


def _limited(_: Any, response: Any) -> Iterable[str]:
    for each in response.entries:
        if not each.error_code:
            names = (f"{part.entity_type} {part.entity_name or 'default'}" for part in each.entity)
            yield ", ".join(names)


_NAMES: Final[dict[ApiKey, Callable[[Any, Any], Iterable[str]]]] = {
    ApiKey.CREATE_TOPICS: _successes("topics", "name"),
    ApiKey.DELETE_TOPICS: _successes("responses", "name"),
    ApiKey.DELETE_RECORDS: _trimmed,
    ApiKey.CREATE_PARTITIONS: _successes("results", "name"),
    ApiKey.ALTER_CONFIGS: _successes("responses", "resource_name"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _successes("responses", "resource_name"),
    ApiKey.DELETE_GROUPS: _successes("results", "group_id"),
    ApiKey.OFFSET_DELETE: _without_offsets,
    ApiKey.ALTER_CLIENT_QUOTAS: _limited,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _successes("results", "user"),
    ApiKey.CREATE_ACLS: _added,
    ApiKey.DELETE_ACLS: _removed,
}

AUDITED: Final = frozenset(_NAMES)
"""APIs that change what an administrator answers for."""
