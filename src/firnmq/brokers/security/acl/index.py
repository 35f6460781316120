"""Rules arranged for decisions: one decision takes a few look-ups, however many rules there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from firnmq.brokers.security.acl.model import (
    GRANTING,
    WILDCARD,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)

_EVERY_USER = f"User:{WILDCARD}"
_Place = tuple[ResourceType, PatternType, str, str]
"""Resource type, pattern type, name and principal."""


class RuleIndex:
    """A set of rules that never changes: a change makes another index, which shares most of it."""

    __slots__ = ("_lengths", "_places", "is_readable", "rules")

    def __init__(
        self,
        rules: frozenset[Rule] = frozenset(),
        places: dict[_Place, tuple[Rule, ...]] | None = None,
        *,
        is_readable: bool = True,
    ) -> None:
        """`places` is left out but for a change of another index."""
        self.rules = rules
        self.is_readable = is_readable
        """Whether these are all rules. Otherwise nothing is allowed: one may deny it."""
        if places is None:
            places = {}
            for rule in rules:
                place = _place(rule)
                places[place] = (*places.get(place, ()), rule)
        self._places = places
        lengths: dict[ResourceType, set[int]] = {}
        for kind, pattern, name, _ in places:
            if pattern is PatternType.PREFIXED:
                lengths.setdefault(kind, set()).add(len(name))
        self._lengths = {kind: tuple(sorted(found)) for kind, found in lengths.items()}
        """The lengths of the prefixes there are, by resource type."""

    def changed(
        self,
        added: Iterable[Rule] = (),
        removed: Iterable[Rule] = (),
        *,
        is_readable: bool = True,
    ) -> RuleIndex:
        """An index without some rules and with others."""
        rules, places = set(self.rules), dict(self._places)
        for rule in removed:
            if rule in rules:
                rules.discard(rule)
                place = _place(rule)
                left = tuple(each for each in places[place] if each != rule)
                if left:
                    places[place] = left
                else:
                    del places[place]
        for rule in added:
            if rule not in rules:
                rules.add(rule)
                place = _place(rule)
                places[place] = (*places.get(place, ()), rule)
        return RuleIndex(frozenset(rules), places, is_readable=is_readable)

    def allows(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether a rule allows it and none denies it."""
        granting = GRANTING[operation]
        is_allowed = False
        for rules in self._applying(principal, kind, name):
            for rule in rules:
                if rule.host not in (WILDCARD, host):
                    continue
                if rule.permission is Permission.DENY:
                    if rule.operation in (operation, Operation.ALL):
                        return False
                elif rule.operation in granting:
                    is_allowed = True
        return is_allowed and self.is_readable

    def allows_any(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether there is a name, of a resource that may not exist, with which it is allowed."""
        allowed: list[tuple[PatternType, str]] = []
        denied: set[tuple[PatternType, str]] = set()
        for rule in self.rules:
            if (
                rule.resource_type is not kind
                or rule.principal not in (principal, _EVERY_USER)
                or rule.host not in (WILDCARD, host)
            ):
                continue
            if rule.permission is Permission.DENY:
                if rule.operation in (operation, Operation.ALL):
                    denied.add((rule.pattern, rule.name))
            elif rule.operation in GRANTING[operation]:
                allowed.append((rule.pattern, rule.name))
        if not self.is_readable or (PatternType.LITERAL, WILDCARD) in denied:
            return False
        return any(not _is_hidden(pattern, name, denied) for pattern, name in allowed)

    def _applying(
        self, principal: str, kind: ResourceType, name: str
    ) -> Iterator[tuple[Rule, ...]]:
        places, literal, prefixed = self._places, PatternType.LITERAL, PatternType.PREFIXED
        for who in (principal, _EVERY_USER):
            for exact in (name, WILDCARD):
                found = places.get((kind, literal, exact, who))
                if found is not None:
                    yield found
            for length in self._lengths.get(kind, ()):
                if length > len(name):
                    break
                found = places.get((kind, prefixed, name[:length], who))
                if found is not None:
                    yield found


def _is_hidden(pattern: PatternType, name: str, denied: set[tuple[PatternType, str]]) -> bool:
    """Whether rules that deny cover all that a pattern allows. That a prefix is denied name by name
    is not seen, since there are always more names."""
    if pattern is PatternType.LITERAL:
        if name == WILDCARD:
            return False
        if (PatternType.LITERAL, name) in denied:
            return True
    return any(
        (PatternType.PREFIXED, name[:length]) in denied for length in range(1, len(name) + 1)
    )


def _place(rule: Rule) -> _Place:
    return rule.resource_type, rule.pattern, rule.name, rule.principal
