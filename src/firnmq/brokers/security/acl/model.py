"""Rules about who may do what: Kafka's model. The numbers are those of Kafka's protocol."""

from __future__ import annotations

import enum
from typing import Final

import msgspec

from firnmq.config import parsed_address
from firnmq.errors import InvalidArgument

WILDCARD: Final = "*"
"""As a literal resource name, as a host, or after `User:`: any."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the one resource of type cluster."""
RULES_MAX: Final = 10_000
"""Rules of a cluster. Every node holds all of them in memory, about 1 KB each."""
_NAME_CHARS_MAX: Final = 1_000
_PRINCIPAL_CHARS_MAX: Final = 1_000
_HOST_CHARS_MAX: Final = 255


class ResourceType(enum.IntEnum):
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    ANY = 1
    MATCH = 2
    """In a filter: every pattern that applies to the name."""
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLYING: Final = {
    Operation.DESCRIBE: (*(Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}

GRANTING: Final[dict[Operation, frozenset[Operation]]] = {
    each: frozenset((each, Operation.ALL, *_IMPLYING.get(each, ()))) for each in Operation
}
"""The operations of rules that allow an operation. A rule that denies Read leaves Describe."""

OPERATIONS_OF: Final[dict[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        *(Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER),
        *(Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
    ),
    ResourceType.GROUP: (
        *(Operation.READ, Operation.DELETE, Operation.DESCRIBE),
        *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS),
    ),
    ResourceType.CLUSTER: (
        *(Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION),
        *(Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE),
    ),
}
"""What clients are told that they may do with a resource."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One rule; two rules with the same fields are one."""

    resource_type: ResourceType
    pattern: PatternType
    name: str
    principal: str
    """`User:ann`, or `User:*` for every client."""
    host: str
    """An IP address, or `*`."""
    operation: Operation
    permission: Permission

    def __str__(self) -> str:
        prefix = "prefix " if self.pattern is PatternType.PREFIXED else ""
        return (
            f"{self.permission.name.lower()} {self.principal} from {self.host} to "
            f"{self.operation.name.lower()} {self.resource_type.name.lower()} {prefix}{self.name}"
        )


def checked(rule: Rule) -> Rule:
    """The rule, with its host in the form that connections show; InvalidArgument by field."""
    if rule.resource_type is ResourceType.ANY:
        raise InvalidArgument("resource type", "must be one type in a rule")
    if rule.pattern not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise InvalidArgument("pattern type", "must be literal or prefixed in a rule")
    if rule.operation is Operation.ANY:
        raise InvalidArgument("operation", "must be one operation, or all, in a rule")
    if rule.permission is Permission.ANY:
        raise InvalidArgument("permission", "must be allow or deny in a rule")
    _check_text("resource name", rule.name, _NAME_CHARS_MAX)
    if rule.resource_type is ResourceType.CLUSTER and rule.name != CLUSTER_NAME:
        raise InvalidArgument("resource name", f"of a cluster is always {CLUSTER_NAME!r}")
    _check_text("principal", rule.principal, _PRINCIPAL_CHARS_MAX)
    kind, colon, name = rule.principal.partition(":")
    if not kind or not colon or not name:
        raise InvalidArgument("principal", f"is written as User:name, not {rule.principal!r}")
    _check_text("host", rule.host, _HOST_CHARS_MAX)
    return msgspec.structs.replace(rule, host=canonical_host(rule.host))


def canonical_host(host: str) -> str:
    """One form of an address; an IPv4 address that came over IPv6 is written as IPv4."""
    return str(parsed_address(host) or host)


def _check_text(field: str, text: str, chars_max: int) -> None:
    if not 0 < len(text) <= chars_max or not text.isprintable():
        raise InvalidArgument(field, f"must be 1 to {chars_max:,} printable characters")


class RuleFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which rules are meant: those that have every field that is given."""

    resource_type: ResourceType = ResourceType.ANY
    pattern: PatternType = PatternType.ANY
    name: str | None = None
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def __post_init__(self) -> None:
        if self.host is not None:
            msgspec.structs.force_setattr(self, "host", canonical_host(self.host))

    def selects(self, rule: Rule) -> bool:
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self._selects_name(rule)
        )

    def _selects_name(self, rule: Rule) -> bool:
        if self.pattern in (PatternType.LITERAL, PatternType.PREFIXED):
            return rule.pattern is self.pattern and self.name in (None, rule.name)
        if self.name is None:
            return True
        if self.pattern is PatternType.ANY:
            return rule.name == self.name
        if rule.pattern is PatternType.PREFIXED:
            return self.name.startswith(rule.name)
        return rule.name in (self.name, WILDCARD)
