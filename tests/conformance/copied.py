"""An object store that is a dictionary, and what reads segments from it: for tests of engines."""

from __future__ import annotations

import dataclasses
import itertools
import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines import Engine, ShardSpec
from firnmq.engines.catalog.segments import Rows, SegmentGone, SegmentMeta
from firnmq.engines.tiering.api import IndexDump, SealedSource, TierCopy
from firnmq.errors import FirnError
from firnmq.index import KeyHit, Point, TagHit
from firnmq.index.layout import term
from firnmq.record import crc32c

CHUNK_BYTES = 700
"""Small, and no divisor of anything: batches begin in one chunk and end in another."""
_numbers = itertools.count(1)


class Copied(NamedTuple):
    """A segment's objects."""

    data: bytes
    index: IndexDump


class CopiedStore:
    """A ColdMedium over copies of bytes and indexes."""

    def __init__(self) -> None:
        self.copies: dict[str, Copied] = {}
        self.refusal: FirnError | None = None
        """What every read raises meanwhile."""
        self.gate = threading.Event()
        """Reads wait for it."""
        self.gate.set()
        self.waiting = threading.Event()
        """Set once a read waits at the gate."""
        self.read_count = 0
        self.forgotten: list[str] = []

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> CopiedBytes:
        return CopiedBytes(self, _key(meta))

    def open_index(self, spec: ShardSpec, meta: SegmentMeta) -> CopiedIndex:
        return CopiedIndex(self, _key(meta))

    def forget(self, meta: SegmentMeta) -> None:
        self.forgotten.append(_key(meta))

    def get(self, key: str) -> Copied:
        self.read_count += 1
        self.waiting.set()
        assert self.gate.wait(60), "a test has left the gate closed"
        if self.refusal is not None:
            raise self.refusal
        copied = self.copies.get(key)
        if copied is None:
            raise SegmentGone(key, "is not there")
        return copied


def begin(engine: Engine, shard: str, seq: int) -> tuple[TierCopy, SegmentMeta]:
    """Begins a copy; with it comes the segment as it was."""
    number = next(_numbers)
    copy = TierCopy(upload_id=f"{number:016x}", key=f"{shard}/{seq}-{number:016x}", started_ms=0)
    return copy, engine.begin_copy(shard, seq, copy)


def copy_bytes(store: CopiedStore, source: SealedSource, copy: TierCopy) -> TierCopy:
    """Puts a segment into the store; the copy as it is to be finished."""
    data = b"".join(source.chunks(CHUNK_BYTES))
    meta = source.meta
    assert (len(data), crc32c(data)) == (meta.length, meta.crc)
    dump = source.index()
    whole = dump._replace(keys=tuple(dump.keys), tags=tuple(dump.tags))
    store.copies[copy.key] = Copied(data, whole)
    return dataclasses.replace(copy, index_length=1, index_head_length=1)


def upload(store: CopiedStore, engine: Engine, shard: str, seq: int) -> SegmentMeta:
    """Copies a segment from beginning to end."""
    copy, before = begin(engine, shard, seq)
    if before.tier is not None:
        store.copies.pop(before.tier.key, None)
    return engine.finish_copy(shard, seq, copy_bytes(store, engine.sealed_source(shard, seq), copy))


class CopiedBytes:
    """A SegmentBytes."""

    is_memory: ClassVar[bool] = False
    is_file: ClassVar[bool] = False

    def __init__(self, store: CopiedStore, key: str) -> None:
        self._store = store
        self._key = key

    @property
    def where(self) -> str:
        return f"copy {self._key}"

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        raise AssertionError("nobody appends to a copy")

    def sync(self) -> None:
        raise AssertionError("nobody syncs a copy")

    def preallocate(self, position: int) -> bool:
        return False

    def syncs_quickly(self, end: int) -> bool:
        return False

    def release_preallocation(self, position: int) -> None:
        """There is none."""

    def read(self, position: int, size: int) -> list[Buffer]:
        return [self._store.get(self._key).data[position : position + size]]

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None

    def range_at(self, position: int, size: int) -> FileRange:
        raise AssertionError("a copy is no file")

    def nearer(self, point: Point, offset: int) -> Point:
        return point

    def length(self) -> int:
        return len(self._store.get(self._key).data)

    def truncate(self, length: int) -> None:
        raise AssertionError("nobody cuts a copy")

    def drop(self) -> None:
        raise AssertionError("engines do not remove objects")


class CopiedIndex:
    """A SegmentIndex that looks at everything."""

    def __init__(self, store: CopiedStore, key: str) -> None:
        self._store = store
        self._key = key

    def floor_offset(self, offset: int) -> Point | None:
        points = self._store.get(self._key).index.points
        at = bisect_right(points, offset, key=lambda point: point[0]) - 1
        return None if at < 0 else Point(points[at][0], points[at][1])

    def floor_time(self, timestamp_ms: int) -> Point | None:
        points = self._store.get(self._key).index.points
        older = [point for point in points if point[2] < timestamp_ms]
        return Point(older[-1][0], older[-1][1]) if older else None

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        for stored, offset, position in self._store.get(self._key).index.keys:
            if stored == term(key):
                return KeyHit(offset, position)
        return None

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        for stored, base_offset, position, offsets in self._store.get(self._key).index.tags:
            if stored == term(tag) and base_offset + offsets[-1] >= start_offset:
                yield TagHit(base_offset, position, offsets)


def _key(meta: SegmentMeta) -> str:
    assert meta.tier is not None
    return meta.tier.key
