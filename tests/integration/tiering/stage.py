"""A store with an object store behind it, small segments, and numbered records."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from firnmq import NewRecord
from firnmq.clock import Clock
from firnmq.config import TieringConfig
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.errors import KeyNotFound, StoreUnavailable
from firnmq.server import LocalStore, Store, TopicHandle
from firnmq.tiering.format.object_names import parse
from firnmq.tiering.move.mover import TierMover
from firnmq.tiering.stores import ObjectInfo, ObjectStore
from firnmq.tiering.stores.api import every_key

T = TypeVar("T")
TOPIC = "history"
FIRST_MS = 1_700_000_000_000
TIMEOUT_S = 60
OPTIONS: dict[str, object] = {"tiering": "on", "segment.bytes": 1536, "memory.overflow": "spill"}


class Stage:
    """One data directory, opened without anything in the background."""

    def __init__(
        self,
        path: Path,
        tiering: TieringConfig,
        *,
        clock: Clock | None = None,
        wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        **local: Any,
    ) -> None:
        from firnmq.server.tier import open_object_store

        self.local = LocalStore(
            path,
            background=False,
            tiering=tiering,
            clock=clock,
            open_objects=lambda config: wrap(open_object_store(config)),
            **local,
        )
        self.store = Store(self.local)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *error: object) -> None:
        self.store.close()

    @property
    def mover(self) -> TierMover:
        assert self.local.tier is not None
        return self.local.tier.mover

    @property
    def objects(self) -> ObjectStore:
        assert self.local.tier is not None
        return self.local.tier.store

    def create(self, name: str = TOPIC, shards: int = 1, **options: object) -> TopicHandle:
        dotted = {key.replace("_", "."): value for key, value in options.items()}
        return self.store.create_topic(name, shards=shards, options={**OPTIONS, **dotted})

    def fill(self, first: int, count: int, name: str = TOPIC) -> None:
        """Records in batches of four, and the last segment sealed."""
        topic = self.store.topic(name)
        for at in range(first, first + count, 4):
            topic.append([record_of(n) for n in range(at, min(at + 4, first + count))], shard=0)
        topic.roll()
        self.local.housekeep()  # Spills what a memory topic has sealed.
        self.wait_for_cache()

    def wait_for_cache(self) -> None:
        """Waits until the metadata cache, which the mover follows, has seen all changes."""
        self.local.cache.wait_for_revision(self.local.meta.range("nodes/").revision, 30)

    def work(self, rounds: int = 8) -> None:
        """Enough rounds for everything that is due to be uploaded, dropped and removed."""
        for _ in range(rounds):
            self.mover.request_upload()
            self.mover.work()
            self.wait_for_cache()
            status = self.mover.status()
            if not status.waiting_segments and not status.dead_segments:
                self.mover.work()
                self.wait_for_cache()
                return

    def work_until(self, states: set[tuple[SegmentState, bool]]) -> None:
        """Rounds until all sealed segments are so: where a store has little time to answer, some
        may fail."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.states() != states:
            assert time.monotonic() < deadline, self.mover.status()
            self.work()

    def metas(self, name: str = TOPIC) -> list[SegmentMeta]:
        return list(self.store.topic(name).status(0).segments)

    def states(self, name: str = TOPIC) -> set[tuple[SegmentState, bool]]:
        """State and place of all sealed segments."""
        return {(meta.state, meta.is_local) for meta in self.metas(name) if meta.is_sealed}

    def object_keys(self, suffix: str = "") -> list[str]:
        """Objects of segments."""
        found = (info.key for info in self.objects.list(""))
        return [key for key in found if parse(key) is not None and key.endswith(suffix)]


TIERED_HERE = (SegmentState.TIERED, True)
TIERED_THERE = (SegmentState.TIERED, False)
SEALED_HERE = (SegmentState.SEALED, True)


def once_available(call: Callable[[], T]) -> T:
    """What a call gives that may not be answered in time at first."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return call()
        except StoreUnavailable:
            assert time.monotonic() < deadline


def record_of(number: int) -> NewRecord:
    return NewRecord(
        key=b"key-%d" % (number % 7),
        value=b"value-%d-" % number + b"x" * (number % 90),
        tags=("even",) if number % 2 == 0 else (),
        timestamp_ms=FIRST_MS + number * 1000,
    )


def check(topic: TopicHandle, numbers: Sequence[int], first_number: int = 0) -> None:
    """Exactly these records, by all four ways; number n is at offset n - first_number."""
    found = {record.offset: record for record in topic.records()}
    assert sorted(found) == [number - first_number for number in numbers]
    for number in numbers:
        record, wanted = found[number - first_number], record_of(number)
        assert (record.key, record.value, record.tags) == (wanted.key, wanted.value, wanted.tags)
    for key in range(7):
        newest = max((n for n in numbers if n % 7 == key), default=None)
        assert _by_key(topic, b"key-%d" % key) == (
            None if newest is None else newest - first_number
        )
    tagged = [record.offset for record in topic.read_by_tag("even", max_records=10_000)]
    assert tagged == [n - first_number for n in numbers if n % 2 == 0]
    for number in (*numbers[:3], *numbers[-3:]):
        assert topic.offset_at(FIRST_MS + number * 1000) == number - first_number


def _by_key(topic: TopicHandle, key: bytes) -> int | None:
    try:
        return topic.read_by_key(key, shard=0).offset
    except KeyNotFound:
        return None


class Wrapped:
    """An ObjectStore that tells a watcher of every call before and after it.

    What the watcher raises is raised to the caller.
    """

    def __init__(
        self, inner: ObjectStore, watch: Callable[[str, str, str], None] = lambda *_: None
    ) -> None:
        self.inner = inner
        self.watch = watch
        """Called with "before" or "after", the name of the call, and the key."""

    @property
    def url(self) -> str:
        return self.inner.url

    def put(self, key: str, data: Any, *, if_absent: bool = True) -> ObjectInfo:
        return self._do("put", key, lambda: self.inner.put(key, data, if_absent=if_absent))

    def upload(self, key: str, chunks: Any, *, size: int) -> ObjectInfo:
        return self._do("upload", key, lambda: self.inner.upload(key, chunks, size=size))

    def get_range(self, key: str, start: int, size: int) -> Any:
        return self._do("get_range", key, lambda: self.inner.get_range(key, start, size))

    def head(self, key: str) -> ObjectInfo:
        return self._do("head", key, lambda: self.inner.head(key))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return iter(self._do("list", prefix, lambda: [*self.inner.list(prefix)]))

    def delete(self, keys: Sequence[str]) -> None:
        self._do("delete", ",".join(keys), lambda: self.inner.delete(keys))

    def sweep(
        self, prefix: str, *, before_ms: int, is_meant: Callable[[str], bool] = every_key
    ) -> int:
        return self._do(
            "sweep",
            prefix,
            lambda: self.inner.sweep(prefix, before_ms=before_ms, is_meant=is_meant),
        )

    def close(self) -> None:
        self.inner.close()

    def _do(self, name: str, key: str, call: Callable[[], Any]) -> Any:
        self.watch("before", name, key)
        result = call()
        self.watch("after", name, key)
        return result
