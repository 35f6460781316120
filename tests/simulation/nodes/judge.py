"""What must hold after every change of what is stored, and once the faults have ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from firnmq.meta import Entry, Event
from firnmq.meta.records import (
    COORDINATORS,
    INCARNATIONS,
    SHARDS,
    TOPICS,
    CoordinatorRecord,
    Incarnation,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
    segment_key,
    shard_key,
    topic_key,
)

if TYPE_CHECKING:
    from tests.simulation.nodes.engine import SimLog
    from tests.simulation.nodes.node import NodeProcess
    from tests.simulation.nodes.store import StoredState


class Violation(AssertionError):
    """An invariant does not hold."""


def require(holds: bool, text: str) -> None:
    if not holds:
        raise Violation(text)


class Judge:
    def __init__(self, deletes: Callable[[str], bool]) -> None:
        """`deletes`: whether a client may be deleting a topic of this name."""
        self._deletes = deletes
        self.state: StoredState
        self._uids: dict[int, tuple[str, int]] = {}
        """Number → shard, and the revision at which its record was created."""
        self._leaders: dict[tuple[int, int], int] = {}
        """Number and epoch of a shard → its leader."""
        self._names: dict[str, str] = {}
        """Topic id → name."""
        self._writers: dict[tuple[int, int], int] = {}
        self._incarnations: dict[str, int] = {}
        self._slots: dict[str, int] = {}
        self._producer_ids: set[int] = set()
        self.was_ready: set[str] = set()
        """Ids of topics that were ready once."""
        self.counts: Counter[str] = Counter()

    # After every change -------------------------------------------------------------------------

    def changed(self, events: list[Event]) -> None:
        for event in events:
            entry = event.entry
            if entry is None:
                continue
            if event.key.startswith(SHARDS):
                self._shard(decode(entry, ShardRecord), entry)
            elif event.key.startswith(INCARNATIONS):
                given = decode(entry, Incarnation).incarnation
                before = self._incarnations.get(event.key, 0)
                require(given > before, f"{event.key} is {given} after {before}")
                self._incarnations[event.key] = given
            elif event.key.startswith(COORDINATORS):
                node = decode(entry, CoordinatorRecord).node
                first = self._slots.setdefault(event.key, node)
                require(first == node, f"{event.key} goes from node {first} to {node}")
        for event in events:
            if event.entry is not None and event.key.startswith(TOPICS):
                self._topic(decode(event.entry, TopicRecord))
        self.counts["changes"] += 1

    def _shard(self, record: ShardRecord, entry: Entry) -> None:
        created = entry.create_revision
        if created == entry.mod_revision:
            name = self._names.get(record.topic_id or "", "")
            topic = self.state.entries.get(topic_key(name))
            is_there = topic is not None and (
                decode(topic, TopicRecord).state is not TopicState.DELETING
            )
            require(is_there, f"{record.name} is made for a topic that is being removed")
        first = self._uids.setdefault(record.uid, (record.name, created))
        require(
            first == (record.name, created),
            f"number {record.uid} of {first[0]} is given to {record.name}",
        )
        leader = self._leaders.setdefault((record.uid, record.epoch), record.leader)
        require(
            leader == record.leader,
            f"{record.name} has leaders {leader} and {record.leader} of epoch {record.epoch}",
        )

    def _topic(self, topic: TopicRecord) -> None:
        self._names[topic.topic_id] = topic.name
        if topic.state is TopicState.DELETING and topic.topic_id in self.was_ready:
            require(
                self._deletes(topic.name), f"{topic.name} is removed, which no client asked for"
            )
        if topic.state is not TopicState.READY:
            return
        self.was_ready.add(topic.topic_id)
        for seq in range(topic.shard_count):
            name = f"{topic.topic_id}_{seq}"
            for key in (shard_key(name), segment_key(name, 0)):
                require(key in self.state.entries, f"{topic.name} is ready without {key}")

    def appended(self, node: int, shard: str, uid: int) -> None:
        """A node stores records in a shard."""
        entry = self.state.entries.get(shard_key(shard))
        if entry is not None:
            record = decode(entry, ShardRecord)
            if record.uid == uid:
                first = self._writers.setdefault((uid, record.epoch), node)
                require(first == node, f"{shard} is written by nodes {first} and {node}")
        self.counts["appends"] += 1

    def given(self, producer_id: int) -> None:
        require(producer_id not in self._producer_ids, f"producer id {producer_id} is given twice")
        self._producer_ids.add(producer_id)

    # At the end ---------------------------------------------------------------------------------

    def check_nodes(self, nodes: list[NodeProcess], disks: dict[int, dict[str, SimLog]]) -> None:
        """Everything that nodes know follows from what is stored."""
        state = self.state
        records = {
            entry.key.removeprefix(SHARDS): decode(entry, ShardRecord)
            for entry in state.snapshot(SHARDS).entries
        }
        stored = tuple(state.snapshot("").entries)
        for node in nodes:
            where = f"the cache of {node.name}"
            require(node.cache.revision == state.revision, f"{where} is behind")
            require(tuple(node.cache.below("")) == stored, f"{where} differs from the store")
            require(node.heard == {each.key: each for each in stored}, f"{node.name} missed events")
            led = {name: (each.uid, each.leader) for name, each in records.items()}
            known = {name: node.cluster.leaders.get(name) for name in led}
            told = {name: (each.uid, each.leader) for name, each in known.items() if each}
            require(told == led, f"{node.name} knows other leaders")
            require(len(node.cluster.leaders) == len(led), f"{node.name} knows leaders of no shard")
            mine = {name: each.uid for name, each in records.items() if each.leader == node.node}
            has = {name: spec.uid for name, spec in node.engine.specs.items()}
            require(has == mine, f"{node.name} has {has}, it leads {mine}")
            registered = set(node.cluster.members.registered)
            require(registered == {each.node for each in nodes}, f"{node.name} lists {registered}")
            counts = Counter(each.leader for each in records.values())
            for other in nodes:
                count = node.cluster.leaders.count_of(other.node)
                require(count == counts[other.node], f"{node.name} counts {count} shards")
            for key, slot_node in self._slots.items():
                slot = int(key.rpartition("/")[2])
                require(node.cluster.coordinators._by_slot[slot] == slot_node, "a slot is wrong")

    def check_topics(self) -> None:
        """Every topic is there completely or not at all."""
        state = self.state
        claims = [key for key in state.entries if key.startswith("claims/")]
        require(not claims, f"left behind: {claims}")
        expected: set[str] = set()
        for entry in state.snapshot(TOPICS).entries:
            topic = decode(entry, TopicRecord)
            require(topic.state is TopicState.READY, f"{topic.name} stays {topic.state.value}")
            expected |= {f"{topic.topic_id}_{seq}" for seq in range(topic.shard_count)}
        found = {entry.key.removeprefix(SHARDS) for entry in state.snapshot(SHARDS).entries}
        require(found == expected, f"shards without a topic: {sorted(found - expected)}")
        segments = {key for key in state.entries if key.startswith("segments/")}
        require(segments == {segment_key(name, 0) for name in expected}, "segments without a shard")
