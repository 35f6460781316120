"""The memory engine's backend: segments in memory, spilled ones in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firnmq.clock import Clock
from firnmq.config import MemoryOverflow
from firnmq.disk import Family, KeyValueStore
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import (
    Medium,
    Rows,
    Segment,
    SegmentBytes,
    SegmentCopy,
    SegmentMeta,
    SegmentState,
    Successor,
)
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.compaction.rewrite import NotReplaced
from firnmq.engines.compaction.stored_copy import StoredCopy
from firnmq.engines.deletion.deletions import as_one
from firnmq.engines.deletion.retired import Retired
from firnmq.engines.media.layouts import PartitionPerFile
from firnmq.engines.media.memory.bytes import MemoryBytes
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.backend import IndexEntry
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.engines.shardlog.producers import ProducerStates
from firnmq.engines.shardlog.replica import ReplicaId
from firnmq.engines.shardlog.rolling import ParkingBudget
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.engines.shardlog.watermark import Replication
from firnmq.engines.tiering.api import ColdMedium, cold_bytes, cold_index
from firnmq.errors import NotLeader, StaleEpoch, StorageFailed
from firnmq.health import Health
from firnmq.index import Checkpoint, MemorySegmentIndex, RocksSegmentIndex, SegmentIndex
from firnmq.index.layout import aborted_range
from firnmq.record import Keys
from firnmq.record.deletion import Deletion
from firnmq.record.selection import OFFSET_END


def spills(spec: ShardSpec) -> bool:
    return spec.config.memory_overflow is MemoryOverflow.SPILL


class MemoryBackend:
    """A Backend for one shard."""

    def __init__(
        self,
        *,
        kv: KeyValueStore,
        state: ShardState,
        layout: PartitionPerFile,
        clock: Clock,
        health: Health,
        cold: ColdMedium | None = None,
        replication: Replication | None = None,
    ) -> None:
        self.health = health
        self.cold = cold
        self.replication = replication
        self._kv = kv
        self._layout = layout
        self.clock = clock
        self.parking = ParkingBudget(0, 0)  # What does not fit is stored after a roll, at once.
        self.state = MemoryState(state)
        self.snapshots = None

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes:
        if not meta.is_local:
            return cold_bytes(self.cold, spec, meta)
        if meta.medium is Medium.FILE:
            return self._layout.open_bytes(spec, meta)
        return MemoryBytes()

    def open_index(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentIndex:
        if not meta.is_local:
            return cold_index(self.cold, spec, meta)
        if meta.medium is Medium.FILE:
            return RocksSegmentIndex(self._kv, spec.uid, meta.place)
        return MemorySegmentIndex()

    def turn_index(self, spec: ShardSpec, segment: Segment) -> MemoryTurnIndex:
        assert isinstance(segment.index, MemorySegmentIndex)
        return MemoryTurnIndex(segment.index)

    def commit(self, logs: list[ShardLog]) -> None:
        for log in logs:
            self.commit_entries(log.staged_entries())

    def commit_entries(self, entries: list[IndexEntry]) -> None:
        for add, arguments in entries:
            add(*arguments)

    def load_producers(self, spec: ShardSpec) -> ProducerStates:
        return ProducerStates()

    def restore(self, spec: ShardSpec, snapshot: Snapshot) -> None:
        raise AssertionError("a memory log has no snapshots")

    def fence_of(self, replica: ReplicaId) -> int:
        raise AssertionError("a memory log has no replicas")

    def keep_fence(self, replica: ReplicaId, fence: int) -> None:
        raise AssertionError("a memory log has no replicas")

    def forget_fence(self, replica: ReplicaId) -> None:
        raise AssertionError("a memory log has no replicas")

    def sync_index(self) -> None:
        """There is nothing that outlives the process."""

    def forget_aborted(self, spec: ShardSpec, start_offset: int, end_offset: int) -> None:
        """Only what came with spilled segments is kept."""
        if self.state.is_kept():
            with self._kv.batch() as batch:
                batch.delete_range(Family.INDEX, *aborted_range(spec.uid, start_offset, end_offset))

    def forget_producers(self, spec: ShardSpec, producer_ids: list[int]) -> None:
        """They are nowhere but in memory."""

    def drop_segment(self, spec: ShardSpec, segment: Segment) -> None:
        if not segment.meta.is_local:
            if self.cold is not None:
                self.cold.forget(segment.meta)
            return
        segment.bytes.drop()
        if isinstance(segment.index, RocksSegmentIndex):
            segment.index.clear()

    def new_copy(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentCopy:
        if meta.medium is Medium.FILE:
            if self.state.doubt is not None:  # What is in that place may be what counts.
                raise StorageFailed(spec.name, OSError("an earlier change is not complete yet"))
            content = self._layout.open_bytes(spec, meta)
            return StoredCopy(self._kv, content, spec.uid, meta, self._write_copied)
        return MemoryCopy()

    def _write_copied(self, rows: Rows, entries: list[tuple[bytes, bytes]]) -> None:
        """Stores index entries of a spilled segment that is being rewritten, unsynced."""
        with self._kv.batch() as batch:
            batch.put_many(Family.INDEX, entries)

    def without_index(self, spec: ShardSpec, segment: Segment) -> Segment:
        return Segment(segment.meta, segment.bytes, MemorySegmentIndex())


class MemoryTurnIndex:
    """Gathers a turn's additions to an index in memory, each a method and its arguments; a
    TurnIndex."""

    __slots__ = ("_index", "entries")

    def __init__(self, index: MemorySegmentIndex) -> None:
        self._index = index
        self.entries: list[IndexEntry] = []

    def add_point(self, offset: int, position: int, max_timestamp_before: int) -> None:
        self.entries.append((self._index.add_point, (offset, position, max_timestamp_before)))

    def add_keys(self, keys: Keys, base_offset: int, position: int) -> None:
        self.entries.append((self._index.add_keys, (keys, base_offset, position)))

    def add_tags(
        self, tags: Mapping[bytes, Sequence[int]], base_offset: int, position: int
    ) -> None:
        self.entries.append((self._index.add_tags, (tags, base_offset, position)))

    def set_checkpoint(self, checkpoint: Checkpoint) -> None:
        """There is nothing to come back to."""

    def set_producer(self, producer_id: int, packed: bytes) -> None:
        """Likewise."""

    def set_aborted(self, last_offset: int, packed: bytes) -> None:
        """Likewise."""

    def set_deletion(self, offset: int, packed: bytes) -> None:
        """Likewise."""


class MemoryCopy:
    """A SegmentCopy in memory. Batches of which all stays are shared with the old segment."""

    def __init__(self) -> None:
        self._content = MemoryBytes()
        self.sink = MemorySegmentIndex()

    def append(self, batches: list[Buffer]) -> None:
        self._content.append(batches, self._content.length(), Rows(), durable=False)

    def finish(self, meta: SegmentMeta) -> Segment:
        return Segment(meta, self._content, self.sink)

    def drop(self) -> None:
        """It goes with its last user."""


class MemoryState:
    """A LogState that keeps whatever concerns spilled segments, and nothing else beyond the
    process.

    The catalog has those as sealed, and one active segment for everything that is in memory. What
    is kept depends on what there is and on the topic's options as they are now, since these may
    change at any time.
    """

    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._log: ShardLog | None = None
        self._deleted: set[int] = set()
        """Segments that the catalog has as deleted."""
        self.doubt: tuple[list[Segment], Segment] | None = None
        """Segments, and what replaces them if the catalog has taken it, which is not known."""
        self.is_doubtful = False
        """Whether a change failed in a way that leaves open if the catalog has kept it."""
        self.has_strays = False
        """Whether a spill that failed may have left a file and index entries."""

    def attach(self, log: ShardLog) -> None:
        """Tells whose state this is, once the log is made."""
        self._log = log

    def detach(self) -> None:
        """Forgets the log, which is deleted; otherwise only a collection would free its memory."""
        self._log = None

    def roll(
        self,
        uid: int,
        sealed: SegmentMeta,
        active: SegmentMeta,
        successor: Successor | None = None,
    ) -> SegmentMeta:
        """A roll within memory needs no entry in the catalog."""
        assert successor is None, "what is in memory does not move"
        return active

    @property
    def own_holders(self) -> tuple[int, ...]:
        return self._state.own_holders

    def not_led(self, uid: int) -> NotLeader:
        return self._state.not_led(uid)

    def replace_sealed(self, uid: int, new: SegmentMeta, merged: Sequence[SegmentMeta]) -> None:
        """NotReplaced if it has certainly failed; any other error leaves the outcome unknown."""
        if new.medium is not Medium.FILE:
            return
        try:
            self._state.replace_sealed(uid, new, merged)
        except STORAGE_ERRORS as error:
            if not is_in_chain(new, self._state.chain(uid)):
                cause = error.cause if isinstance(error, StorageFailed) else error
                raise NotReplaced(self._name(uid), cause) from error
        self._deleted.update(meta.seq for meta in merged)

    def forget_segments(self, uid: int, seqs: Sequence[int]) -> None:
        known = self._deleted.intersection(seqs)
        self._state.forget_segments(uid, sorted(known))
        self._deleted -= known

    def segment(self, uid: int, seq: int) -> SegmentMeta | None:
        """As the catalog has it: of those in memory it knows nothing."""
        return self._state.segment(uid, seq)

    def change_copy(self, uid: int, new: SegmentMeta) -> None:
        assert new.medium is Medium.FILE, "what is only in memory is not copied"
        self._state.change_copy(uid, new)

    def move_start(self, uid: int, start_offset: int, deleted: Sequence[SegmentMeta]) -> None:
        if not self.is_kept():
            return
        spilled = [meta for meta in deleted if meta.medium is Medium.FILE]
        is_cut = len(spilled) < len(deleted)
        active = in_memory_after(deleted[-1]) if is_cut else None
        try:
            self._state.move_start(uid, start_offset, spilled, active)
        except StaleEpoch:
            # An earlier attempt may have happened without our knowing. What is left to do is
            # whatever the catalog does not have as deleted. A segment whose copy has changed
            # without our knowing makes this attempt fail too, until the log has taken that over.
            live = {
                each.seq
                for each in self._state.chain(uid)
                if each.state is not SegmentState.DELETED
            }
            left = [meta for meta in spilled if meta.seq in live]
            if len(left) == len(spilled):
                raise
            self._state.move_start(uid, start_offset, left, active)
        self._deleted.update(meta.seq for meta in spilled)

    def keep_deletion(self, uid: int, deletion: Deletion) -> None:
        """Keeps a deletion whose entry is about to be appended: a restart loses the entry."""
        if self.is_kept():
            self._state.deletions.add_unlogged(uid, deletion)
        else:  # A restart loses the records, but not those of the table.
            self._state.note_retired(uid, deletion)

    def trim_deletions(
        self, uid: int, start_offset: int, changed: Mapping[int, Deletion | None], gone: Deletion
    ) -> None:
        if self.is_kept():
            self._state.trim_deletions(uid, start_offset, changed, gone)

    def forget_deletions(self, uid: int, offset: int) -> None:
        """Entries that can be truncated have no rows."""

    def note_retired(self, uid: int, deletion: Deletion) -> None:
        self._state.note_retired(uid, deletion)

    def retired(self, uid: int) -> Retired | None:
        return self._state.retired(uid)

    def keep_unlogged(self, uid: int, end_offset: int = OFFSET_END) -> None:
        """Keeps the deletions whose entries are in memory, below an offset at which the log is
        about to be truncated. The log's lock is held."""
        log = self._log
        assert log is not None
        spilled = (each.meta for each in log.segments if each.meta.medium is Medium.FILE)
        start_offset = max((meta.end_offset for meta in spilled), default=0)
        found = (each for _, each in log.deletions.entries(start_offset, end_offset))
        self._state.deletions.keep_unlogged(uid, as_one(found))

    def kept_start(self, uid: int) -> int | None:
        """The start that is kept; None if none is."""
        return self._state.start_offset(uid) if self.is_kept() else None

    def keep_all(self) -> None:
        """Keeps what was not worth keeping until now: the log's first segment is being spilled.
        The log's lock is held."""
        log = self._log
        assert log is not None
        if has_spilled(log):
            return
        state, uid = self._state, log.spec.uid
        if state.start_offset(uid) != log.view.start_offset:
            state.move_start(uid, log.view.start_offset, [])
        self.keep_unlogged(uid)

    def is_kept(self) -> bool:
        """Whether what happens to the log has to be known after a restart."""
        log = self._log
        return log is None or spills(log.spec) or has_spilled(log)

    def _name(self, uid: int) -> str:
        return f"number {uid}" if self._log is None else self._log.spec.name


def is_in_chain(meta: SegmentMeta, chain: Sequence[SegmentMeta]) -> bool:
    """Whether the catalog has a sealed segment just so."""
    return any(
        (each.state, each.seq, each.epoch, each.slot, each.length, each.crc)
        == (meta.state, meta.seq, meta.epoch, meta.slot, meta.length, meta.crc)
        for each in chain
    )


def has_spilled(log: ShardLog) -> bool:
    """Whether a part of the log is on disk. Segments are spilled in order."""
    return log.segments[0].meta.medium is Medium.FILE


def in_memory_after(meta: SegmentMeta) -> SegmentMeta:
    """What the catalog has as active once everything up to a segment is spilled or dropped."""
    return SegmentMeta(
        seq=meta.seq + 1, base_offset=meta.end_offset, created_ms=max(meta.sealed_ms, 0)
    )
