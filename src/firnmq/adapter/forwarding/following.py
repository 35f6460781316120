"""The engines of a node follow the metadata: they take over the shards that it gives to this node,
and drop those that are gone."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from typing import NamedTuple

from firnmq.adapter.catalog import TopicCatalog
from firnmq.engines import Engine, ShardSpec
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta import Event, MetaCache
from firnmq.meta.records import SHARDS, ShardRecord, decode

_log = EventLogger("cluster")


class _Held(NamedTuple):
    storage_type: str
    uid: int


class ShardFollower:
    """Works in a thread of its own, because dropping a shard removes files. Close it when done."""

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
        self._work: queue.SimpleQueue[list[Event] | threading.Event | None] = queue.SimpleQueue()
        """Changes of shards, in order; an event is set once everything before it is done."""
        self._mine: dict[str, _Held] = {}
        """Shards that this node leads."""
        self._is_first = True
        self._thread = threading.Thread(target=self._run, name="firn-shards", daemon=True)
        self._thread.start()
        cache.listen(SHARDS, self._work.put)

    def wait(self, revision: int, timeout_s: float) -> bool:
        """Whether the engines have in time what the metadata says up to a revision."""
        self._cache.wait_for_revision(revision, timeout_s)
        done = threading.Event()
        self._work.put(done)
        return done.wait(timeout_s)

    def close(self) -> None:
        self._work.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            if work is None:
                return
            if isinstance(work, threading.Event):
                work.set()
                continue
            if self._is_first:
                self._is_first = False
                self._drop_unknown(work)
            for event in work:
                try:
                    self._follow(event)
                except FirnError as error:
                    _log.error("shard_not_followed", shard=event.key, error=str(error))
            gone = [each.key.removeprefix(SHARDS) for each in work if each.entry is None]
            if gone:
                try:
                    self._forget_offsets(gone)
                except FirnError as error:
                    _log.error("offsets_not_forgotten", error=str(error))

    def _follow(self, event: Event) -> None:
        name = event.key.removeprefix(SHARDS)
        held = self._mine.get(name)
        record = None if event.entry is None else decode(event.entry, ShardRecord)
        if held is not None and (record is None or record.uid != held.uid):
            # Another number is another shard: the deletion of the first was not told, because
            # the store had forgotten it.
            del self._mine[name]
            self._engines[held.storage_type].discard(name)
        if record is not None and name not in self._mine and record.leader == self._node:
            self._take_over(record)

    def _drop_unknown(self, first: list[Event]) -> None:
        """Drops shards that were deleted after the engines were opened, and before this follower
        began to listen."""
        records = (decode(event.entry, ShardRecord) for event in first if event.entry is not None)
        known = {record.name: record.uid for record in records}
        for engine in self._engines.values():
            for spec in engine.list_shard():
                if known.get(spec.name) != spec.uid:
                    engine.discard(spec.name)

    def _take_over(self, record: ShardRecord) -> None:
        topic = self._catalog.registered(record.topic_id or "")
        if topic is None:
            return  # It was deleted since.
        storage_type = topic.config.storage_type
        self._mine[record.name] = _Held(storage_type, record.uid)
        self._engines[storage_type].adopt(
            ShardSpec(
                name=record.name,
                uid=record.uid,
                config=topic.config,
                epoch=record.epoch,
                revision=topic.revision,
            )
        )
