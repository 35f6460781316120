"""Rules in the meta store: kept, bounded, followed, and safe when one cannot be read."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from firnmq.brokers.security.acl import (
    RULES_MAX,
    Authorizer,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleFilter,
    RuleStore,
)
from firnmq.errors import InvalidArgument, TooManyRules
from firnmq.meta import MetaCache, SqliteMetaStore
from firnmq.meta.records import RULES

READ_ORDERS = Rule(
    resource_type=ResourceType.TOPIC,
    pattern=PatternType.LITERAL,
    name="orders",
    principal="User:ann",
    host="*",
    operation=Operation.READ,
    permission=Permission.ALLOW,
)


class Store:
    """A meta store with its cache and the rules."""

    def __init__(self, path: Path) -> None:
        self.meta = SqliteMetaStore(path / "meta.db")
        self.cache = MetaCache(self.meta)
        self.rules = RuleStore(self.meta, self.cache)

    def close(self) -> None:
        self.cache.close()
        self.meta.close()


@pytest.fixture
def store(tmp_path: Path):
    opened = Store(tmp_path)
    yield opened
    opened.close()


def with_(**fields: object) -> Rule:
    return msgspec.structs.replace(READ_ORDERS, **fields)


def may_read(rules: RuleStore, host: str = "10.1.1.1", user: str = "User:ann") -> bool:
    access = Authorizer(rules).access(user, host)
    return access.allows(Operation.READ, ResourceType.TOPIC, "orders")


def test_rules_are_there_after_a_restart(tmp_path: Path) -> None:
    first = Store(tmp_path)
    assert first.rules.add([READ_ORDERS, READ_ORDERS]) == 1
    assert first.rules.add([READ_ORDERS]) == 0
    assert may_read(first.rules)
    first.close()
    second = Store(tmp_path)
    assert second.rules.index.rules == {READ_ORDERS}
    assert may_read(second.rules)
    assert second.rules.remove([RuleFilter(name="orders")]) == [[READ_ORDERS]]
    assert not may_read(second.rules)
    second.close()
    third = Store(tmp_path)
    assert third.rules.index.rules == set()
    third.close()


def test_a_second_node_follows(store: Store) -> None:
    heard: list[int] = []
    other_cache = MetaCache(store.meta)
    other = RuleStore(store.meta, other_cache)
    other.listen(lambda: heard.append(len(other.index.rules)))
    access = Authorizer(other).access("User:ann", "10.1.1.1")
    asked = (Operation.READ, ResourceType.TOPIC, "orders")
    assert not access.allows(*asked)
    store.rules.add([READ_ORDERS])
    other_cache.wait_for_revision(store.cache.revision, 30)
    assert access.allows(*asked)
    assert heard == [1]
    other_cache.close()


def test_a_rule_that_cannot_be_read_allows_nobody_anything(store: Store) -> None:
    store.rules.add([READ_ORDERS])
    for damaged in (b"\xc1", msgspec.msgpack.encode({"permission": "maybe"})):
        revision = store.meta.txn((), {f"{RULES}damaged": damaged})
        store.cache.wait_for_revision(revision, 30)
        assert not may_read(store.rules)
        assert (
            not Authorizer(store.rules)
            .access("User:ann", "::1")
            .allows_any(Operation.READ, ResourceType.TOPIC)
        )
        root = Authorizer(store.rules, ["User:root"]).access("User:root", "::1")
        assert root.allows(Operation.ALTER, ResourceType.CLUSTER)
    # Removing a rule leaves it, removing everything removes it.
    store.rules.remove([RuleFilter(name="other")])
    assert not store.rules.index.is_readable
    store.rules.remove([RuleFilter()])
    store.rules.add([READ_ORDERS])
    assert may_read(store.rules)


def test_there_is_a_bound(store: Store) -> None:
    many = [with_(name=f"t{number}") for number in range(RULES_MAX)]
    store.rules.add(many)
    with pytest.raises(TooManyRules) as caught:
        store.rules.add([READ_ORDERS])
    assert caught.value.count == RULES_MAX + 1
    assert READ_ORDERS not in store.rules.index.rules
    store.rules.add([many[0]])  # It is there already.


@pytest.mark.parametrize(
    "wrong",
    [
        {"resource_type": ResourceType.ANY},
        {"pattern": PatternType.MATCH},
        {"operation": Operation.ANY},
        {"permission": Permission.ANY},
        {"name": ""},
        {"name": "a\nb"},
        {"name": "a" * 1_001},
        {"principal": "ann"},
        {"principal": "User:"},
        {"host": ""},
        {"resource_type": ResourceType.CLUSTER},
    ],
)
def test_a_wrong_rule_is_refused_and_adds_nothing(store: Store, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        store.rules.add([READ_ORDERS, with_(**wrong)])
    assert store.rules.index.rules == set()


def test_hosts_are_compared_as_addresses(store: Store) -> None:
    store.rules.add([with_(host="::ffff:10.1.1.1"), with_(principal="User:bob", host="0:0::1")])
    assert may_read(store.rules, "10.1.1.1")
    assert may_read(store.rules, "::ffff:10.1.1.1")
    assert may_read(store.rules, "::1", "User:bob")
    assert not may_read(store.rules, "10.1.1.2")
    assert store.rules.select(RuleFilter(host="0::1")) != []


def test_a_filter_that_matches_selects_every_rule_that_applies(store: Store) -> None:
    prefix = with_(pattern=PatternType.PREFIXED, name="ord")
    wildcard = with_(name="*")
    other = with_(name="payments")
    store.rules.add([READ_ORDERS, prefix, wildcard, other])
    match = RuleFilter(pattern=PatternType.MATCH, name="orders")
    assert set(store.rules.select(match)) == {READ_ORDERS, prefix, wildcard}
    assert store.rules.select(RuleFilter(pattern=PatternType.PREFIXED)) == [prefix]
    assert store.rules.select(RuleFilter(name="orders")) == [READ_ORDERS]


def test_operations_as_bits(store: Store) -> None:
    store.rules.add([READ_ORDERS])
    access = Authorizer(store.rules).access("User:ann", "::1")
    bits = access.operations(ResourceType.TOPIC, "orders")
    assert bits == 1 << Operation.READ | 1 << Operation.DESCRIBE
    assert access.operations(ResourceType.TOPIC, "other") == 0


def test_decisions_are_remembered_up_to_a_bound(store: Store) -> None:
    store.rules.add([READ_ORDERS])
    access = Authorizer(store.rules).access("User:ann", "::1")
    for number in range(5_000):
        assert not access.allows(Operation.READ, ResourceType.TOPIC, f"t{number}")
    assert access.allows(Operation.READ, ResourceType.TOPIC, "orders")
    assert len(access._decisions) <= 2_000


def test_a_rule_is_removed_by_the_first_filter_that_selects_it(store: Store) -> None:
    """So an answer never has more than all rules, however often a filter is there."""
    rules = [with_(name=f"t{number}") for number in range(5)]
    store.rules.add(rules)
    filters = [RuleFilter(name="t1"), RuleFilter(principal="User:ann"), RuleFilter()]
    found = store.rules.remove([*filters, *filters])
    assert [len(each) for each in found] == [1, 4, 0, 0, 0, 0]
    assert store.rules.index.rules == set()


def test_a_filter_has_its_host_in_one_form() -> None:
    assert RuleFilter(host="::ffff:10.0.0.1") == RuleFilter(host="10.0.0.1")
