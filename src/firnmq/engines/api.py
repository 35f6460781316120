"""What an engine does, and the values it takes and gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from firnmq.config import AcksAll, TopicConfig
from firnmq.disk import FileRange, Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.tiering.api import SealedSource, TierCopy
from firnmq.errors import FirnError, NotLeader
from firnmq.index import SegmentIndex
from firnmq.record import Columns, NewRecord, Record, columns_of_records

if TYPE_CHECKING:
    import pyarrow as pa

    from firnmq.engines.open_log import OpenLog
    from firnmq.engines.shardlog.rolling.steps import Move

T = TypeVar("T")
READ_RECORDS_DEFAULT = 1000
READ_BYTES_DEFAULT = 8 * 1024 * 1024


class AdapterOffsetStrategy(Enum):
    """What a lookup by time answers when no record is as young as asked for."""

    EARLIEST = "earliest"
    LATEST = "latest"


class Acks(IntEnum):
    """What an append is acknowledged after. Every one is as durable as the topic asks."""

    NONE = 0
    """It is not: the sender does not wait, so the append has no deadline."""
    LEADER = 1
    """This node has it."""
    ALL = -1
    """Every replica in sync has it: with one replica the same."""
    QUORUM = -2
    """A majority of all replicas has it: with one replica the same. It may not be readable yet."""


def meant_by(acks: Acks, config: TopicConfig) -> Acks:
    """What a topic means by what its client asks for: acks.all=quorum."""
    is_quorum = acks is Acks.ALL and config.acks_all is AcksAll.QUORUM
    return Acks.QUORUM if is_quorum else acks


class Appended(NamedTuple):
    """Where one request's records are: [base_offset, next_offset)."""

    base_offset: int
    next_offset: int
    append_time_ms: int = -1
    """The records' timestamp, where the topic gives them the time of their append."""


class Page:
    """Some records of a shard, in offset order, and where to go on."""

    __slots__ = ("columns", "end_offset", "next_offset", "start_offset")

    def __init__(
        self, columns: tuple[Columns, ...], *, next_offset: int, start_offset: int, end_offset: int
    ) -> None:
        self.columns = columns
        self.next_offset = next_offset
        """Offset from which the next read goes on."""
        self.start_offset = start_offset
        """First readable offset of the shard."""
        self.end_offset = end_offset
        """Records below it can be read: the next record's offset, or where the earliest
        transaction that has not ended begins."""

    @classmethod
    def from_records(
        cls, records: Sequence[Record], *, next_offset: int, start_offset: int, end_offset: int
    ) -> Page:
        """A page of plain records in offset order, for adapters that have no batches."""
        return cls(
            (columns_of_records(records),) if records else (),
            next_offset=next_offset,
            start_offset=start_offset,
            end_offset=end_offset,
        )

    def __len__(self) -> int:
        return sum(map(len, self.columns))

    def records(self) -> list[Record]:
        return [record for columns in self.columns for record in columns.records()]

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records())

    def to_arrow(self) -> pa.Table:
        """The records as an Arrow table."""
        import pyarrow as pa

        from firnmq.record.arrow import SCHEMA

        return pa.Table.from_batches([each.to_arrow() for each in self.columns], SCHEMA)


@dataclass(frozen=True, slots=True, kw_only=True)
class RawPage:
    """Whole batches as they are stored, the first one holding the offset asked for."""

    batches: tuple[Buffer, ...]
    """One or more batches in each buffer."""
    next_offset: int
    start_offset: int
    end_offset: int
    stable_offset: int
    """First offset of the earliest transaction that has not ended, or the end."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Transactions to pass over among the batches, if only what is committed was asked for."""


class StoredPage(NamedTuple):
    """Whole batches as they are to be sent, the first one holding the offset asked for."""

    contents: tuple[Buffer | FileRange, ...]
    """One or more batches in each; ranges only for callers that ask for them."""
    next_offset: int
    start_offset: int
    end_offset: int
    stable_offset: int
    """First offset of the earliest transaction that has not ended, or the end."""
    aborted: tuple[AbortedTransaction, ...] = ()
    """Transactions to pass over among the batches, if only what is committed was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """A shard's bounds and segments at one moment."""

    spec: ShardSpec
    start_offset: int
    end_offset: int
    stable_offset: int
    """Records below it are shown; from it on, a transaction has not ended yet."""
    length_bytes: int
    max_timestamp: int
    """Greatest timestamp of all records, below 0 if there is none."""
    segments: tuple[SegmentMeta, ...]
    failure: str | None
    quorum_mark: int | None = None
    """Of a shard with replicas: most of them have the records below."""


