"""What engines that keep shards on disk share: indexes in RocksDB, bytes in some layout."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from firnmq.clock import Clock
from firnmq.config import Durability, StorageType, TopicConfig
from firnmq.disk import Family, IoPool, KeyValueStore
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import Frame, Rows, Segment, SegmentBytes, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.compaction.stored_copy import StoredCopy, drop_strays_of
from firnmq.engines.deadlines import Deadlines
from firnmq.engines.due import DueTimes
from firnmq.engines.inline import InlineAppends, may_run_turn
from firnmq.engines.media.layouts import SharedFile
from firnmq.engines.media.layouts.shared_file.rows import shard_rows
from firnmq.engines.media.snapshots import SnapshotFiles
from firnmq.engines.shardlog import Append, ShardLog, open_log, truncate_log
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.engines.shardlog.producers import Producer, ProducerStates, pack_aborted, unpack_aborted
from firnmq.engines.shardlog.recovery import empty_log
from firnmq.engines.shardlog.replica import ReplicaId
from firnmq.engines.shardlog.rolling import ParkingBudget
from firnmq.engines.shardlog.rolling.driver import RollDriver
from firnmq.engines.shardlog.rolling.state import RollState
from firnmq.engines.shardlog.rolling.steps import Move, unchanging
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.engines.shardlog.watermark import Replication
from firnmq.engines.tiering.api import ColdMedium, RemoteMedium, cold_bytes, cold_index
from firnmq.errors import Corruption, InvalidArgument
from firnmq.eventlog import EventLogger
from firnmq.health import Health
from firnmq.index import RocksIndexEntries, RocksSegmentIndex, SegmentIndex
from firnmq.index.layout import (
    U64,
    aborted_key,
    aborted_range,
    checkpoint_key,
    deletion_key,
    deletion_range,
    fence_key,
    last_offset_of,
    producer_id_of,
    producer_key,
    producer_range,
    shard_range,
)
from firnmq.index.writing import SLICE_ENTRIES, Entries, write_in_slices

_log = EventLogger("engine")

_INLINE_BYTES_MAX = 2 * 1024 * 1024
"""What an event loop writes into the page cache by itself. For a few bytes it takes less time than
to wake a worker and be woken by it, and for a megabyte less of the processor's."""


PARKED_BYTES = 64 * 1024 * 1024
PARKED_REQUESTS = 20_000
"""Appends that wait for their logs' next segments, as much as one worker's queue."""


