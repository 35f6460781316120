"""The rules, kept in the meta store and followed through the node's cache of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from firnmq.brokers.security.acl.index import RuleIndex
from firnmq.brokers.security.acl.model import (
    RULES_MAX,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleFilter,
    checked,
)
from firnmq.errors import Corruption, TooManyRules
from firnmq.eventlog import EventLogger
from firnmq.meta import Entry, Event, MetaCache, MetaStore
from firnmq.meta.records import RULES, RuleRecord, decode, encode, rule_key

_SEEN_WITHIN_S = 30.0
"""Seconds until the node's cache of the metadata must show a change."""
_log = EventLogger("security")


class RuleStore:
    """Safe with threads. A change returns once it is durable and this node decides by it."""

    def __init__(self, meta: MetaStore, cache: MetaCache) -> None:
        self._meta = meta
        self._cache = cache
        self._changing = threading.Lock()
        self._by_key: dict[str, Rule | None] = {}
        """What each record says; None for one that cannot be read."""
        self.index = RuleIndex()
        """The rules as of now. Replaced with every change, never changed."""
        self._listeners: list[Callable[[], None]] = []
        cache.listen(RULES, self._follow)

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls the listener after every change, in the cache's thread."""
        self._listeners.append(listener)

    def add(self, rules: Iterable[Rule]) -> int:
        """Adds rules, all or none if one is invalid or there would be too many; those that are
        there already are no error. Returns how many are new."""
        wanted = list(dict.fromkeys(checked(rule) for rule in rules))
        with self._changing:
            new = [rule for rule in wanted if rule not in self.index.rules]
            count = len(self.index.rules) + len(new)
            if count > RULES_MAX:
                raise TooManyRules(count, RULES_MAX)
            self._apply({_key(rule): encode(_record(rule)) for rule in new}, [])
        return len(new)

    def remove(self, filters: Sequence[RuleFilter]) -> list[list[Rule]]:
        """Removes what the filters select; returns the rules of each of them, without those that an
        earlier one has selected. A filter that selects everything also removes what cannot be
        read."""
        with self._changing:
            left = set(self.index.rules)
            found = []
            for each in filters:
                found.append(_selected(left, each))
                left.difference_update(found[-1])
            keys = {_key(rule): None for rules in found for rule in rules}
            if RuleFilter() in filters:
                unreadable = [key for key, rule in self._by_key.items() if rule is None]
                keys.update(dict.fromkeys(unreadable))
            self._apply({}, list(keys))
        return found

    def select(self, wanted: RuleFilter) -> list[Rule]:
        return _selected(self.index.rules, wanted)

    def _apply(self, puts: dict[str, bytes], deletes: list[str]) -> None:
        step = self._meta.txn_ops_max
        revision = 0
        keys = list(puts)
        for start in range(0, len(keys), step):
            some = {key: puts[key] for key in keys[start : start + step]}
            revision = self._meta.txn((), some)
        for start in range(0, len(deletes), step):
            revision = self._meta.txn((), None, deletes[start : start + step])
        if revision:
            self._cache.wait_for_revision(revision, _SEEN_WITHIN_S)

    def _follow(self, events: list[Event]) -> None:
        """Called in the cache's thread."""
        before = set(self._by_key.values())
        for event in events:
            if event.entry is None:
                self._by_key.pop(event.key, None)
            else:
                self._by_key[event.key] = _read(event.entry)
        now = set(self._by_key.values())
        self.index = self.index.changed(
            added=[rule for rule in now - before if rule is not None],
            removed=[rule for rule in before - now if rule is not None],
            is_readable=None not in now,
        )
        for listener in self._listeners:
            listener()


def _key(rule: Rule) -> str:
    return rule_key(_record(rule))


def _record(rule: Rule) -> RuleRecord:
    return RuleRecord(
        resource_type=rule.resource_type.name.lower(),
        pattern=rule.pattern.name.lower(),
        name=rule.name,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation.name.lower(),
        permission=rule.permission.name.lower(),
    )


def _read(entry: Entry) -> Rule | None:
    try:
        return _rule(decode(entry, RuleRecord))
    except Corruption as error:
        _log.error(
            "rule_unreadable",
            key=entry.key,
            error=str(error),
            effect="it may deny anything, so only super users may do anything",
            hint="firn acl remove --all removes it, with all rules",
        )
        return None


def _rule(record: RuleRecord) -> Rule:
    try:
        return Rule(
            resource_type=ResourceType[record.resource_type.upper()],
            pattern=PatternType[record.pattern.upper()],
            name=record.name,
            principal=record.principal,
            host=record.host,
            operation=Operation[record.operation.upper()],
            permission=Permission[record.permission.upper()],
        )
    except KeyError as error:
        raise Corruption(f"{error} is not known", where=f"rule about {record.name!r}") from error


def _selected(rules: Collection[Rule], wanted: RuleFilter) -> list[Rule]:
    return sorted((rule for rule in rules if wanted.selects(rule)), key=_in_order)


def _in_order(rule: Rule) -> tuple[object, ...]:
    return (
        *(rule.resource_type, rule.name, rule.pattern, rule.principal),
        *(rule.permission, rule.operation, rule.host),
    )
