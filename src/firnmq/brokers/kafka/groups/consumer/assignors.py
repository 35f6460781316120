"""Who gets which partitions: the assignors that members can ask for by name.

All are plain functions of the members and topics, so the same input gives the same answer. Nothing
here knows of epochs: what members have to give up before others get it is in `reconciling`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from firnmq.brokers.kafka.groups.consumer.messages import Partition, Partitions, TopicSize

_PASS_COUNT_MAX = 50
"""Rounds of moves between members that subscribe to different topics. Two or three are enough in
practice; each move makes the assignment more even, so there is no endless loop to fear."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignee:
    """A member as an assignor sees it."""

    topics: frozenset[str]
    """Names of what it subscribes to; those without a topic do not matter."""
    before: Partitions
    """What it was to have so far."""
    instance_id: str | None = None


Assignor: TypeAlias = Callable[
    [Mapping[str, Assignee], Mapping[str, TopicSize]], dict[str, Partitions]
]
"""Members by id, topics by name → the partitions of each member."""


def uniform(
    members: Mapping[str, Assignee], topics: Mapping[str, TopicSize]
) -> dict[str, Partitions]:
    """All members get about equally many partitions, and keep those that they have.

    Two members that subscribe to the same topics differ by one partition at most.
    """
    subscribers = _subscribers(members, topics)
    found: dict[str, set[Partition]] = {member_id: set() for member_id in members}
    taken = _keep(members, topics, found)
    if len(members) * len(topics) == sum(map(len, subscribers.values())):
        _share_out(topics.values(), found, taken)
        return {member_id: frozenset(held) for member_id, held in found.items()}
    # Topics that few subscribe to come first: there is less choice about them.
    order = sorted(topics, key=lambda name: (len(subscribers[name]), name))
    for name in order:
        _fill(topics[name], subscribers[name], found, taken)
    for _ in range(_PASS_COUNT_MAX):
        if not sum(_even_out(topics[name], subscribers[name], found) for name in order):
            break
    return {member_id: frozenset(held) for member_id, held in found.items()}


def _keep(
    members: Mapping[str, Assignee],
    topics: Mapping[str, TopicSize],
    found: dict[str, set[Partition]],
) -> set[Partition]:
    """Leaves every member what it had and may still have; returns all of that."""
    names = {size.topic_id: name for name, size in topics.items()}
    taken: set[Partition] = set()
    for member_id in sorted(members):
        wanted = members[member_id].topics
        for partition in members[member_id].before:
            topic_id, index = partition
            name = names.get(topic_id)
            is_there = name is not None and index < topics[name].partition_count
            if is_there and name in wanted and partition not in taken:
                found[member_id].add(partition)
                taken.add(partition)
    return taken


def _share_out(
    topics: Iterable[TopicSize], found: dict[str, set[Partition]], taken: set[Partition]
) -> None:
    """Where all subscribe to all topics: gives each member its share, with as few moves as can be.

    Those that have most get the shares that are one larger.
    """
    every = [(size.topic_id, index) for size in topics for index in range(size.partition_count)]
    free = [partition for partition in every if partition not in taken]
    base, extra = divmod(len(every), max(len(found), 1))
    order = sorted(found, key=lambda member_id: (-len(found[member_id]), member_id))
    shares = {member_id: base + (place < extra) for place, member_id in enumerate(order)}
    for member_id, share in shares.items():
        surplus = sorted(found[member_id])[share:]
        found[member_id].difference_update(surplus)
        free += surplus
    for member_id, share in shares.items():
        lacking = share - len(found[member_id])
        if lacking > 0:
            found[member_id].update(free[:lacking])
            del free[:lacking]


def _fill(
    topic: TopicSize,
    subscribers: list[str],
    found: dict[str, set[Partition]],
    taken: set[Partition],
) -> None:
    """Gives the partitions that no member has to those that have least."""
    loads = [(len(found[member_id]), member_id) for member_id in subscribers]
    heapq.heapify(loads)
    for index in range(topic.partition_count if loads else 0):
        partition = (topic.topic_id, index)
        if partition not in taken:
            load, member_id = loads[0]
            found[member_id].add(partition)
            heapq.heapreplace(loads, (load + 1, member_id))


def _even_out(topic: TopicSize, subscribers: list[str], found: dict[str, set[Partition]]) -> int:
    """Moves partitions of one topic from members that have most to those that have least."""
    if len(subscribers) < 2:
        return 0
    holdings = {
        member_id: sorted(index for topic_id, index in found[member_id] if topic_id == topic[0])
        for member_id in subscribers
        # Without two partitions more than the least, it has nothing to give.
        if len(found[member_id]) > 1
    }
    donors = [(-len(found[each]), each) for each, held in holdings.items() if held]
    takers = [(len(found[each]), each) for each in subscribers]
    heapq.heapify(donors)
    heapq.heapify(takers)
    moves = 0
    while donors and -donors[0][0] - takers[0][0] >= 2:
        load, donor = donors[0]
        room, taker = takers[0]
        partition = (topic.topic_id, holdings[donor].pop())
        found[donor].remove(partition)
        found[taker].add(partition)
        moves += 1
        heapq.heapreplace(takers, (room + 1, taker))
        if holdings[donor]:
            heapq.heapreplace(donors, (load + 1, donor))
        else:
            heapq.heappop(donors)
    return moves


def ranges(
    members: Mapping[str, Assignee], topics: Mapping[str, TopicSize]
) -> dict[str, Partitions]:
    """Each topic is split into as many ranges as it has subscribers.

    Members get the ranges in the same order for every topic, so that one that subscribes to two
    topics with equally many partitions gets those with the same numbers of both.
    """
    subscribers = _subscribers(members, topics)
    found: dict[str, set[Partition]] = {member_id: set() for member_id in members}
    for name, size in topics.items():
        # A static member keeps its place after a restart under another id.
        order = sorted(
            subscribers[name], key=lambda each: (members[each].instance_id or "\U0010ffff", each)
        )
        if not order:
            continue
        base, extra = divmod(size.partition_count, len(order))
        first = 0
        for number, member_id in enumerate(order):
            end = first + base + (number < extra)
            found[member_id].update((size.topic_id, index) for index in range(first, end))
            first = end
    return {member_id: frozenset(held) for member_id, held in found.items()}


def _subscribers(members: Mapping[str, Assignee], topics: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {name: [] for name in topics}
    for member_id in sorted(members):
        for name in members[member_id].topics:
            if name in found:
                found[name].append(member_id)
    return found


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": uniform, "range": ranges}
"""The first is for groups whose members ask for none."""
DEFAULT_ASSIGNOR: Final = next(iter(ASSIGNORS))
