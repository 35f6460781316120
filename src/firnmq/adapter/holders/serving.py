"""What this node answers about the segments that it holds, whichever node leads their shard."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import msgspec

from firnmq.adapter.catalog import TopicCatalog
from firnmq.adapter.forwarding.operations import Operation
from firnmq.adapter.holders import operations as ops
from firnmq.adapter.holders.operations import HeldName
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.peers import Request, Served
from firnmq.disk import call_blocking
from firnmq.disk.files import Buffer
from firnmq.engines import ShardSpec
from firnmq.engines.catalog.segments import Segment, SegmentGone, SegmentMeta
from firnmq.errors import InvalidArgument, StaleEpoch
from firnmq.index import IndexEntries
from firnmq.index.entries import KINDS
from firnmq.meta import Entry
from firnmq.meta.conversions import meta_of
from firnmq.meta.records import SegmentRecord, ShardRecord, decode, segment_key, shard_key

_THREADS = 4
"""Reads and look-ups of other nodes that are carried out at the same time."""

Handle = Callable[[Request], Awaitable[Awaitable[Served]]]


class HolderService:
    """Answers in threads of its own. Close it when done."""

    def __init__(
        self,
        cluster: Cluster,
        catalog: TopicCatalog,
        open_segment: Callable[[ShardSpec, SegmentMeta], Segment],
        read_snapshot: Callable[[ShardSpec, int], Buffer | None],
    ) -> None:
        """`open_segment` opens bytes and indexes that are here, `read_snapshot` gives what a shard
        knew at an offset, packed, if that is here."""
        self._read_snapshot = read_snapshot
        self._cluster = cluster
        self._catalog = catalog
        self._open_segment = open_segment
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="firn-holder")
        self.served_bytes = 0
        """Read by other nodes. Counted by several threads without a lock: nearly right."""
        self.handlers: dict[str, Handle] = {
            ops.SEGMENT_READ.name: self._handler(ops.SEGMENT_READ, self._read),
            ops.SEGMENT_FLOOR_OFFSET.name: self._handler(
                ops.SEGMENT_FLOOR_OFFSET,
                lambda segment, offset: _packed(segment.index.floor_offset(offset)),
            ),
            ops.SEGMENT_FLOOR_TIME.name: self._handler(
                ops.SEGMENT_FLOOR_TIME,
                lambda segment, timestamp_ms: _packed(segment.index.floor_time(timestamp_ms)),
            ),
            ops.SEGMENT_NEWEST_OF_KEY.name: self._handler(
                ops.SEGMENT_NEWEST_OF_KEY,
                lambda segment, key: _packed(segment.index.newest_of_key(key)),
            ),
            ops.SEGMENT_TAGGED.name: self._handler(ops.SEGMENT_TAGGED, _tagged),
            ops.SEGMENT_ROWS.name: self._handler(ops.SEGMENT_ROWS, _rows),
            ops.SEGMENT_SNAPSHOT.name: self._snapshot_handler(),
        }

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    def _handler(self, operation: Operation, answer: Callable[..., Served]) -> Handle:
        """Carries out an operation on the segment that its first argument names."""

        def look(name: HeldName, arguments: list[Any]) -> Served:
            segment = self._segment(name)
            try:
                return answer(segment, *arguments)
            except SegmentGone:
                raise _not_held(name) from None

        async def begin(request: Request) -> Awaitable[Served]:
            name, *arguments = operation.decode(request.arguments)
            return call_blocking(self._threads, look, name, arguments)

        return begin

    def _snapshot_handler(self) -> Handle:
        def look(name: HeldName) -> Served:
            spec, meta = self._held(name)
            packed = self._read_snapshot(spec, meta.end_offset)
            return Served(b"", () if packed is None else (packed,))

        async def begin(request: Request) -> Awaitable[Served]:
            (name,) = ops.SEGMENT_SNAPSHOT.decode(request.arguments)
            return call_blocking(self._threads, look, name)

        return begin

    def _segment(self, name: HeldName) -> Segment:
        return self._open_segment(*self._held(name))

    def _held(self, name: HeldName) -> tuple[ShardSpec, SegmentMeta]:
        """The segment, if it has these bytes and is here; StaleEpoch otherwise."""
        key = segment_key(name.shard, name.seq)
        # The cache may not have the last roll yet, which this node itself may have made.
        meta = self._meta(name, self._cluster.cache.get(key))
        if meta is None:
            meta = self._meta(name, self._cluster.store.get(key))
        entry = self._cluster.cache.get(shard_key(name.shard))
        if meta is None or entry is None:
            raise _not_held(name)
        record = decode(entry, ShardRecord)
        topic = self._catalog.registered(record.topic_id or "")
        if topic is None:
            raise _not_held(name)
        spec = ShardSpec(name=record.name, uid=record.uid, config=topic.config)
        return spec, meta

    def _meta(self, name: HeldName, entry: Entry | None) -> SegmentMeta | None:
        if entry is None:
            return None
        meta = meta_of(name.seq, decode(entry, SegmentRecord), self._cluster.node)
        is_here = meta.is_sealed and meta.is_local
        return meta if is_here and (meta.slot, meta.crc) == (name.slot, name.crc) else None

    def _read(self, segment: Segment, position: int, size: int) -> Served:
        if not 0 < size <= ops.READ_BYTES_MAX or not 0 <= position <= segment.meta.length - size:
            raise InvalidArgument("size", f"{size:,} bytes from {position:,} on cannot be read")
        found: list[Buffer] = []
        while size > 0:
            buffers = segment.bytes.read(position, size)
            got = sum(map(len, buffers))
            if not got:
                raise SegmentGone(segment.bytes.where, f"ends at {position:,}")
            found += buffers
            position += got
            size -= got
        self.served_bytes += sum(map(len, found))
        return Served(b"", found)


def _tagged(segment: Segment, tag: bytes, start_offset: int) -> Served:
    hits = islice(segment.index.tagged(tag, start_offset), ops.TAG_HITS_MAX)
    return _packed([(hit.base_offset, hit.position, list(hit.relative_offsets)) for hit in hits])


def _rows(segment: Segment, kind: int, after: bytes | None) -> Served:
    if kind not in KINDS:
        raise InvalidArgument("kind", f"{kind} is no index of a segment")
    assert isinstance(segment.index, IndexEntries), "what is here has its index here"
    found, size = [], 0
    for row in segment.index.rows(kind, after):
        found.append(row)
        size += len(row[0]) + len(row[1])
        if size >= ops.ROWS_BYTES_MAX:
            break
    return _packed(found)


def _packed(value: object) -> Served:
    return Served(msgspec.msgpack.encode(value))


def _not_held(name: HeldName) -> StaleEpoch:
    return StaleEpoch(f"{name.shard}/{name.seq}", -1, -1)
