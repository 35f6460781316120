"""Fair, stable and complete, whatever members subscribe to."""

from __future__ import annotations

from random import Random

import pytest

from firnmq.brokers.kafka.groups.consumer.assignors import (
    ASSIGNORS,
    Assignee,
    Assignor,
    ranges,
    uniform,
)
from firnmq.brokers.kafka.groups.consumer.messages import Partitions, TopicSize


def sizes(**counts: int) -> dict[str, TopicSize]:
    return {name: TopicSize(f"id of {name}", count) for name, count in counts.items()}


def members(
    count: int, *topics: str, before: dict[str, Partitions] | None = None
) -> dict[str, Assignee]:
    return {
        f"m{number}": Assignee(
            topics=frozenset(topics), before=(before or {}).get(f"m{number}", frozenset())
        )
        for number in range(count)
    }


def check_complete(
    found: dict[str, Partitions], asked: dict[str, Assignee], topics: dict[str, TopicSize]
) -> None:
    """Every partition with a subscriber has one member, who subscribes to its topic."""
    wanted = {name for each in asked.values() for name in each.topics}
    every = {
        (size.topic_id, index)
        for name, size in topics.items()
        if name in wanted
        for index in range(size.partition_count)
    }
    given = [each for held in found.values() for each in held]
    assert sorted(given) == sorted(every)
    names = {size.topic_id: name for name, size in topics.items()}
    for member_id, held in found.items():
        assert {names[topic_id] for topic_id, _ in held} <= asked[member_id].topics


@pytest.mark.parametrize("assign", ASSIGNORS.values(), ids=ASSIGNORS)
def test_without_members_or_topics_there_is_nothing_to_assign(assign: Assignor) -> None:
    assert assign({}, sizes(a=3)) == {}
    assert assign(members(2, "gone"), sizes(a=3)) == {"m0": frozenset(), "m1": frozenset()}


def test_uniform_is_fair_and_moves_no_more_than_it_has_to() -> None:
    topics = sizes(a=7, b=5)
    before: dict[str, Partitions] = {}
    for count in (1, 2, 3, 5, 4, 2, 20, 3):
        asked = members(count, "a", "b", before=before)
        found = uniform(asked, topics)
        check_complete(found, asked, topics)
        loads = [len(held) for held in found.values()]
        assert max(loads) - min(loads) <= 1
        # Who stays loses something only if it has more than its share.
        for member_id, held in found.items():
            kept = before.get(member_id, frozenset()) & held
            assert len(kept) == min(len(before.get(member_id, frozenset())), len(held))
        before = found


@pytest.mark.parametrize("seed", range(50))
def test_uniform_with_all_kinds_of_subscriptions(seed: int) -> None:
    random = Random(seed)
    topics = sizes(**{f"t{number}": random.randint(0, 12) for number in range(6)})
    before: dict[str, Partitions] = {}
    for _ in range(6):
        asked = {
            f"m{number}": Assignee(
                topics=frozenset(random.sample(sorted(topics), random.randint(0, 4))),
                before=before.get(f"m{number}", frozenset()),
            )
            for number in random.sample(range(9), random.randint(1, 8))
        }
        found = uniform(asked, topics)
        check_complete(found, asked, topics)
        for one, its in asked.items():
            for other, others in asked.items():
                if its.topics == others.topics:
                    assert abs(len(found[one]) - len(found[other])) <= 1
        assert uniform(asked, topics) == found, "the same input gives the same answer"
        settled = {
            member_id: Assignee(topics=each.topics, before=found[member_id])
            for member_id, each in asked.items()
        }
        assert uniform(settled, topics) == found, "what is even stays as it is"
        before = found


def test_ranges_put_equal_numbers_together() -> None:
    topics = sizes(a=5, b=5)
    found = ranges(members(2, "a", "b"), topics)
    check_complete(found, members(2, "a", "b"), topics)
    assert {index for _, index in found["m0"]} == {0, 1, 2}
    assert {index for _, index in found["m1"]} == {3, 4}


def test_ranges_of_a_static_member_outlive_its_id() -> None:
    def found(first_id: str) -> dict[str, Partitions]:
        asked = {
            first_id: Assignee(topics=frozenset({"a"}), before=frozenset(), instance_id="i1"),
            "m5": Assignee(topics=frozenset({"a"}), before=frozenset(), instance_id="i2"),
        }
        return ranges(asked, sizes(a=4))

    assert found("m1")["m1"] == found("m9")["m9"]


def test_two_thousand_members_share_ten_thousand_partitions() -> None:
    topics = sizes(**{f"t{number}": 500 for number in range(20)})
    found = uniform(members(2_000, *topics), topics)
    assert {len(held) for held in found.values()} == {5}
