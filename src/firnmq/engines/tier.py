"""What engines know of tiered storage: copies of sealed segments, and how they are read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from firnmq.disk.files import Buffer
from firnmq.engines.transactions import AbortedTransaction
from firnmq.index import SegmentIndex

if TYPE_CHECKING:
    from firnmq.engines.segments import SegmentBytes, SegmentMeta
    from firnmq.engines.state import ShardSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCopy:
    """A segment's copy in the object store, or the attempt to make one."""

    upload_id: str
    """16 hexadecimal digits, random: two uploads of a segment never share an object."""
    key: str
    """Of its objects, without their suffixes (.seg, .idx, .mf)."""
    started_ms: int
    index_length: int = 0
    """Bytes of the .idx object, known when done."""
    index_head_length: int = 0
    """First bytes of the .idx object that hold offset and time points."""
    is_done: bool = False
    """Verified: the segment is tiered."""


class IndexDump(NamedTuple):
    """Everything that is kept beside a sealed segment's bytes."""

    points: Iterable[tuple[int, int, int]]
    """Offset, position, greatest timestamp before, in offset order."""
    keys: Iterable[tuple[bytes, int, int]]
    """Key as it stands in the index, offset of its newest record, position of the batch."""
    tags: Iterable[tuple[bytes, int, int, Sequence[int]]]
    """Tag as it stands in the index, first offset and position of a batch, relative offsets."""
    aborted: Iterable[AbortedTransaction]
    """Aborted transactions with their marker in the segment."""
    producers: Iterable[tuple[int, bytes]]
    """Producers where the segment ends: id, and state as in the index."""


class SealedSource(Protocol):
    """What an uploader reads."""

    @property
    def meta(self) -> SegmentMeta: ...

    def chunks(self, size: int) -> Iterator[Buffer]:
        """The bytes as stored."""

    def index(self) -> IndexDump: ...


class ColdMedium(Protocol):
    """Sealed segments that are read from their copies. Safe with threads."""

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes: ...

    def open_index(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentIndex: ...

    def forget(self, meta: SegmentMeta) -> None:
        """Drops what is cached of it."""
