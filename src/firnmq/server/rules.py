"""Rules as documents, for HTTP and for commands."""

from __future__ import annotations

from typing import TypeVar

from firnmq.brokers.security.acl import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleFilter,
)
from firnmq.errors import InvalidArgument
from firnmq.server.documents import AccessRule, RuleSelection

EnumT = TypeVar("EnumT", ResourceType, PatternType, Operation, Permission)


def rule_of(document: AccessRule) -> Rule:
    return Rule(
        resource_type=_word(ResourceType, "resource_type", document.resource_type),
        pattern=_word(PatternType, "pattern", document.pattern),
        name=document.name,
        principal=document.principal,
        host=document.host,
        operation=_word(Operation, "operation", document.operation),
        permission=_word(Permission, "permission", document.permission),
    )


def shown_rule(rule: Rule) -> AccessRule:
    return AccessRule(
        principal=rule.principal,
        operation=rule.operation.name.lower(),
        resource_type=rule.resource_type.name.lower(),
        name=rule.name,
        pattern=rule.pattern.name.lower(),
        host=rule.host,
        permission=rule.permission.name.lower(),
    )


def filter_of(selection: RuleSelection) -> RuleFilter:
    """InvalidArgument for one that would select everything and does not say so."""
    found = RuleFilter(
        resource_type=_word(ResourceType, "resource_type", selection.resource_type or "any"),
        pattern=_word(PatternType, "pattern", selection.pattern or "any"),
        name=selection.name,
        principal=selection.principal,
        host=selection.host,
        operation=_word(Operation, "operation", selection.operation or "any"),
        permission=_word(Permission, "permission", selection.permission or "any"),
    )
    if (found == RuleFilter()) is not selection.all:
        raise InvalidArgument("all", "is true if and only if no other field is given")
    return found


def _word(kind: type[EnumT], field: str, word: str) -> EnumT:
    try:
        return kind[word.upper()]
    except KeyError:
        known = ", ".join(each.name.lower() for each in kind if each.name not in ("ANY", "MATCH"))
        raise InvalidArgument(field, f"{word!r} is unknown; use {known}") from None
