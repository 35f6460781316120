"""Cold segments: those whose bytes and indexes are in the object store alone.

`ColdStorage` is the engines' ColdMedium. Reading blocks until the store has answered, so it is
done in threads of its own, never in those that append.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.segments import Rows, SegmentGone, SegmentMeta
from firnmq.engines.state import ShardSpec
from firnmq.errors import ObjectNotFound
from firnmq.index import Point
from firnmq.tiering import keys
from firnmq.tiering.cache import CacheStatistics, ChunkCache, Limiter, RangeStore
from firnmq.tiering.coldindex import ColdIndex, IndexHeads
from firnmq.tiering.courtesy import Courtesy
from firnmq.tiering.extents import ObjectPart
from firnmq.tiering.readahead import AHEAD_S, ReadAhead

CHUNK_BYTES = 4 * 1024 * 1024
"""Fetched at once by a reader that goes on: with 50 ms to the first byte less would be slower."""
FIRST_BYTES = 256 * 1024
"""At most fetched for a reader that has just come: more would delay its first record."""
READ_AHEAD = 8
"""Chunks fetched beyond the one that is being read: as many as can be under way at a time."""
HEADS_BYTES = 64 * 1024 * 1024
"""Parsed heads of indexes in memory."""

_PATIENCE_S = 0.002
"""For one read: little for one that goes to a store, and much for an append."""

_BATCH_LENGTH = struct.Struct(
    ">"
    "8x"  # base_offset
    "i"  # batch_length: of what follows
)


class ColdStorage:
    """Reads segments from their copies, through a cache. Safe with threads."""

    def __init__(
        self,
        store: RangeStore,
        cache_directory: Path,
        *,
        cache_bytes: int,
        chunk_bytes: int = CHUNK_BYTES,
        first_bytes: int = FIRST_BYTES,
        read_ahead: int = READ_AHEAD,
        memory_bytes: int | None = None,
        heads_bytes: int = HEADS_BYTES,
        rate: Limiter | None = None,
        courtesy: Courtesy | None = None,
    ) -> None:
        """`memory_bytes`: of what was fetched last, beside the disk; None: enough for two who read
        at full depth. As much again may wait to be written to the disk."""
        self._courtesy = courtesy or Courtesy()
        if rate is not None and rate.bytes_per_s is not None:
            read_ahead = min(read_ahead, max(int(rate.bytes_per_s * AHEAD_S) // chunk_bytes, 1))
        if memory_bytes is None:
            memory_bytes = 2 * (read_ahead + 2) * chunk_bytes
        self._cache = ChunkCache(
            store,
            cache_directory,
            disk_bytes=cache_bytes,
            memory_bytes=memory_bytes,
            chunk_bytes=chunk_bytes,
            # Two pieces are the first read, so that half of it is left where it begins late.
            piece_bytes=first_bytes // 2,
            threads=read_ahead + 2,
            limiter=rate,
            courtesy=self._courtesy,
        )
        self._read_ahead = ReadAhead(self._cache, read_ahead, self._courtesy)
        self._heads = IndexHeads(heads_bytes)
        self._opened: weakref.WeakValueDictionary[tuple[str, int], ColdBytes] = (
            weakref.WeakValueDictionary()
        )
        """By shard and base offset: whoever reads one to its end goes on with the next."""

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> ColdBytes:
        opened = ColdBytes(self, spec.name, meta)
        self._opened[spec.name, meta.base_offset] = opened
        return opened

    def open_index(self, spec: ShardSpec, meta: SegmentMeta, *, fetches: bool = True) -> ColdIndex:
        source = _IndexObject(self._cache, meta)
        fetcher = _Fetcher(self._cache, meta) if fetches else None
        return ColdIndex(source, meta, self._heads, fetcher)

    def prime(self, meta: SegmentMeta, index_head: Buffer) -> None:
        """Takes in an index's head, so that the first cold read need not fetch it.

        More of the object than its head may be given.
        """
        head = _index_head(meta)
        self._cache.put(head, memoryview(index_head)[: head.length])

    def forget(self, meta: SegmentMeta) -> None:
        """Drops what is cached of a segment."""
        if meta.tier is None:
            return
        part = _segment_part(meta)
        self._read_ahead.forget(part)
        self._cache.forget(part)
        index = _IndexObject(self._cache, meta)
        index.distrust()
        self._heads.forget(index.where)

    def statistics(self) -> CacheStatistics:
        return self._cache.statistics()

    def flush(self) -> None:
        """Waits until what was fetched is in the cache on disk."""
        self._cache.flush()

    def close(self) -> None:
        """Stops all threads; reads raise Closed from now on."""
        self._cache.close()

    def read(self, bytes_of: ColdBytes, position: int, size: int) -> Buffer:
        """Bytes from a batch border on: at least the first batch if `size` has room for it.

        Fewer than asked for come where nobody has read just before, and where a chunk ends: what
        reaches into the next one has to be copied, so only the batch in between does.
        """
        part, cache = bytes_of.part, self._cache
        wanted = min(size, part.length - position)
        if wanted <= 0:
            return b""
        self._courtesy.give_way(_PATIENCE_S)
        first = (position // cache.piece_bytes + 2) * cache.piece_bytes - position
        bytes_before = self._read_ahead.bytes_before(part, position)
        # One record may be some reads away from where the index says.
        is_scan = bytes_before >= cache.chunk_bytes
        if wanted > first and not bytes_before:
            data = cache.read(part, position, first)
            batch_bytes = _batch_bytes(data)
            if batch_bytes <= first:
                wanted = first
            else:
                wanted = min(wanted, batch_bytes)
        following = self._opened.get((bytes_of.shard, bytes_of.end_offset))
        self._read_ahead.move(
            part, position, position + wanted, None if following is None else following.part
        )
        left = cache.chunk_bytes - position % cache.chunk_bytes
        if wanted > left:
            cache.prefetch(part, position + left, position + wanted, is_paced=is_scan)
            data = cache.read(part, position, left, is_paced=is_scan)
            batch_bytes = _batch_bytes(data)
            if 0 < batch_bytes <= left:
                return data
            if batch_bytes:
                wanted = min(wanted, batch_bytes)
        return cache.read(part, position, wanted, is_paced=is_scan)

    def read_nowait(self, part: ObjectPart, position: int, size: int) -> Buffer | None:
        return self._cache.read_nowait(part, position, size)

    def distrust(self, part: ObjectPart) -> None:
        self._cache.forget(part)

    def where(self, part: ObjectPart) -> str:
        return self._cache.where(part)


class ColdBytes:
    """A segment's bytes in the store; a SegmentBytes that is only read."""

    __slots__ = ("__weakref__", "_storage", "end_offset", "part", "shard")

    is_memory: ClassVar[bool] = False
    is_file: ClassVar[bool] = False
    """Ranges of cached files are not given out: a file holds some pieces of the segment, and most
    of what is sent would begin in one and end in another."""

    def __init__(self, storage: ColdStorage, shard: str, meta: SegmentMeta) -> None:
        self._storage = storage
        self.shard = shard
        self.end_offset = meta.end_offset
        self.part = _segment_part(meta)

    @property
    def where(self) -> str:
        return self._storage.where(self.part)

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        raise NotImplementedError(f"{self.where} never changes")

    def sync(self) -> None:
        """The store has done that."""

    def make_room(self, position: int) -> bool:
        return False

    def give_back_room(self, position: int) -> None:
        """There is none."""

    def read(self, position: int, size: int) -> list[Buffer]:
        try:
            data = self._storage.read(self, position, size)
        except ObjectNotFound:
            raise SegmentGone(self.where, "is not there") from None
        return [data] if len(data) else []

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return self._storage.read_nowait(self.part, position, size)

    def range_at(self, position: int, size: int) -> FileRange:
        raise NotImplementedError(f"{self.where} is no file")

    def nearer(self, point: Point, offset: int) -> Point:
        return point

    def length(self) -> int:
        return self.part.length

    def truncate(self, length: int) -> None:
        raise NotImplementedError(f"{self.where} never changes")

    def drop(self) -> None:
        """Drops what is cached; the objects are removed by whoever put them there."""
        self._storage.distrust(self.part)

    def distrust(self) -> None:
        """Drops what is cached, so that the next read asks the store: for whoever has found bytes
        to be bad."""
        self._storage.distrust(self.part)


