"""Segments: their states, their durable description, and what a medium must be able to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, NamedTuple, Protocol

from firnmq.config import TopicConfig
from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import FirnError
from firnmq.index import IndexSink, Point, SegmentIndex


class Frame(NamedTuple):
    """Batches of one segment that are to be written to a shared file."""

    shard_uid: int
    place: int
    position: int
    """Of the first batch in the segment."""
    buffers: Sequence[Buffer]
    length: int
    is_copy: bool = False
    """Moved out of a file that is mostly dead. It counts only where its segment still has it."""


class SegmentState(Enum):
    ACTIVE = "active"
    FENCING = "fencing"
    """Leadership was taken away, and replicas are deciding where the segment ends."""
    SEALED = "sealed"
    TIERED = "tiered"
    """Sealed, with a finished copy in the object store."""
    DELETED = "deleted"


TRANSITIONS: dict[SegmentState, frozenset[SegmentState]] = {
    SegmentState.ACTIVE: frozenset({SegmentState.FENCING, SegmentState.SEALED}),
    SegmentState.FENCING: frozenset({SegmentState.SEALED}),
    SegmentState.SEALED: frozenset({SegmentState.TIERED, SegmentState.DELETED}),
    SegmentState.TIERED: frozenset({SegmentState.SEALED, SegmentState.DELETED}),
    SegmentState.DELETED: frozenset(),
}
"""From each state, where a segment can go. Everything else is a defect."""


_SLOT_SHIFT = 31
"""Segments are numbered from 0 on and stay below this bit."""


class Medium(Enum):
    """Where a segment's bytes are."""

    NATIVE = "native"
    """Where the shard's engine keeps them."""
    FILE = "file"
    """In a file: a memory segment that was spilled."""
    SHARED = "shared"
    """In frames of files that many shards share: segment.layout=shared-file."""


def medium_of_new(config: TopicConfig) -> Medium:
    """Where the next segment of a shard begins."""
    return Medium.SHARED if config.shares_files else Medium.NATIVE


class Successor(NamedTuple):
    """The node that leads the next segment, in place of this one."""

    node: int
    incarnation: int


class IllegalTransition(FirnError):
    """A segment was asked to go where its state does not lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentMeta:
    """A segment's durable description. Offsets are half-open: [base_offset, end_offset)."""

    seq: int
    base_offset: int
    created_ms: int
    state: SegmentState = SegmentState.ACTIVE
    medium: Medium = Medium.NATIVE
    epoch: int = 0
    leader_epoch: int = 0
    """Of the shard's leader when the segment was opened; its batches name it."""
    end_offset: int = -1
    """Known when sealed."""
    length: int = 0
    """Bytes, known when sealed."""
    crc: int = 0
    """CRC32C of all bytes, known when sealed."""
    max_timestamp: int = -1
    sealed_ms: int = -1
    transactions: tuple[OpenTransaction, ...] = ()
    """Those open at the end, known when sealed: what a scan of the next segment begins with."""
    first_expiry_ms: int = 0
    """No record expires by its own header before this, known when sealed."""
    slot: int = 0
    """Which of its two places holds the bytes and the indexes, 0 or 1: compaction writes the
    other one and then changes this."""
    compacted_ms: int = -1
    """Since when it holds at most one record of each key, -1 if it may hold more."""
    has_gaps: bool = False
    """Records were removed from it, so its batches need not follow each other."""
    tombstone_count: int = 0
    """Records without a value that compaction has left in it."""
    tier: TierCopy | None = None
    """Its copy in the object store, under way or finished; kept while objects may be there."""
    holders: tuple[int, ...] = ()
    """The nodes of a cluster that have its bytes and indexes; none of a tiered segment that is only
    in the store, nor where the node is alone."""
    is_local: bool = True
    """Whether its bytes and indexes are here. Otherwise its holders have them, or the store."""
    is_led: bool = True
    """Whether this node appends to it, or did until it was sealed."""

    @property
    def is_sealed(self) -> bool:
        """Whether its bytes never change any more: sealed or tiered."""
        return self.state is SegmentState.SEALED or self.state is SegmentState.TIERED

    @property
    def is_on_nodes(self) -> bool:
        """Whether this node or another one has it. Otherwise only the object store does."""
        return self.is_local or bool(self.holders)

    @property
    def newest_ms(self) -> int:
        """The newest timestamp; of records without one, when the segment was sealed."""
        return self.max_timestamp if self.max_timestamp >= 0 else self.sealed_ms

    @property
    def is_compacted(self) -> bool:
        return self.compacted_ms >= 0

    @property
    def place(self) -> int:
        """The number under which rows and index entries are kept."""
        return self.seq | self.slot << _SLOT_SHIFT

    @property
    def other_place(self) -> int:
        """Where the segment is rewritten to, or where it was before."""
        return self.seq | (1 - self.slot) << _SLOT_SHIFT

    def become_sealed(
        self,
        *,
        end_offset: int,
        length: int,
        crc: int,
        max_timestamp: int,
        now_ms: int,
        first_expiry_ms: int = 0,
        transactions: tuple[OpenTransaction, ...] = (),
    ) -> SegmentMeta:
        return self._become(
            SegmentState.SEALED,
            transactions=transactions,
            end_offset=end_offset,
            length=length,
            crc=crc,
            max_timestamp=max_timestamp,
            first_expiry_ms=first_expiry_ms,
            sealed_ms=now_ms,
        )

    def become_deleted(self) -> SegmentMeta:
        return self._become(SegmentState.DELETED)

    def with_copy(self, copy: TierCopy | None) -> SegmentMeta:
        """The same sealed segment with a copy under way, or with none any more."""
        if self.state is not SegmentState.SEALED:
            raise IllegalTransition(f"segment {self.seq} is {self.state.value}, cannot be copied")
        return dataclasses.replace(self, epoch=self.epoch + 1, tier=copy)

    def become_tiered(self, copy: TierCopy) -> SegmentMeta:
        """The same segment, its copy finished."""
        return self._become(SegmentState.TIERED, tier=copy)

    def become_untiered(self) -> SegmentMeta:
        """The same segment without its copy, which is not whole any more; it must be here."""
        if not self.is_local or self.state is not SegmentState.TIERED:
            raise IllegalTransition(f"segment {self.seq} has no copy to do without")
        return self._become(SegmentState.SEALED, tier=None)

    def become_remote(self) -> SegmentMeta:
        """The same tiered segment, only in the store."""
        if self.state is not SegmentState.TIERED:
            raise IllegalTransition(f"segment {self.seq} is {self.state.value}, not in the store")
        return dataclasses.replace(self, epoch=self.epoch + 1, is_local=False, holders=())

    def become_spilled(self) -> SegmentMeta:
        """The same sealed segment, its bytes now in a file."""
        if self.state is not SegmentState.SEALED:
            raise IllegalTransition(f"segment {self.seq} is {self.state.value}, cannot be spilled")
        return dataclasses.replace(self, medium=Medium.FILE)

    def become_compacted(self, **changes: object) -> SegmentMeta:
        """The same sealed segment with fewer records, or known to need no fewer."""
        if self.state is not SegmentState.SEALED or self.tier is not None:
            raise IllegalTransition(
                f"segment {self.seq} is {self.state.value} or copied, cannot be compacted"
            )
        return dataclasses.replace(self, epoch=self.epoch + 1, **changes)  # type: ignore[arg-type]

    def _become(self, state: SegmentState, **changes: object) -> SegmentMeta:
        if state not in TRANSITIONS[self.state]:
            raise IllegalTransition(
                f"segment {self.seq} is {self.state.value}, cannot become {state.value}"
            )
        return dataclasses.replace(self, state=state, epoch=self.epoch + 1, **changes)  # type: ignore[arg-type]