class ByteLayout(Protocol):
    """Where segments' bytes are."""

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes: ...

    def drop_shard(self, spec: ShardSpec) -> None:
        """Removes every byte of a shard, whatever state it is in."""

    def drop_range(self, shards: ShardRange) -> None:
        """Removes every byte of the shards of a range."""

    def drop_strays(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Removes bytes that belong to none of the shard's segments."""


class DurableBackend:
    """A Backend over the key-value store. One serves every durable engine of a store, so that a
    worker's turn over shards of several engines is still one write."""

    def __init__(
        self,
        kv: KeyValueStore,
        state: ShardState,
        clock: Clock,
        layouts: dict[str, ByteLayout],
        health: Health,
        cold: ColdMedium | None = None,
        replication: Replication | None = None,
        parking: ParkingBudget | None = None,
        shared: SharedFile | None = None,
        snapshots: SnapshotFiles | None = None,
        due: DueTimes | None = None,
        peers: RemoteMedium | None = None,
    ) -> None:
        """`due` keeps when upkeep has to visit shards of ranges. `shared` writes the frames of
        topics with segment.layout=shared-file. `peers` reads segments that other nodes hold."""
        self._peers = peers
        self._shared = shared
        self.due = due
        self.snapshots = snapshots
        self.health = health
        self.parking = parking or ParkingBudget(PARKED_BYTES, PARKED_REQUESTS)
        self.replication = replication
        self.cold = cold
        self._kv = kv
        self._layouts = layouts
        self.state = state
        self.clock = clock

    @property
    def has_failed(self) -> bool:
        """Whether the next write has to repair something first."""
        return self._kv.has_failed

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes:
        if not meta.is_local:
            return cold_bytes(self._medium_of(meta), spec, meta)
        return self._layouts[spec.config.storage_type].open_bytes(spec, meta)

    def open_segment(self, spec: ShardSpec, meta: SegmentMeta) -> Segment:
        return Segment(meta, self.open_bytes(spec, meta), self.open_index(spec, meta))

    def open_index(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentIndex:
        if not meta.is_local:
            return cold_index(self._medium_of(meta), spec, meta)
        return RocksSegmentIndex(self._kv, spec.uid, meta.place)

    def _medium_of(self, meta: SegmentMeta) -> RemoteMedium | None:
        """What reads a segment that is not here."""
        return self._peers if meta.holders else self.cold

    def turn_index(self, spec: ShardSpec, segment: Segment) -> RocksIndexEntries:
        return RocksIndexEntries(spec.uid, segment.meta.place)

    def commit(self, logs: list[ShardLog]) -> None:
        """One write for all frames, one for all rows and entries, or slices if there are many; one
        sync of each if it must be durable."""
        must_sync = has_durable_frames = False
        rows: Entries = []
        frames: list[Frame] = []
        entries: Entries = []
        for log in logs:
            if log.rows.rows:
                rows += log.rows.rows
                must_sync = must_sync or log.wants_sync
            if log.rows.frames:
                frames += log.rows.frames
                has_durable_frames = has_durable_frames or log.wants_sync
            entries += log.staged_entries()
        due = [] if self.due is None else self.due.rows_of_turn(logs)
        with self._written(frames, durable=has_durable_frames) as locations:
            locations = [*due, *locations] if due else locations
            if len(entries) > SLICE_ENTRIES:
                of_families = {Family.MESSAGES: rows, Family.LOCATIONS: locations}
                write_in_slices(self._kv, of_families, entries, _base_offsets(logs))
            elif rows or locations or entries:
                self._put(rows, locations, entries)
        if must_sync:
            self._kv.sync()

    @contextmanager
    def _written(self, frames: list[Frame], *, durable: bool) -> Iterator[Entries]:
        """Writes frames; gives their locations, which the block stores."""
        if not frames:
            yield []
            return
        assert self._shared is not None, "frames are of shared files"
        with self._shared.appending(frames, durable=durable) as locations:
            yield locations

    def _put(self, rows: Entries, locations: Entries, entries: Entries) -> None:
        with self._kv.batch() as batch:
            if rows:
                batch.put_many(Family.MESSAGES, rows)
            if locations:
                batch.put_many(Family.LOCATIONS, locations)
            batch.put_many(Family.INDEX, entries)

    def _write_copied(self, rows: Rows, entries: Entries) -> None:
        """Stores a part of a segment that is being rewritten, unsynced."""
        with self._written(rows.frames, durable=False) as locations:
            self._put(rows.rows, locations, entries)

    def sync_rows(self) -> None:
        """Makes the rows of every log durable that were committed before."""
        self._kv.sync()

    def commit_entries(self, entries: list[tuple[bytes, bytes]]) -> None:
        with self._kv.batch() as batch:
            batch.put_many(Family.INDEX, entries)

    def is_untouched(self, spec: ShardSpec) -> bool:
        """Whether nothing was ever stored of a shard of a range, neither here nor in the
        catalog."""
        uid = spec.uid
        return not (
            self.state.catalog.has_records(uid)
            or self._kv.items(Family.LOCATIONS, *shard_rows(uid), 1)
            or self._kv.items(Family.INDEX, *shard_range(uid), 1)
        )

    def load_producers(self, spec: ShardSpec) -> ProducerStates:
        rows = self._kv.items(Family.INDEX, *producer_range(spec.uid))
        aborted = self._kv.items(Family.INDEX, *aborted_range(spec.uid))
        try:
            return ProducerStates(
                [(producer_id_of(key), Producer.unpack(packed)) for key, packed in rows],
                [unpack_aborted(last_offset_of(key), packed) for key, packed in aborted],
            )
        except Corruption as error:
            raise Corruption(error.reason, where=f"producers of {spec.name}") from error

    def restore(self, spec: ShardSpec, snapshot: Snapshot) -> None:
        uid = spec.uid
        rows = [(producer_key(uid, number), state) for number, state in snapshot.producers]
        rows += [(deletion_key(uid, at), each.pack()) for at, each in snapshot.deletions]
        rows += [
            (aborted_key(uid, each.last_offset), pack_aborted(each)) for each in snapshot.aborted
        ]
        with self._kv.batch() as batch:
            batch.delete_range(Family.INDEX, *producer_range(uid))
            batch.delete_range(Family.INDEX, *aborted_range(uid))
            batch.delete_range(Family.INDEX, *deletion_range(uid))
            batch.put_many(Family.INDEX, rows)

    def forget_aborted(self, spec: ShardSpec, start_offset: int, end_offset: int) -> None:
        with self._kv.batch() as batch:
            batch.delete_range(Family.INDEX, *aborted_range(spec.uid, start_offset, end_offset))

    def forget_producers(self, spec: ShardSpec, producer_ids: list[int]) -> None:
        with self._kv.batch() as batch:
            for producer_id in producer_ids:
                batch.delete(Family.INDEX, producer_key(spec.uid, producer_id))

    def fence_of(self, replica: ReplicaId) -> int:
        packed = self._kv.get(Family.INDEX, fence_key(*replica))
        return 0 if packed is None else U64.unpack(packed)[0]

    def keep_fence(self, replica: ReplicaId, fence: int) -> None:
        with self._kv.batch() as batch:
            batch.put(Family.INDEX, fence_key(*replica), U64.pack(fence))
        self._kv.sync()

    def forget_fence(self, replica: ReplicaId) -> None:
        with self._kv.batch() as batch:
            batch.delete(Family.INDEX, fence_key(*replica))

    def sync_index(self) -> None:
        self._kv.sync()

    def settle_index(self) -> None:
        """Makes what the index says now durable. A database that failed is reopened first, without
        writes whose sync failed: so this is for what is read afterwards."""
        with self._kv.batch():
            pass
        self._kv.sync()

    def drop_segment(self, spec: ShardSpec, segment: Segment) -> None:
        if not segment.meta.is_local:
            if segment.meta.holders:
                segment.bytes.drop()
            elif self.cold is not None:
                self.cold.forget(segment.meta)
            return
        segment.bytes.drop()
        RocksSegmentIndex(self._kv, spec.uid, segment.meta.place).clear()

    def new_copy(self, spec: ShardSpec, meta: SegmentMeta) -> StoredCopy:
        content = self.open_bytes(spec, meta)
        return StoredCopy(self._kv, content, spec.uid, meta, self._write_copied)

    def drop_strays(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        self._layouts[spec.config.storage_type].drop_strays(spec, metas)
        drop_strays_of(self._kv, Family.INDEX, spec.uid, metas)

    def without_index(self, spec: ShardSpec, segment: Segment) -> Segment:
        RocksSegmentIndex(self._kv, spec.uid, segment.meta.place).clear()
        return segment

    def drop_shard(self, spec: ShardSpec) -> None:
        """Removes bytes and indexes without opening the shard: a corrupt one can go too."""
        self._layouts[spec.config.storage_type].drop_shard(spec)
        if self.snapshots is not None:
            self.snapshots.drop_shard(spec)
        with self._kv.batch() as batch:
            batch.delete_range(Family.INDEX, *shard_range(spec.uid))

    def drop_range(self, shards: ShardRange, config: TopicConfig) -> None:
        """The same for the shards of a range, at a cost that depends on what they have stored."""
        self._layouts[config.storage_type].drop_range(shards)
        with self._kv.batch() as batch:
            lower, _ = shard_range(shards.first_uid)
            batch.delete_range(Family.INDEX, lower, shard_range(shards.end_uid)[0])


def _is_idle(log: ShardLog) -> bool:
    """Whether no caller would miss the log if it was opened again. The lock is held."""
    return not (
        log.refusal is not None
        or log.is_changing
        or log.wants_roll
        or log.rolling.state is not RollState.IDLE
        or log.parked
        or log.watchers.has_any
        or log.has_pending
        or log.rows
        or log.leftovers
        or log.upkeep.locked()
    )


def _base_offsets(logs: list[ShardLog]) -> dict[bytes, int]:
    """Where the active segments begin, by the keys of their checkpoints."""
    active = [(log.spec.uid, log.tail.segment.meta) for log in logs]
    return {checkpoint_key(uid, meta.place): meta.base_offset for uid, meta in active}


class DurableKeeper:
    """Opens logs with recovery and writes them through the I/O pool; a LogKeeper."""

    def __init__(
        self, storage_type: str, backend: DurableBackend, pool: IoPool[Append], rolls: RollDriver
    ) -> None:
        self.storage_type = storage_type
        self._backend = backend
        self._parking = backend.parking
        self._pool = pool
        self._rolls = rolls
        self._deadlines = Deadlines(self._withdraw)

    def open(self, spec: ShardSpec, failed: ShardLog | None) -> ShardLog:
        if failed is not None:
            with unchanging(failed):
                pass  # The metadata must not change any more.
        elif spec.is_ranged and self._backend.is_untouched(spec):
            log = empty_log(spec, self._backend, self._backend.state.chain(spec.uid)[0])
            log.parked.resume = self._pool.lane(spec.uid).resume
            return log
        found = open_log(spec, self._backend, self._backend.state, failed)
        found.log.parked.resume = self._pool.lane(spec.uid).resume
        if spec.is_ranged and self._backend.due is not None:
            self._backend.due.load(found.log)
        if found.cut_bytes:
            _log.warning("tail_cut", shard=spec.name, cut_bytes=found.cut_bytes)
        return found.log

    def reserve(self, log: ShardLog, request: Append) -> bool:
        if self._parking.is_full and not self._parking.has_room(log.parked):
            return False
        return self._pool.lane(log.spec.uid).reserve(request.size_bytes)

    async def wait_for_room(self, log: ShardLog, request: Append) -> None:
        while self._parking.is_full and (room := self._parking.room(log.parked)) is not None:
            try:
                await room.within(request.deadline_s)
            except TimeoutError:
                raise request.overdue() from None
        await self._pool.wait_for_room(log.spec.uid, request)

    def submit(self, requests: list[Append], inline: InlineAppends | None = None) -> None:
        if inline is not None and len(requests) == 1:
            (request,) = requests
            if inline.append(request, self._pool.lane(request.log.spec.uid)):
                return
        total_bytes = 0
        numbered = []
        logs = set()
        for request in requests:
            total_bytes += request.size_bytes
            numbered.append((request.log.spec.uid, request))
            logs.add(request.log)
            if request.deadline_s is not None:
                self._deadlines.watch(request)
        if inline is None:  # Coroutines: those that are ready together share a turn.
            self._pool.submit(numbered, gather_in=requests[0].ticket.loop)
            return
        needs_worker = (
            total_bytes > _INLINE_BYTES_MAX
            or self._backend.has_failed
            or not all(map(may_run_turn, logs))
        )
        self._pool.submit(numbered, inline_in=None if needs_worker else inline.loop)

    def _withdraw(self, request: Append) -> bool:
        lane = self._pool.lane(request.log.spec.uid)
        return lane.withdraw(request) or request.log.parked.withdraw(request)

    def roll(self, log: ShardLog, move: Move | None = None) -> None:
        if move is not None and self.storage_type != StorageType.SEGMENT.value:
            reason = f"{log.spec.name} is of {self.storage_type}, which stays on its node"
            raise InvalidArgument("shard", reason)
        self._rolls.roll(log, move)

    def truncate(self, log: ShardLog, offset: int, position: int) -> None:
        truncate_log(log, self._backend, self._backend.state, offset, position)

    def drop_shard(self, spec: ShardSpec, log: ShardLog | None) -> None:
        self._backend.drop_shard(spec)

    def drop_range(self, shards: ShardRange, config: TopicConfig) -> None:
        self._backend.drop_range(shards, config)

    def may_close(self, log: ShardLog) -> bool:
        """What durability=os has not synced is left to the system: an opening finds it."""
        if log.replication is not None or not log.lock.acquire(blocking=False):
            return False
        try:
            if not _is_idle(log):
                return False
            if log.has_late_checkpoint:
                log.commit_checkpoint()
            return True
        except STORAGE_ERRORS as error:
            log.fail(error)
            return False
        finally:
            log.lock.release()

    def keep(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        self._backend.drop_strays(spec, metas)
        if self._backend.snapshots is not None:
            self._backend.snapshots.drop_old(spec, metas)

    def recount(self, log: ShardLog) -> None:
        """What is on disk is not counted."""

    def housekeep(self, log: ShardLog) -> None:
        """Syncs what durability=os has left to the system, and stores the checkpoint: both bound
        what an opening after a crash must scan."""
        if log.spec.config.durability is Durability.OS:
            self._sync(log)
        if not log.has_late_checkpoint:
            return
        with log.lock:
            if log.refusal is None and log.has_late_checkpoint:
                try:
                    log.commit_checkpoint()
                except STORAGE_ERRORS as error:
                    raise log.fail(error) from error

    def settle(self, log: ShardLog) -> None:
        self._sync(log)
        if not log.tail.segment.bytes.is_file:
            self._backend.sync_rows()

    def _sync(self, log: ShardLog) -> None:
        """The log's lock is free while the device works, so appends go on."""
        with log.lock:
            if log.refusal is not None or not log.has_unsynced:
                return
            reached, segment = log.tail.checkpoint(), log.tail.segment
            cut_count = log.cut_count
        try:
            segment.bytes.sync()
            with log.lock:
                is_same = log.tail.segment is segment and log.cut_count == cut_count
                is_news = reached.position > log.synced.position
                if log.refusal is None and is_same and is_news:
                    log.note_synced(reached)
                    log.commit_checkpoint()
        except STORAGE_ERRORS as error:
            with log.lock:
                if log.refusal is None:
                    raise log.fail(error) from error
