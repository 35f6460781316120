"""Reads sealed segments from the nodes that hold them, by the same path as cold ones.

Bytes come through the cache in memory, with read-ahead and the throttle of cold reads; look-ups are
asked of the holder's own index. A holder that is away fails the reads that need it, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from firnmq.adapter.forwarding.operations import Operation
from firnmq.adapter.holders import operations as ops
from firnmq.adapter.holders.operations import HeldName
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.disk import run_blocking
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentGone, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.errors import Closed, NodeUnavailable, StaleEpoch, TimedOut
from firnmq.index import IndexEntries, KeyHit, Point, TagHit
from firnmq.index.entries import Row
from firnmq.tiering.cold.cache import CacheStatistics
from firnmq.tiering.cold.extents import ObjectPart
from firnmq.tiering.cold.medium import ColdBytes, ColdStorage
from firnmq.tiering.cold.throttle import ColdThrottle

CACHE_DIRECTORY = "peer-cache"
_CHUNK_BYTES = 1024 * 1024
"""One fetch of a sequential reader: a network of nodes answers at once, so little ahead will do."""
_FIRST_BYTES = 128 * 1024
_READ_AHEAD = 4
"""Chunks fetched ahead of the one that is being read."""
_SEPARATOR = "/"


class PeerMedium:
    """A RemoteMedium of the engines. Safe with threads; its reads block. Close it when done."""

    def __init__(
        self,
        cluster: Cluster,
        path: Path,
        is_appending: Callable[[], bool] = lambda: False,
        append_count: Callable[[], int] = lambda: 0,
    ) -> None:
        """`path` is the data directory. Nothing is kept there: the bytes are on a disk already, and
        copies of them would take the place of others."""
        self._asker = _Asker(cluster)
        self._storage = ColdStorage(
            self._asker,
            path / CACHE_DIRECTORY,
            cache_bytes=0,
            chunk_bytes=_CHUNK_BYTES,
            first_bytes=_FIRST_BYTES,
            read_ahead=_READ_AHEAD,
            throttle=ColdThrottle(is_appending, append_count=append_count),
        )

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> ColdBytes:
        part = ObjectPart(_key_of(HeldName.of(spec.name, meta), meta.holders), 0, meta.length)
        return self._storage.open_part(spec.name, meta, part)

    def open_index(self, spec: ShardSpec, meta: SegmentMeta, *, fetches: bool = True) -> HeldIndex:
        return HeldIndex(self._asker, spec, meta)

    def statistics(self) -> CacheStatistics:
        return self._storage.statistics()

    def close(self) -> None:
        """Reads raise Closed from now on."""
        self._storage.close()


class HeldIndex(IndexEntries):
    """A RemoteIndex at the nodes that hold the segment."""

    __slots__ = ("_asker", "_meta", "_name", "_spec")

    def __init__(self, asker: _Asker, spec: ShardSpec, meta: SegmentMeta) -> None:
        self._asker = asker
        self._spec = spec
        self._meta = meta
        self._name = HeldName.of(spec.name, meta)

    def rows(self, kind: int, after: bytes | None) -> list[Row]:
        found: list[Row] = self._ask(ops.SEGMENT_ROWS, kind, after)
        return found

    def snapshot(self) -> Snapshot | None:
        operation = ops.SEGMENT_SNAPSHOT
        packed: Buffer = self._asker.ask(operation, self._name, self._meta.holders, (), _raw)
        if not len(packed):
            return None
        return Snapshot.unpack(bytes(packed), self._spec.uid, self._meta.end_offset)

    def floor_offset(self, offset: int) -> Point | None:
        found = self._ask(ops.SEGMENT_FLOOR_OFFSET, offset)
        return None if found is None else Point(*found)

    def floor_time(self, timestamp_ms: int) -> Point | None:
        found = self._ask(ops.SEGMENT_FLOOR_TIME, timestamp_ms)
        return None if found is None else Point(*found)

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        found = self._ask(ops.SEGMENT_NEWEST_OF_KEY, key)
        return None if found is None else KeyHit(*found)

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        last: TagHit | None = None
        while True:
            found = self._ask(ops.SEGMENT_TAGGED, tag, start_offset)
            for each in found:
                hit = TagHit(*each)
                if last is None or hit.base_offset > last.base_offset:
                    yield hit
                    last = hit
            if len(found) < ops.TAG_HITS_MAX or last is None:
                return
            start_offset = last.last_offset + 1

    def _ask(self, operation: Operation, *arguments: object) -> Any:
        holders = self._meta.holders
        return self._asker.ask(operation, self._name, holders, arguments, operation.result_of)


class _Asker:
    """Asks the holders of a segment, one after the other until one answers; a RangeStore."""

    url = "nodes:"

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def get_range(self, key: str, start: int, size: int) -> Buffer:
        name, holders = _name_of(key)
        found: Buffer = self.ask(ops.SEGMENT_READ, name, holders, (start, size), _raw)
        return found

    def ask(
        self,
        operation: Operation,
        name: HeldName,
        holders: Sequence[int],
        arguments: Sequence[object],
        decode: Callable[[memoryview, memoryview], Any],
    ) -> Any:
        packed = operation.encode(name, *arguments)
        failure: NodeUnavailable | TimedOut | None = None
        for node in holders:
            try:
                return run_blocking(self._ask(node, operation, packed, decode))
            except Closed:
                raise
            except (NodeUnavailable, TimedOut) as error:
                failure = error
            except StaleEpoch:
                raise SegmentGone(_where(name, holders), "is not there") from None
        assert failure is not None, "a segment that is not here has holders"
        raise failure

    async def _ask(
        self,
        node: int,
        operation: Operation,
        packed: bytes,
        decode: Callable[[memoryview, memoryview], Any],
    ) -> Any:
        return await self._cluster.network.call(
            node, operation.name, packed, decode, timeout_s=operation.timeout_s
        )


def _raw(value: memoryview, raw: memoryview) -> Buffer:
    return raw


def _where(name: HeldName, holders: Sequence[int]) -> str:
    return f"{_Asker.url}/{_key_of(name, holders)}"


def _key_of(name: HeldName, holders: Sequence[int]) -> str:
    """The name of a segment's bytes in the cache and in errors."""
    nodes = ",".join(map(str, holders))
    return _SEPARATOR.join((nodes, name.shard, f"{name.seq}-{name.slot}-{name.crc:08x}"))


def _name_of(key: str) -> tuple[HeldName, tuple[int, ...]]:
    nodes, shard, rest = key.split(_SEPARATOR)
    seq, slot, crc = rest.split("-")
    name = HeldName(shard, int(seq), int(slot), int(crc, 16))
    return name, tuple(map(int, nodes.split(",")))