class Rows:
    """What a medium wants written at the end of the turn: rows with the turn's index entries, or
    frames of shared files before them."""

    __slots__ = ("frames", "rows")

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes]] = []
        self.frames: list[Frame] = []

    def __bool__(self) -> bool:
        return bool(self.rows or self.frames)


class SegmentBytes(Protocol):
    """Where a segment's bytes are kept: its batches, one after the other, and perhaps a
    preallocation behind the last.

    One appender at a time; readers at any time, below the high watermark.
    """

    is_memory: ClassVar[bool]
    """Whether reading never waits."""
    is_file: ClassVar[bool]
    """Whether `range_at` gives ranges."""

    @property
    def where(self) -> str:
        """Names the place in errors."""

    def append(
        self, buffers: Sequence[Buffer], position: int, rows: Rows, *, durable: bool
    ) -> bool:
        """Puts buffers, one batch each, at the position, which is the end.

        Asked to do so durably, it may; it returns whether it has.
        """

    def sync(self) -> None:
        """Makes what was appended durable, as far as the medium does that by itself."""

    def preallocate(self, position: int) -> bool:
        """Preallocates for the next small durable appends, after one that ended here, if the medium
        can. Returns whether it did."""

    def syncs_quickly(self, end: int) -> bool:
        """Whether a small durable append that ends here takes so little time that an event loop may
        wait for it."""

    def release_preallocation(self, position: int) -> None:
        """Ends at the position again, without a preallocation; durable with the next `sync`."""

    def read(self, position: int, size: int) -> list[Buffer]:
        """Bytes from a batch border on, about `size` of them, in one or more buffers.

        The last buffer may end within a batch. Raises SegmentGone when they were dropped.
        """

    def read_nowait(self, position: int, size: int) -> Buffer | None:
        """Exactly these bytes, or None where that might mean waiting for a device."""

    def range_at(self, position: int, size: int) -> FileRange:
        """These bytes as a part of a file, where they are in one: see `is_file`."""

    def nearer(self, point: Point, offset: int) -> Point:
        """The last batch border before the offset that is known without reading, or `point`."""

    def length(self) -> int:
        """Bytes there are, synced or not, with what is preallocated."""

    def truncate(self, length: int) -> None:
        """Shortens it to a batch border, durably."""

    def drop(self) -> None:
        """Removes all bytes; those already gone are no error."""


class SegmentGone(FirnError):
    """The segment was dropped while it was being read; look again at the shard's bounds."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} {reason}")
        self.where = where


class Segment:
    """A segment at run time: description, bytes, index. Replaced, not changed."""

    __slots__ = ("bytes", "index", "meta")

    def __init__(self, meta: SegmentMeta, content: SegmentBytes, index: SegmentIndex) -> None:
        self.meta = meta
        self.bytes = content
        self.index = index


class SegmentCopy(Protocol):
    """A sealed segment being written beside the one that it will replace."""

    @property
    def sink(self) -> IndexSink:
        """Takes the index entries of the batches that are appended next."""

    def append(self, batches: list[Buffer]) -> None: ...

    def finish(self, meta: SegmentMeta) -> Segment:
        """The segment with its final description, durable where the medium is."""

    def drop(self) -> None:
        """Removes everything again."""