class _Fetcher:
    """Fetches parts of one segment ahead; a SegmentFetcher."""

    __slots__ = ("_cache", "_head", "_part")

    def __init__(self, cache: ChunkCache, meta: SegmentMeta) -> None:
        self._cache = cache
        self._part = _segment_part(meta)
        self._head = _index_head(meta)

    @property
    def is_index_near(self) -> bool:
        return self._cache.has(self._head)

    def fetch(self, start: int, end: int) -> None:
        self._cache.prefetch(self._part, start, end)


class _IndexObject:
    """An .idx object through the cache, its head apart from the rest; an IndexSource."""

    __slots__ = ("_cache", "_head", "_rest")

    def __init__(self, cache: ChunkCache, meta: SegmentMeta) -> None:
        self._cache = cache
        self._head = _index_head(meta)
        self._rest = _index_rest(meta)

    @property
    def where(self) -> str:
        return self._cache.where(self._head)

    @property
    def length(self) -> int:
        return self._head.length + self._rest.length

    @property
    def head_length(self) -> int:
        return self._head.length

    def read(self, position: int, size: int) -> Buffer:
        try:
            return self._read(position, size)
        except ObjectNotFound:
            raise SegmentGone(self.where, "is not there") from None

    def _read(self, position: int, size: int) -> Buffer:
        start = self._head.length
        if position + size <= start:
            return self._cache.read(self._head, position, size)
        if position >= start:
            return self._cache.read(self._rest, position - start, size)
        head = self._cache.read(self._head, position, start - position)
        return b"".join((head, self._cache.read(self._rest, 0, position + size - start)))

    def distrust(self) -> None:
        self._cache.forget(self._head)
        self._cache.forget(self._rest)


def _segment_part(meta: SegmentMeta) -> ObjectPart:
    assert meta.tier is not None
    return ObjectPart(meta.tier.key + keys.SEGMENT, 0, meta.length)


def _index_head(meta: SegmentMeta) -> ObjectPart:
    assert meta.tier is not None
    return ObjectPart(meta.tier.key + keys.INDEX, 0, meta.tier.index_head_length, is_head=True)


def _index_rest(meta: SegmentMeta) -> ObjectPart:
    assert meta.tier is not None
    head_length = meta.tier.index_head_length
    length = max(meta.tier.index_length - head_length, 0)
    return ObjectPart(meta.tier.key + keys.INDEX, head_length, length)


def _batch_bytes(data: Buffer) -> int:
    """Size of the batch that begins here, 0 if that cannot be said."""
    if len(data) < _BATCH_LENGTH.size:
        return 0
    length: int = _BATCH_LENGTH.unpack_from(data)[0]
    return max(length, 0) + _BATCH_LENGTH.size
