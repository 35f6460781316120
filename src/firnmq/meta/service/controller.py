"""What the controller does: it makes the shards of new topics and removes those of deleted ones.

A creator only registers a topic. The controller chooses leaders, makes shards and segments, and
calls the topic ready; if the creator has died, it finishes or removes the topic all the same. Every
transaction compares the controller's key. A pass that is interrupted is repeated from the store.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from firnmq.clock import Clock
from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState, medium_of_new
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta.api import Compare, Entry, Event, MetaStore, TxnConflict
from firnmq.meta.cache import MetaCache
from firnmq.meta.records import (
    NEXT_UID,
    NODES,
    SEGMENTS,
    SHARDS,
    TOPICS,
    Counter,
    NodeRecord,
    Record,
    Replica,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
    encode,
    segment_key,
    segments_prefix,
    shard_key,
)
from firnmq.meta.service.election import CONTROLLER_KEY, Candidate

CREATION_S = 30.0
"""A topic that is not ready so long after the controller has first seen it is removed."""
_LOOK_S = 1.0
"""How often the controller looks without being woken."""
_log = EventLogger("meta")


class NodeLoad(msgspec.Struct, frozen=True, kw_only=True):
    """A living node, and what it has to do already."""

    replica: Replica
    leader_count: int
    """Active segments that it leads."""


Place: TypeAlias = Callable[[Sequence[NodeLoad], int], list[Replica]]
"""Leaders for so many new shards, chosen among living nodes. A pure function."""


class Replaced(FirnError):
    """Another process is the controller; this one has changed nothing."""


def fewest_leaders(nodes: Sequence[NodeLoad], count: int) -> list[Replica]:
    """Each shard goes to the node that then leads the fewest."""
    counts = {each.replica: each.leader_count for each in nodes}
    chosen = []
    for _ in range(count):
        best = min(counts, key=lambda replica: (counts[replica], replica.node))
        counts[best] += 1
        chosen.append(best)
    return chosen


class TopicWork:
    """The controller's changes of topics, each under the guard of its key."""

    def __init__(self, store: MetaStore, cache: MetaCache, clock: Clock, place: Place) -> None:
        self._store = store
        self._cache = cache
        self._clock = clock
        self._place = place
        self._first_seen: dict[str, int] = {}
        """Topic id → when the controller has first seen that it is being made."""

    def step(self, guard: Compare) -> None:
        """One pass over all topics that are being made or deleted. Replaced if the guard fails."""
        unfinished = set()
        for cached in self._cache.below(TOPICS):
            if decode(cached, TopicRecord).is_for_controller:
                entry = self._store.get(cached.key)
                if entry is not None:
                    topic = decode(entry, TopicRecord)
                    unfinished.add(topic.topic_id)
                    self._advance(guard, entry, topic)
        for topic_id in self._first_seen.keys() - unfinished:
            del self._first_seen[topic_id]

    def _advance(self, guard: Compare, entry: Entry, topic: TopicRecord) -> None:
        try:
            if topic.state is TopicState.CREATING:
                self._make(guard, entry, topic)
            elif topic.state is TopicState.DELETING:
                self._remove(guard, entry, topic)
        except TxnConflict as conflict:
            if conflict.compare.key == CONTROLLER_KEY:
                raise Replaced("another process is the controller") from conflict
            # The topic has changed since it was read; the next pass reads it again.

    def _make(self, guard: Compare, entry: Entry, topic: TopicRecord) -> None:
        now_ms = self._clock.steady_ms()
        age_ms = now_ms - self._first_seen.setdefault(topic.topic_id, now_ms)
        names = [f"{topic.topic_id}_{seq}" for seq in range(topic.shard_count)]
        found = self._store.range(f"{SHARDS}{topic.topic_id}_").entries
        there = {decode(each, ShardRecord).name for each in found}
        missing = [name for name in names if name not in there]
        nodes = self._loads() if missing else []
        if missing and not nodes:
            if age_ms >= CREATION_S * 1000:
                _log.warning("topic_without_nodes", topic=topic.name, waited_s=CREATION_S)
                self._put(guard, entry, topic, TopicState.DELETING)
            return
        leaders = self._place(nodes, len(missing)) if missing else []
        self._make_shards(guard, entry, topic, list(zip(missing, leaders, strict=True)))
        self._put(guard, entry, topic, TopicState.READY)
        _log.info("topic_made", topic=topic.name, shards=topic.shard_count)

    def _make_shards(
        self,
        guard: Compare,
        entry: Entry,
        topic: TopicRecord,
        shards: list[tuple[str, Replica]],
    ) -> None:
        # A shard and its segment are put; the counter is put beside them. Among the compares are
        # the guard, the topic and the counter.
        per_txn = max((self._store.txn_ops_max - 3) // 2, 1)
        for at in range(0, len(shards), per_txn):
            part = shards[at : at + per_txn]
            counter = self._store.get(NEXT_UID)
            uid = 1 if counter is None else decode(counter, Counter).value
            compares = [
                guard,
                Compare.unchanged(entry),
                Compare.absent(NEXT_UID) if counter is None else Compare.unchanged(counter),
                *(Compare.absent(shard_key(name)) for name, _ in part),
            ]
            puts: dict[str, Record] = {NEXT_UID: Counter(value=uid + len(part))}
            for number, (name, leader) in enumerate(part):
                puts[shard_key(name)] = ShardRecord(
                    name=name,
                    uid=uid + number,
                    active=0,
                    leader=leader.node,
                    topic_id=topic.topic_id,
                )
                puts[segment_key(name, 0)] = self._first_segment(leader, topic.config())
            self._store.txn(compares, {key: encode(record) for key, record in puts.items()})

    def _first_segment(self, leader: Replica, config: TopicConfig) -> SegmentRecord:
        meta = SegmentMeta(
            seq=0, base_offset=0, created_ms=self._clock.now_ms(), medium=medium_of_new(config)
        )
        return SegmentRecord(
            state=SegmentState.ACTIVE,
            epoch=meta.epoch,
            leader=leader.node,
            replicas=(leader.node,),
            isr=(leader,),
            start=meta.base_offset,
            created_ms=meta.created_ms,
            medium=meta.medium,
        )

    def _remove(self, guard: Compare, entry: Entry, topic: TopicRecord) -> None:
        """Removes what was made of a topic, which then is forgotten.

        A topic that was never ready has no bytes. Segments of others become deleted first: their
        nodes remove the bytes and then the records, after which a later pass goes on.
        """
        keys: list[str] = []
        held: list[Entry] = []
        for each in self._store.range(f"{SHARDS}{topic.topic_id}_").entries:
            shard = decode(each, ShardRecord)
            segments = self._store.range(segments_prefix(shard.name)).entries
            held += segments if topic.was_ready else ()
            keys += [*(segment.key for segment in segments), each.key]
        if held:
            self._mark_deleted(guard, held)
            return
        per_txn = self._store.txn_ops_max
        for at in range(0, len(keys), per_txn):
            self._store.txn([guard, Compare.unchanged(entry)], {}, keys[at : at + per_txn])
        self._store.txn([guard, Compare.unchanged(entry)], {}, [entry.key])
        _log.info("topic_removed", topic=topic.name, entries=len(keys))

    def _mark_deleted(self, guard: Compare, segments: Sequence[Entry]) -> None:
        marked = [
            (entry, record)
            for entry, record in ((entry, decode(entry, SegmentRecord)) for entry in segments)
            if record.state is not SegmentState.DELETED
        ]
        per_txn = self._store.txn_ops_max - 1
        for at in range(0, len(marked), per_txn):
            part = marked[at : at + per_txn]
            puts = {
                entry.key: encode(
                    msgspec.structs.replace(
                        record, state=SegmentState.DELETED, epoch=record.epoch + 1
                    )
                )
                for entry, record in part
            }
            self._store.txn([guard, *(Compare.unchanged(entry) for entry, _ in part)], puts)

    def _put(self, guard: Compare, entry: Entry, topic: TopicRecord, state: TopicState) -> None:
        was_ready = topic.was_ready or state is TopicState.READY
        changed = msgspec.structs.replace(topic, state=state, was_ready=was_ready)
        self._store.txn([guard, Compare.unchanged(entry)], {entry.key: encode(changed)})

    def _loads(self) -> list[NodeLoad]:
        counts: dict[int, int] = {}
        for entry in self._cache.below(SEGMENTS):
            segment = decode(entry, SegmentRecord)
            if segment.state is SegmentState.ACTIVE:
                counts[segment.leader] = counts.get(segment.leader, 0) + 1
        return [
            NodeLoad(
                replica=Replica(node.node, node.incarnation),
                leader_count=counts.get(node.node, 0),
            )
            for node in (decode(entry, NodeRecord) for entry in self._cache.below(NODES))
        ]


class ControllerThread:
    """Does the controller's work while the candidate is elected."""

    def __init__(self, candidate: Candidate, work: TopicWork, cache: MetaCache) -> None:
        self._candidate = candidate
        self._work = work
        self._woken = threading.Event()
        self._is_stopping = False
        for prefix in (TOPICS, NODES, CONTROLLER_KEY):
            cache.listen(prefix, self._wake)
        self._thread = threading.Thread(target=self._run, name="firn-controller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_stopping = True
        self._woken.set()
        self._thread.join()

    def _wake(self, _: list[Event]) -> None:
        self._woken.set()

    def _run(self) -> None:
        while not self._is_stopping:
            self._woken.wait(_LOOK_S)
            self._woken.clear()
            guard = self._candidate.guard()
            if guard is None or self._is_stopping:
                continue
            try:
                self._work.step(guard)
            except Replaced:
                self._candidate.note_replaced()
            except FirnError as error:
                _log.warning("controller_pass_failed", error=error)
