"""The engines of a node follow the metadata. They take over the shards that it gives to this node,
give up those that another node leads, and keep of these the segments that this node holds."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from firnmq.adapter.catalog import TopicCatalog
from firnmq.engines import Engine, ShardSpec
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.errors import FirnError, NotLeader
from firnmq.eventlog import EventLogger
from firnmq.meta import Event, MetaCache
from firnmq.meta.conversions import meta_of
from firnmq.meta.records import (
    SEGMENTS,
    SHARDS,
    SegmentRecord,
    ShardRecord,
    decode,
    segment_seq_of,
    segments_prefix,
    shard_key,
    shard_of_segment,
)
from firnmq.meta.shard_records import leads_alone

_UNSEALED = (SegmentState.ACTIVE, SegmentState.FENCING)
_log = EventLogger("cluster")

_Work = list[Event] | frozenset[str] | threading.Event | None
"""Changes of shards; shards whose segments have changed; what is set once everything before it is
done; the end."""


class ShardFollower:
    """Works in a thread of its own, because dropping segments removes files. Close it when done.

    A role follows from the records alone, so it is the same after a restart, and after changes
    that this node has missed.
    """

    def __init__(
        self,
        node: int,
        cache: MetaCache,
        catalog: TopicCatalog,
        engines: Mapping[str, Engine],
        forget_offsets: Callable[[list[str]], None],
    ) -> None:
        """`forget_offsets` removes what groups have committed in shards that are gone."""
        self._node = node
        self._cache = cache
        self._catalog = catalog
        self._engines = engines
        self._forget_offsets = forget_offsets
        self._work: queue.SimpleQueue[_Work] = queue.SimpleQueue()
        """In order."""
        self._led: dict[str, ShardSpec] = {}
        self._held: dict[str, ShardSpec] = {}
        """Shards of other nodes that this node holds segments of, or held some since it began."""
        self._is_first = True
        self._thread = threading.Thread(target=self._run, name="firn-shards", daemon=True)
        self._thread.start()
        cache.listen(SHARDS, self._work.put)
        cache.listen(SEGMENTS, self._note_segments)

    def wait(self, revision: int, timeout_s: float) -> bool:
        """Whether the engines have in time what the metadata says up to a revision."""
        self._cache.wait_for_revision(revision, timeout_s)
        done = threading.Event()
        self._work.put(done)
        return done.wait(timeout_s)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _note_segments(self, events: list[Event]) -> None:
        """Queues the shards of which this node may hold less than before."""
        shards = {
            shard
            for event in events
            if (shard := shard_of_segment(event.key)) in self._held
            or event.entry is None
            or self._node in decode(event.entry, SegmentRecord).replicas
        }
        if shards:
            self._work.put(frozenset(shards))

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            if isinstance(work, threading.Event):
                work.set()
            elif isinstance(work, frozenset):
                for shard in sorted(work):
                    self._attempt(shard, lambda shard=shard: self._hold(shard))  # type: ignore[misc]
            else:
                self._follow_shards(work)

    def _follow_shards(self, events: list[Event]) -> None:
        if self._is_first:
            self._is_first = False
            self._drop_unknown(events)
        for event in events:
            name = event.key.removeprefix(SHARDS)
            self._attempt(name, lambda event=event: self._follow(event))  # type: ignore[misc]
        gone = [each.key.removeprefix(SHARDS) for each in events if each.entry is None]
        if gone:
            try:
                self._forget_offsets(gone)
            except FirnError as error:
                _log.error("offsets_not_forgotten", error=str(error))

    def _attempt(self, shard: str, step: Callable[[], None]) -> None:
        try:
            step()
        except FirnError as error:
            _log.error("shard_not_followed", shard=shard, error=str(error))

    def _follow(self, event: Event) -> None:
        name = event.key.removeprefix(SHARDS)
        known = self._led.get(name) or self._held.get(name)
        record = None if event.entry is None else decode(event.entry, ShardRecord)
        if known is not None and (record is None or record.uid != known.uid):
            # Another number is another shard: the deletion of the first was not told, because
            # the store had forgotten it.
            self._led.pop(name, None)
            self._held.pop(name, None)
            self._engine(known).discard(known)
        if record is None:
            return
        led = self._led.get(name)
        is_led = leads_alone(self._cache, record, self._node)
        if led is not None and not (is_led and record.epoch == led.epoch):
            del self._led[name]
            self._release(led, record)
            self._hold(name)
        if is_led and name not in self._led:
            self._take_over(record)

    def _drop_unknown(self, first: list[Event]) -> None:
        """Drops shards that were deleted, and gives up those that another node was given, after the
        engines were opened, and before this follower began to listen."""
        records = (decode(event.entry, ShardRecord) for event in first if event.entry is not None)
        known = {record.name: record for record in records}
        for engine in self._engines.values():
            for spec in engine.list_shard():
                record = known.get(spec.name)
                if record is None or record.uid != spec.uid:
                    engine.discard(spec)
                elif record.epoch != spec.epoch or not leads_alone(self._cache, record, self._node):
                    self._release(spec, record)

    def _take_over(self, record: ShardRecord) -> None:
        spec = self._spec(record)
        if spec is None:
            return  # Its topic was deleted since.
        self._led[record.name] = spec
        self._held.pop(record.name, None)
        self._engine(spec).adopt(spec)

    def _release(self, spec: ShardSpec, record: ShardRecord) -> None:
        leader = None if record.leader == self._node else record.leader
        refusal = NotLeader(spec.name, self._node, leader)
        self._engine(spec).release(spec.name, spec.epoch, refusal)

    def _hold(self, name: str) -> None:
        """Keeps the segments of a shard of another node that this node holds, and no other ones."""
        entry = self._cache.get(shard_key(name))
        if entry is None or name in self._led:
            return
        record = decode(entry, ShardRecord)
        spec = self._spec(record)
        metas = self._segments(name)
        if spec is None:
            return
        if record.leader == self._node or any(each.state in _UNSEALED for each in metas):
            # The driver of replication has its log. It is removed once the shard is deleted.
            self._held.setdefault(name, spec)
            return
        if not (metas or name in self._held):
            return
        self._held[name] = spec
        self._engine(spec).hold(spec, metas)

    def _segments(self, shard: str) -> list[SegmentMeta]:
        """The sealed segments of a shard that this node holds."""
        entries = self._cache.below(segments_prefix(shard))
        metas = (
            meta_of(segment_seq_of(entry.key), decode(entry, SegmentRecord), self._node)
            for entry in entries
        )
        return [each for each in metas if each.is_local and each.state is not SegmentState.DELETED]

    def _spec(self, record: ShardRecord) -> ShardSpec | None:
        topic = self._catalog.registered(record.topic_id or "")
        if topic is None:
            return None
        return ShardSpec(
            name=record.name,
            uid=record.uid,
            config=topic.config,
            epoch=record.epoch,
            revision=topic.revision,
        )

    def _engine(self, spec: ShardSpec) -> Engine:
        return self._engines[spec.config.storage_type]
