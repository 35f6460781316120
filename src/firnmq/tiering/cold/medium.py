"""Cold segments: those whose bytes and indexes are only in the object store.

`ColdStorage` is the engines' ColdMedium. A read blocks until the store has answered, so reads run
in their own threads, never in those that append.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Rows, SegmentGone, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.errors import ObjectNotFound
from firnmq.index import Point
from firnmq.tiering.cold.cache import CacheStatistics, ChunkCache, RangeStore
from firnmq.tiering.cold.extents import ObjectPart
from firnmq.tiering.cold.index import ColdIndex, IndexHeads
from firnmq.tiering.cold.read_ahead import AHEAD_S, ReadAhead
from firnmq.tiering.cold.throttle import ColdThrottle
from firnmq.tiering.format import object_names

CHUNK_BYTES = 4 * 1024 * 1024
"""One fetch of a sequential reader: at 50 ms to the first byte, smaller fetches are slower."""
FIRST_BYTES = 256 * 1024
"""The most that is fetched for the first read of a reader: more would delay its first record."""
READ_AHEAD = 8
"""Chunks fetched ahead of the one that is being read: the number of concurrent fetches."""
HEADS_BYTES = 64 * 1024 * 1024
"""Parsed heads of indexes in memory."""

_WAIT_S_MAX = 0.002
"""For one read: little beside a round trip to the store, and enough for an append to finish."""

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
        throttle: ColdThrottle | None = None,
    ) -> None:
        """`memory_bytes` limits the cache in memory; None is enough for two sequential readers. The
        queue of writes to the disk cache may hold as much again."""
        self._throttle = throttle or ColdThrottle()
        fetch_rate = self._throttle.fetch_limiter.bytes_per_s
        if fetch_rate is not None:
            read_ahead = min(read_ahead, max(int(fetch_rate * AHEAD_S) // chunk_bytes, 1))
        if memory_bytes is None:
            memory_bytes = 2 * (read_ahead + 2) * chunk_bytes
        self._cache = ChunkCache(
            store,
            cache_directory,
            disk_bytes=cache_bytes,
            memory_bytes=memory_bytes,
            chunk_bytes=chunk_bytes,
            # The first read is two pieces: at least one of them lies after its start.
            piece_bytes=first_bytes // 2,
            threads=read_ahead + 2,
            throttle=self._throttle,
        )
        self._read_ahead = ReadAhead(self._cache, read_ahead, self._throttle)
        self._heads = IndexHeads(heads_bytes)
        self._opened: weakref.WeakValueDictionary[tuple[str, int], ColdBytes] = (
            weakref.WeakValueDictionary()
        )
        """By shard and base offset, to prefetch the segment after the one that is being read."""

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> ColdBytes:
        return self.open_part(spec.name, meta, _segment_part(meta))

    def open_part(self, shard: str, meta: SegmentMeta, part: ObjectPart) -> ColdBytes:
        """A segment's bytes under whatever name they have where they are."""
        opened = ColdBytes(self, shard, meta.end_offset, part)
        self._opened[shard, meta.base_offset] = opened
        return opened

    def open_index(self, spec: ShardSpec, meta: SegmentMeta, *, fetches: bool = True) -> ColdIndex:
        source = _IndexObject(self._cache, meta)
        fetcher = _Fetcher(self._cache, meta) if fetches else None
        return ColdIndex(source, meta, self._heads, fetcher)

    def prime(self, meta: SegmentMeta, index_head: Buffer) -> None:
        """Caches an index's head, so that the first cold read need not fetch it.

        `index_head` may continue beyond the head.
        """
        head = _index_head(meta)
        self._cache.put(head, memoryview(index_head)[: head.length])

    def forget(self, meta: SegmentMeta) -> None:
        """Drops a segment from the cache."""
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
        """Waits until everything fetched is in the disk cache."""
        self._cache.flush()

    def close(self) -> None:
        """Stops all threads; reads raise Closed from now on."""
        self._cache.close()

    def read(self, bytes_of: ColdBytes, position: int, size: int) -> Buffer:
        """Bytes from the start of a batch on: at least the whole first batch if it fits in `size`.

        Two kinds of read return fewer bytes than asked for. A read that continues no stream returns
        early, for a fast first record. A read that crosses the end of a chunk stops there, unless
        its first batch crosses it: joining two chunks copies the bytes.
        """
        part, cache = bytes_of.part, self._cache
        wanted = min(size, part.length - position)
        if wanted <= 0:
            return b""
        self._throttle.wait_for_appends(_WAIT_S_MAX)
        first = (position // cache.piece_bytes + 2) * cache.piece_bytes - position
        bytes_before = self._read_ahead.bytes_before(part, position)
        # A read of one record may take several reads from the index point on; that is no scan.
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
            cache.prefetch(part, position + left, position + wanted, is_scan=is_scan)
            data = cache.read(part, position, left, is_scan=is_scan)
            batch_bytes = _batch_bytes(data)
            if 0 < batch_bytes <= left:
                return data
            if batch_bytes:
                wanted = min(wanted, batch_bytes)
        return cache.read(part, position, wanted, is_scan=is_scan)

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
    """Cached files are not sent as file ranges: a file holds some pieces of the segment, and most
    responses would span several files."""

    def __init__(self, storage: ColdStorage, shard: str, end_offset: int, part: ObjectPart) -> None:
        self._storage = storage
        self.shard = shard
        self.end_offset = end_offset
        self.part = part

    @property
    def where(self) -> str:
        return self._storage.where(self.part)

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        raise NotImplementedError(f"{self.where} never changes")

    def sync(self) -> None:
        """Nothing to do: objects are durable."""

    def preallocate(self, position: int) -> bool:
        return False

    def syncs_quickly(self, end: int) -> bool:
        return False

    def release_preallocation(self, position: int) -> None:
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
        """Drops the cached bytes; the mover removes the objects."""
        self._storage.distrust(self.part)

    def distrust(self) -> None:
        """Drops the cached bytes after a failed check, so that the next read asks the store."""
        self._storage.distrust(self.part)


class _Fetcher:
    """Prefetches one segment; a SegmentFetcher."""

    __slots__ = ("_cache", "_head", "_part")

    def __init__(self, cache: ChunkCache, meta: SegmentMeta) -> None:
        self._cache = cache
        self._part = _segment_part(meta)
        self._head = _index_head(meta)

    @property
    def is_index_cached(self) -> bool:
        return self._cache.has(self._head)

    def fetch(self, start: int, end: int) -> None:
        self._cache.prefetch(self._part, start, end)


class _IndexObject:
    """An .idx object through the cache, with its head cached separately; an IndexSource."""

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
    return ObjectPart(meta.tier.key + object_names.SEGMENT, 0, meta.length)


def _index_head(meta: SegmentMeta) -> ObjectPart:
    assert meta.tier is not None
    return ObjectPart(
        meta.tier.key + object_names.INDEX, 0, meta.tier.index_head_length, is_head=True
    )


def _index_rest(meta: SegmentMeta) -> ObjectPart:
    assert meta.tier is not None
    head_length = meta.tier.index_head_length
    length = max(meta.tier.index_length - head_length, 0)
    return ObjectPart(meta.tier.key + object_names.INDEX, head_length, length)


def _batch_bytes(data: Buffer) -> int:
    """Size of the batch that begins here; 0 if its header is incomplete."""
    if len(data) < _BATCH_LENGTH.size:
        return 0
    length: int = _BATCH_LENGTH.unpack_from(data)[0]
    return max(length, 0) + _BATCH_LENGTH.size
