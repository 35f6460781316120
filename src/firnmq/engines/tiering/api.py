"""What engines know of object stores: the copy that a sealed segment has there, and what reads it.

Engines never talk to a store. They note in a segment's metadata how far its copy is, give an
uploader the bytes and the indexes, and read what is only in the store through a ColdMedium.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple, NoReturn, Protocol

from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.errors import NodeUnavailable, NoObjectStore
from firnmq.index import KeyHit, Point, SegmentIndex, TagHit
from firnmq.record.deletion import Deletion

if TYPE_CHECKING:
    from firnmq.engines.catalog.segments import Rows, SegmentBytes, SegmentMeta
    from firnmq.engines.catalog.state import ShardSpec
    from firnmq.engines.shardlog.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCopy:
    """A segment's copy in an object store, under way or finished."""

    upload_id: str
    """16 hexadecimal digits, chosen at random for every attempt."""
    key: str
    """Of its objects, without their suffix (.seg, .idx, .mf)."""
    started_ms: int
    index_length: int = 0
    """Bytes of its index object, known when it is done."""
    index_head_length: int = 0
    """First bytes of the index object: those with the points by offset and time."""
    is_done: bool = False
    """Whether all its objects are there and were verified."""


class IndexDump(NamedTuple):
    """All four indexes of a sealed segment, and what else a reader of its records has to know.

    Keys and tags are as they stand in the index: long ones end in a hash.
    """

    points: Sequence[tuple[int, int, int]]
    """Offset, position, and the greatest timestamp before it; in order."""
    keys: Iterable[tuple[bytes, int, int]]
    """Key, offset of its newest record in the segment, position of that one's batch; by key."""
    tags: Iterable[tuple[bytes, int, int, Sequence[int]]]
    """Tag, base offset and position of a batch, offsets relative to that; by tag and offset."""
    aborted: tuple[AbortedTransaction, ...]
    """Transactions with an offset in the segment that were aborted."""
    producers: tuple[tuple[int, bytes], ...]
    """Idempotent producers at its end: producer id, and its state as in the index."""
    deletions: tuple[tuple[int, Deletion], ...] = ()
    """Entries of deletions in the segment, with their offsets."""


class SealedSource(Protocol):
    """A sealed segment as an uploader reads it. Safe with threads; reading it blocks."""

    @property
    def meta(self) -> SegmentMeta: ...

    def chunks(self, size: int) -> Iterator[Buffer]:
        """The bytes as they are stored, `size` at a time but for the last."""

    def index(self) -> IndexDump: ...


class RemoteIndex(SegmentIndex, Protocol):
    """An index of a segment that other nodes hold, and that can be read as a whole."""

    def points(self) -> list[tuple[int, int, int]]: ...

    def keys(self) -> Iterator[tuple[bytes, int, int]]: ...

    def tags(self) -> Iterator[tuple[bytes, int, int, list[int]]]: ...

    def snapshot(self) -> Snapshot | None:
        """What the shard knew at the segment's end, if a holder has that."""


class RemoteMedium(Protocol):
    """Reads segments that are not here: those in the store, or those that other nodes hold. Safe
    with threads."""

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes: ...

    def open_index(
        self, spec: ShardSpec, meta: SegmentMeta, *, fetches: bool = True
    ) -> SegmentIndex:
        """`fetches`: whether a lookup by offset also fetches the bytes there, for a caller that is
        about to read them."""


class ColdMedium(RemoteMedium, Protocol):
    """Reads segments that are only in the store."""

    def forget(self, meta: SegmentMeta) -> None:
        """Drops what is cached of a segment."""


class Unreachable:
    """Bytes and index, in one, of a segment in an object store that is not configured, or on nodes
    that this process does not ask.

    Whatever would have to read it raises NoObjectStore or NodeUnavailable; the rest of the chain
    can be used.
    """

    is_memory: ClassVar[bool] = False
    is_file: ClassVar[bool] = False

    def __init__(self, spec: ShardSpec, meta: SegmentMeta) -> None:
        self._shard = spec.name
        self._meta = meta

    @property
    def where(self) -> str:
        return self._meta.tier.key if self._meta.tier is not None else "object store"

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        self._refuse()

    def sync(self) -> None:
        self._refuse()

    def preallocate(self, position: int) -> bool:
        self._refuse()

    def syncs_quickly(self, end: int) -> bool:
        self._refuse()

    def release_preallocation(self, position: int) -> None:
        self._refuse()

    def read(self, position: int, size: int) -> list[Buffer]:
        self._refuse()

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        return None

    def range_at(self, position: int, size: int) -> FileRange:
        self._refuse()

    def nearer(self, point: Point, offset: int) -> Point:
        return point

    def length(self) -> int:
        return self._meta.length

    def truncate(self, length: int) -> None:
        self._refuse()

    def drop(self) -> None:
        """What is in the store is not ours to remove."""

    def floor_offset(self, offset: int) -> Point | None:
        self._refuse()

    def floor_time(self, timestamp_ms: int) -> Point | None:
        self._refuse()

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        self._refuse()

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        self._refuse()

    def _refuse(self) -> NoReturn:
        if self._meta.holders:
            reason = f"it holds segment {self._meta.seq} of {self._shard}"
            raise NodeUnavailable(self._meta.holders[0], reason)
        raise NoObjectStore(self._shard, self._meta.seq)


def cold_bytes(cold: RemoteMedium | None, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes:
    """Bytes of a segment that is not here."""
    return Unreachable(spec, meta) if cold is None else cold.open_bytes(spec, meta)


def cold_index(cold: RemoteMedium | None, spec: ShardSpec, meta: SegmentMeta) -> SegmentIndex:
    """Indexes of a segment that is not here."""
    return Unreachable(spec, meta) if cold is None else cold.open_index(spec, meta)
