"""Random sets of rules: the index decides what a reading of all rules one by one decides."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from firnmq.brokers.security.acl.index import RuleIndex
from firnmq.brokers.security.acl.model import (
    Operation,
    PatternType,
    Permission,
    ResourceType,
    Rule,
    RuleFilter,
)

USERS = ["User:a", "User:b"]
HOSTS = ["10.0.0.1", "10.0.0.2"]
NAMES = ["a", "ab", "abc", "b", "ba", "*"]
KINDS = [ResourceType.TOPIC, ResourceType.GROUP]
ASKED = [each for each in Operation if each not in (Operation.ANY, Operation.ALL)]

rules = st.builds(
    Rule,
    resource_type=st.sampled_from(KINDS),
    pattern=st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    name=st.sampled_from(NAMES),
    principal=st.sampled_from([*USERS, "User:*"]),
    host=st.sampled_from([*HOSTS, "*"]),
    operation=st.sampled_from([Operation.ALL, *ASKED[:7]]),
    permission=st.sampled_from([Permission.ALLOW, Permission.ALLOW, Permission.DENY]),
)
rule_sets = st.lists(rules, max_size=12)
questions = st.tuples(
    st.sampled_from(USERS),
    st.sampled_from(HOSTS),
    st.sampled_from(ASKED[:7]),
    st.sampled_from(KINDS),
    st.sampled_from([*NAMES[:5], "abcd", "c"]),
)


def is_about(
    rule: Rule, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Kafka's documentation, read word by word."""
    if rule.resource_type != kind:
        return False
    if rule.pattern == PatternType.PREFIXED:
        is_named = name[: len(rule.name)] == rule.name
    else:
        is_named = rule.name in ("*", name)
    implied = {rule.operation}
    if rule.operation == Operation.ALL:
        implied = set(Operation)
    elif rule.permission == Permission.ALLOW:
        if rule.operation.name in ("READ", "WRITE", "DELETE", "ALTER"):
            implied.add(Operation.DESCRIBE)
        if rule.operation.name == "ALTER_CONFIGS":
            implied.add(Operation.DESCRIBE_CONFIGS)
    return (
        is_named
        and rule.principal in ("User:*", principal)
        and rule.host in ("*", host)
        and operation in implied
    )


@given(rule_sets, st.lists(questions, min_size=1, max_size=20))
def test_decisions(found: list[Rule], asked: list[tuple]) -> None:  # type: ignore[type-arg]
    index = RuleIndex(frozenset(found))
    for question in asked:
        about = [rule for rule in found if is_about(rule, *question)]
        permissions = {rule.permission for rule in about}
        assert index.allows(*question) is (permissions == {Permission.ALLOW})


@given(rule_sets, rule_sets, rule_sets, questions)
def test_an_index_that_was_changed_is_one_that_was_made(
    before: list[Rule],
    added: list[Rule],
    removed: list[Rule],
    question: tuple,  # type: ignore[type-arg]
) -> None:
    changed = RuleIndex(frozenset(before)).changed(added, removed)
    wanted = (set(before) - set(removed)) | set(added)
    assert changed.rules == wanted
    made = RuleIndex(frozenset(wanted))
    assert changed.allows(*question) is made.allows(*question)
    assert changed.changed(removed=wanted).rules == set()


@given(rule_sets, questions)
def test_what_is_allowed_with_a_name_is_allowed_with_any(
    found: list[Rule],
    question: tuple,  # type: ignore[type-arg]
) -> None:
    index = RuleIndex(frozenset(found))
    if index.allows(*question):
        assert index.allows_any(*question[:4])


@given(rule_sets)
def test_nothing_is_allowed_by_rules_that_deny(found: list[Rule]) -> None:
    index = RuleIndex(frozenset(rule for rule in found if rule.permission is Permission.DENY))
    for kind in KINDS:
        assert not index.allows_any("User:a", HOSTS[0], Operation.WRITE, kind)


@given(rule_sets, rules)
def test_a_rule_is_selected_by_its_own_fields(found: list[Rule], rule: Rule) -> None:
    own = RuleFilter(
        resource_type=rule.resource_type,
        pattern=rule.pattern,
        name=rule.name,
        principal=rule.principal,
        host=rule.host,
        operation=rule.operation,
        permission=rule.permission,
    )
    assert [each for each in {*found, rule} if own.selects(each)] == [rule]
    assert all(RuleFilter().selects(each) for each in found)