class ProducerStatus(NamedTuple):
    """What a shard remembers of an idempotent or transactional producer."""

    producer_id: int
    epoch: int
    last_sequence: int
    """-1 if none of its batches is known."""
    stored_ms: int
    """When something of it was last stored."""
    transaction_start: int
    """The first offset of its open transaction; -1 without one."""


@dataclass(frozen=True, slots=True)
class SurveyedSegment:
    """A segment as a planner of reads sees it: [meta.base_offset, end_offset), `length` bytes."""

    meta: SegmentMeta
    end_offset: int
    length: int
    path: str | None
    """A file that begins with its bytes, if there is one; that of a sealed one has no others."""
    index: SegmentIndex


class Survey(NamedTuple):
    """Everything that readers of a shard's own bytes have to know, at one moment."""

    spec: ShardSpec
    start_offset: int
    end_offset: int
    stable_offset: int
    segments: tuple[SurveyedSegment, ...]
    holes: frozenset[int]
    """Offsets of deleted records."""
    dead_keys: dict[bytes, int]
    """Records with the key and an offset below the number are deleted."""
    aborted: tuple[AbortedTransaction, ...]
    """Transactions below the stable offset that do not count."""
    retired: int | None = None
    """The last of the deletions among these that are kept for the shard's table alone; None: it has
    no table."""


@dataclass(slots=True, kw_only=True)
class CompactionCounts:
    """What compaction has done so far. Owned by the thread that compacts."""

    pass_count: int = 0
    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


