"""Decides what clients may do."""

from __future__ import annotations

from collections.abc import Collection

from firnmq.brokers.security.acl.index import RuleIndex
from firnmq.brokers.security.acl.model import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Operation,
    ResourceType,
    canonical_host,
)
from firnmq.brokers.security.acl.store import RuleStore

_DECISIONS_KEPT_MAX = 2_000
"""Decisions that a connection remembers; with more it begins again."""


class Authorizer:
    """Super users may do everything; others what the rules allow. Without a rule all is denied."""

    def __init__(self, rules: RuleStore, super_users: Collection[str] = ()) -> None:
        """`super_users`: principals, such as `User:admin`."""
        self.rules = rules
        self._super_users = frozenset(super_users)

    def access(self, principal: str, host: str) -> Access:
        """The decisions about one client."""
        return Access(
            self.rules, principal, canonical_host(host), is_super=principal in self._super_users
        )


class Access:
    """What one client may do. It remembers decisions until the rules change. Owned by the event
    loop, as the connection is to which it belongs."""

    __slots__ = ("_decisions", "_index", "_is_super", "_rules", "host", "principal")

    def __init__(self, rules: RuleStore, principal: str, host: str, *, is_super: bool) -> None:
        self.principal = principal
        self.host = host
        self._rules = rules
        self._is_super = is_super
        self._index: RuleIndex = rules.index
        self._decisions: dict[tuple[Operation, ResourceType, str], bool] = {}

    def allows(self, operation: Operation, kind: ResourceType, name: str = CLUSTER_NAME) -> bool:
        if self._is_super:
            return True
        decisions = self._current()
        asked = (operation, kind, name)
        decision = decisions.get(asked)
        if decision is None:
            if len(decisions) >= _DECISIONS_KEPT_MAX:
                decisions.clear()
            decision = decisions[asked] = self._index.allows(
                self.principal, self.host, operation, kind, name
            )
        return decision

    def allows_any(self, operation: Operation, kind: ResourceType) -> bool:
        """Whether it is allowed with at least one name."""
        if self._is_super:
            return True
        decisions = self._current()
        asked = (operation, kind, "")  # No resource has an empty name.
        decision = decisions.get(asked)
        if decision is None:
            decision = decisions[asked] = self._index.allows_any(
                self.principal, self.host, operation, kind
            )
        return decision

    def operations(self, kind: ResourceType, name: str = CLUSTER_NAME) -> int:
        """A bit for each operation that is allowed, as Kafka's protocol has them."""
        return sum(1 << each for each in OPERATIONS_OF[kind] if self.allows(each, kind, name))

    def _current(self) -> dict[tuple[Operation, ResourceType, str], bool]:
        if self._index is not self._rules.index:
            self._index = self._rules.index
            self._decisions.clear()
        return self._decisions