class AppendEngine(Protocol):
    """Appends to shards and deletes records. What is not awaited blocks."""

    async def submit(
        self, shard: str, batch: Buffer, acks: Acks = ..., deadline_s: float | None = None
    ) -> Ticket[Appended]:
        """Appends an encoded batch, in the order of calls: the one entry. It is queued when this
        returns, and the ticket completes when it is acknowledged.

        The batch is stored whole or not at all; a writable buffer is patched in place: hand it
        over. With a deadline (`time.monotonic`), AppendTimedOut if it is still queued then, and a
        ticket of an event loop fails with AppendTimedOut if it is not acknowledged then, which
        means unknown.
        """

    async def append(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        """Encodes records and submits them: one batch, stored whole or not at all, whatever fails
        and also after a restart. LimitExceeded if they do not fit one (`max.batch.bytes`)."""

    async def append_marker(
        self, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended: ...

    def open_log(self, shard: str) -> OpenLog | None:
        """A shard's log for an event loop, which submits without waiting and watches; None if it
        has to be opened first."""

    def delete_by_key(self, shard: str, key: bytes) -> int | None: ...

    def delete_by_offset(self, shard: str, offsets: Sequence[int]) -> list[int]: ...

    def delete_records_before(self, shard: str, offset: int) -> int: ...


class ReadEngine(Protocol):
    """Reads shards. Everything blocks.

    A read returns whole records, at least one if there is one, and never a record that was deleted
    or has expired, nor one whose transaction was aborted or has not ended. Only `read_batches` and
    `read_stored` show those, to clients that judge by themselves.
    """

    def list_shard(self) -> list[ShardSpec]: ...

    def find_shard(self, shard: str) -> ShardSpec | None:
        """The shard, if it is one of this engine's. Never waits."""

    def opened(self) -> list[str]:
        """Shards that are open. Never waits."""

    def status(self, shard: str) -> ShardStatus: ...

    def is_open(self, shard: str) -> bool: ...

    def bounds(self, shard: str) -> tuple[int, int]: ...

    def stable_offset(self, shard: str) -> int: ...

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> bool: ...

    def unwatch(self, shard: str, ticket: Ticket[None]) -> None: ...

    def read_by_offset(
        self, shard: str, offset: int, *, max_records: int, max_bytes: int
    ) -> Page: ...

    def read_batches(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool = False
    ) -> RawPage: ...

    def read_stored_nowait(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage | None: ...

    def read_stored(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage: ...

    def read_by_key(self, shard: str, key: bytes, *, hot_only: bool = False) -> Page: ...

    def read_key_history(self, shard: str, key: bytes, start_offset: int, **limits: int) -> Page:
        """All live records of a key; `limits` are `max_records` and `max_bytes`."""
        ...

    def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page: ...

    def get_offset_by_timestamp(
        self,
        shard: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy,
        *,
        committed: bool = True,
    ) -> int: ...

    def newest_record(self, shard: str, *, committed: bool) -> tuple[int, int] | None:
        """Offset and timestamp of the live record with the highest timestamp, if there is one."""

    def reads_cold(self, shard: str, offset: int) -> bool: ...

    def finds_cold(self, shard: str, timestamp_ms: int) -> bool: ...

    def survey(self, shard: str, judge: Callable[[Survey], T]) -> T: ...

    def settle(self, shard: str) -> int:
        """Has synced what is shown and not synced yet (durability=os, interval); the end of what is
        durable then."""


class UpkeepEngine(Protocol):
    """Makes, changes and removes shards, and looks after them."""

    def has_shard(self, shard: str) -> bool:
        """Whether the shard is one of this engine's. Never waits."""

    def adopt(self, spec: ShardSpec) -> None:
        """Takes over a shard that the catalog gives to this node."""

    def release(self, shard: str, epoch: int, refusal: NotLeader) -> None:
        """Forgets a shard that another node leads since; its bytes stay. `epoch` is the one under
        which it was this node's: under another one it stays."""

    def hold(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Keeps these segments of a shard that another node leads, and no other ones."""

    def discard(self, spec: ShardSpec) -> None:
        """Removes what is here of a shard that the catalog does not have any more."""

    def create_shard(self, name: str, config: TopicConfig) -> ShardSpec: ...

    def create_shards(
        self, names: Sequence[str], config: TopicConfig, topic_id: str | None = None
    ) -> list[ShardSpec]: ...

    def delete_shard(self, name: str) -> None: ...

    def delete_shards(self, names: Sequence[str]) -> None: ...

    def shards_beyond(self, shard_counts: Mapping[str, int]) -> list[str]: ...

    def reconfigure(self, shard: str, config: TopicConfig, revision: int | None = None) -> None: ...

    def apart(self, shards: Iterable[str]) -> list[str]: ...

    def check_change(self, shard: str, config: TopicConfig) -> None: ...

    def truncate(self, shard: str, offset: int) -> None: ...

    def roll(self, shard: str, move: Move | None = None) -> None:
        """Seals the active segment; with a move another node leads the next one."""

    def producers(self, shard: str) -> list[ProducerStatus]: ...

    def housekeep(self, is_stopping: Callable[[], bool] = ...) -> None:
        """One round of upkeep, ended early once it is to stop."""

    def compaction_counts(self) -> CompactionCounts: ...

    def close(self) -> None: ...


class CopyEngine(Protocol):
    """What an uploader needs of an engine."""

    def sealed_source(self, shard: str, seq: int) -> SealedSource: ...

    def begin_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta:
        """The segment before the change, with the unfinished copy that is replaced, if any."""
        ...

    def finish_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta: ...


class TieringEngine(CopyEngine, Protocol):
    """What a mover needs of an engine."""

    def status(self, shard: str) -> ShardStatus: ...

    def abandon_copy(self, shard: str, seq: int, upload_id: str) -> bool: ...

    def lose_copy(self, shard: str, seq: int, upload_id: str) -> TierCopy | None: ...

    def drop_local(self, shard: str, seq: int) -> None: ...

    def shows(self, shard: str, seq: int) -> bool: ...

    def forget_copy(self, shard: str, seq: int) -> None: ...

    def refuse_tiered(self, refusal: FirnError | None) -> None: ...


class ShardEngine(AppendEngine, ReadEngine, UpkeepEngine, Protocol):
    """Keeps shards. Offsets are contiguous as assigned. Safe with threads."""


class Engine(ShardEngine, TieringEngine, Protocol):
    """Everything an engine does. Take the narrowest of its parts that suffices."""
