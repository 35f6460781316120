"""A shard's log: a chain of segments, the last one active, and what is published of it.

Two parties use a log. Whoever holds `lock` may change it: the I/O worker during a turn, or a
caller of a control operation. Readers take no lock: they look once at `view`, which is replaced
as a whole when something new is durable and indexed, and never shows more than that.
"""

from __future__ import annotations

import dataclasses
import threading

from firnmq.config import Durability
from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.api import Appended
from firnmq.engines.segments import Rows, Segment, SegmentMeta
from firnmq.engines.shardlog.append import (
    BATCH_RECORDS_MAX,
    Append,
    PreparedBatch,
    merge_records,
)
from firnmq.engines.shardlog.backend import Backend, TurnIndex
from firnmq.engines.shardlog.known import KnownBytes
from firnmq.engines.shardlog.producers import ProducerBatch, ProducerStates
from firnmq.engines.shardlog.tail import Tail
from firnmq.engines.shardlog.view import View
from firnmq.engines.shardlog.watchers import Watchers
from firnmq.engines.state import ShardSpec
from firnmq.errors import (
    FirnError,
    InvalidTransactionState,
    OutOfOrderSequence,
    ProducerFenced,
    StaleEpoch,
    StorageFailed,
    storage_failure,
)
from firnmq.index import NEVER_MS, Checkpoint, Point
from firnmq.record import NewRecord, chain_batch_crc, crc32c, patch_base

_KEEP_LOCK = 0
"""Tells crc32c not to let go of the interpreter's lock: a batch takes microseconds, and to get
the lock back the worker would wait behind every caller that is preparing a request."""
_CHAINED_BYTES_MIN = 4096
"""From this size on, a batch's own CRC is worked into the segment's faster than its bytes are."""


class ShardLog:
    """One shard. `lock` guards everything but `view`; see the module's text."""

    __slots__ = (
        "__weakref__",
        "_gathered",
        "_gathered_position",
        "_has_staged_marker",
        "_staged_index",
        "backend",
        "cold_end_offset",
        "cut_count",
        "dead_keys",
        "hints",
        "holes",
        "is_left_to_system",
        "known",
        "lock",
        "producers",
        "refusal",
        "rows",
        "segments",
        "spec",
        "stored",
        "synced",
        "tail",
        "upkeep",
        "view",
        "watchers",
    )

    def __init__(
        self,
        spec: ShardSpec,
        backend: Backend,
        *,
        segments: tuple[Segment, ...],
        tail: Tail,
        start_offset: int,
        holes: set[int],
        dead_keys: dict[bytes, int],
        producers: ProducerStates,
    ) -> None:
        self.spec = spec
        self.backend = backend
        self.lock = threading.Lock()
        self.upkeep = threading.Lock()
        """Held by whoever writes segments anew, and taken before `lock`."""
        self.segments = segments
        self.tail = tail
        self.holes = holes
        """Deleted offsets. This set only grows; a smaller one takes its place when the start moves,
        after the view has: who takes it before the view has all that the view needs."""
        self.dead_keys = dead_keys
        """Deleted keys: records below the number are gone. Likewise."""
        self.producers = producers
        """What is known of idempotent producers."""
        self.watchers = Watchers()
        """Who waits for the end to move; woken by whoever has moved it."""
        self.hints: dict[int, tuple[int, int, Point]] = {}
        """Where sequential readers will go on: offset → a segment's seq and epoch, and a batch."""
        self.known = KnownBytes(tail.segment.meta.seq, Point(tail.next_offset, tail.position))
        """What can be given out without being read."""
        self.cut_count = 0
        """Goes up when a cut begins and when it ends: odd while bytes and index are in between;
        and by two when segments were replaced."""
        self.cold_end_offset = max(
            (each.meta.end_offset for each in segments if not each.meta.is_local), default=0
        )
        """Nothing from here on is only in the object store."""
        self.is_left_to_system = False
        """Its handler has noted that bytes of it are not synced, for as long as it is open."""
        self.refusal: FirnError | None = None
        """Why nothing can be appended any more: storage failed or the shard was deleted."""
        self.rows = Rows()
        self._gathered: list[Buffer] = []
        self._gathered_position = tail.position
        self._staged_index: TurnIndex | None = None
        self._has_staged_marker = False
        self.synced = self._checkpoint()
        """How far the active segment is known to be on the device."""
        self.stored: Checkpoint | None = None
        """The checkpoint that was given to the backend last."""
        self.view = self._view_of_tail(start_offset)

    # Appending: stage, then sync, then commit, then publish. The lock is held throughout. -------

    def stage(self, requests: list[Append]) -> None:
        """Numbers the requests' records and hands their bytes to the active segment."""
        now_ms = self.backend.clock.now_ms()
        waiting: list[Append] = []
        waiting_count = waiting_bytes = 0
        for request in requests:
            if request.records is None:
                if waiting:
                    self._stage_merged(waiting, now_ms)
                    waiting, waiting_count, waiting_bytes = [], 0, 0
                self._stage_batches(request, now_ms)
                continue
            if waiting and (
                waiting_count + len(request.records) > BATCH_RECORDS_MAX
                or waiting_bytes + request.size_bytes > self.spec.config.max_batch_bytes
            ):
                self._stage_merged(waiting, now_ms)
                waiting, waiting_count, waiting_bytes = [], 0, 0
            waiting.append(request)
            waiting_count += len(request.records)
            waiting_bytes += request.size_bytes
        if waiting:
            self._stage_merged(waiting, now_ms)
        self._hand_over()

    def sync(self) -> None:
        """Makes staged bytes durable; afterwards the checkpoint moves to the staged end."""
        if self.has_unsynced:
            self.tail.segment.bytes.sync()
            self.synced = self._checkpoint()

    def published_checkpoint(self) -> Checkpoint:
        """The present end as a checkpoint; nothing may be staged."""
        return self._checkpoint()

    def note_synced(self, reached: Checkpoint) -> None:
        """Moves the checkpoint to an end whose bytes were synced meanwhile."""
        self.synced = reached

    def staged_entries(self) -> list[tuple[bytes, bytes]]:
        """Index entries to be committed, with how far the segment is synced and indexed.

        Where a turn had none and synced nothing there is nothing to tell: what was told last is
        still right, and the next opening looks at the log from there.
        """
        index = self._turn_index()
        synced = self.synced
        self.producers.store_changes(index)
        if not (index.entries or self.rows.rows) and synced is self.stored:
            return []
        self.stored = synced
        index.set_checkpoint(
            Checkpoint(
                next_offset=synced.next_offset,
                position=synced.position,
                crc=synced.crc,
                max_timestamp=synced.max_timestamp,
                records_since_point=synced.records_since_point,
                indexed_upto=self.tail.next_offset,
                first_expiry_ms=synced.first_expiry_ms,
            )
        )
        return index.entries

    def publish(self) -> None:
        """Shows readers everything staged. Nothing may be staged and uncommitted."""
        if self._staged_index is not None and self._staged_index.entries:
            self._staged_index = None
        if self.rows.rows:
            self.rows = Rows()
        self._has_staged_marker = False
        self.view = self._view_of_tail(self.view.start_offset)

    def _view_of_tail(self, start_offset: int) -> View:
        tail = self.tail
        first_open = self.producers.first_open_transaction()
        fields = (
            self.segments,
            start_offset,
            tail.next_offset,
            tail.position,
            tail.next_offset if first_open is None else max(first_open, start_offset),
            self.producers.aborted,
            tail.builder.first_expiry_ms,
        )
        return tuple.__new__(View, fields)  # Calling the class takes another call.

    def take_written(
        self, position: int, next_offset: int, crc: int, record_count: int, max_timestamp: int
    ) -> None:
        """Shows readers one more plain batch, written up to the position. Nothing was staged."""
        tail = self.tail
        tail.crc = crc
        tail.position = self._gathered_position = position
        tail.next_offset = next_offset
        builder = tail.builder
        builder.records_since_point += record_count
        if max_timestamp > builder.max_timestamp:
            builder.max_timestamp = max_timestamp
        self.view = self._view_of_tail(self.view.start_offset)

    def watch(self, ticket: Ticket[None], end_offset: int) -> bool:
        """Settles the ticket when the end moves beyond the offset; False if it has already."""
        return self.watchers.add(
            ticket, lambda: self.view.end_offset > end_offset or self.refusal is not None
        )

    def publish_sealed(self) -> int:
        """Shows readers what was sealed in a turn that failed later; returns where that ends.

        It is durable and in the chain, so nothing takes it back when the log is reopened.
        """
        active = self.tail.segment.meta
        if active.seq > self.view.segments[-1].meta.seq:
            start, end = self.view.start_offset, active.base_offset
            # Not what the producers' states say: they are of a turn that failed.
            first_open = min((each[2] for each in self.segments[-2].meta.transactions), default=end)
            stable = max(first_open, start)
            self.view = View(self.segments, start, end, 0, stable, self.producers.aborted, NEVER_MS)
        return self.view.end_offset

    def fail(self, cause: BaseException) -> StorageFailed:
        """Closes the log for writing; what is published stays readable, the rest is forgotten."""
        if isinstance(cause, StorageFailed):
            failure = type(cause)(self.spec.name, cause.cause)
        else:
            failure = storage_failure(self.spec.name, cause)
        self.refusal = failure
        return failure

    @property
    def has_unsynced(self) -> bool:
        return self.synced.position < self.tail.position

    @property
    def wants_sync(self) -> bool:
        """Whether staged bytes must be durable before they are acknowledged.

        A marker must be in any case: its transaction is forgotten once it is written everywhere.
        """
        return self.spec.config.durability is Durability.FSYNC or self._has_staged_marker

    def is_quick(self, size_bytes: int) -> bool:
        """Whether appending so much is a plain write into the page cache: no sync, no new file."""
        tail = self.tail
        return (
            self.spec.config.durability is Durability.OS
            and 0 < tail.position <= self.spec.config.segment_bytes - size_bytes
            and not self.lock.locked()
            and not self.must_roll_by_age(self.backend.clock.now_ms())
        )

    # Rolling --------------------------------------------------------------------------------

    def roll(self) -> None:
        """Seals the active segment and opens the next one: one durable change of the chain.

        Everything staged is made durable first, so a sealed segment never waits for anything.
        """
        tail = self.tail
        self._hand_over()
        self.give_back_room()
        tail.segment.bytes.sync()
        self.synced = self._checkpoint()
        self.backend.commit([self])
        now_ms = self.backend.clock.now_ms()
        sealed = tail.segment.meta.become_sealed(
            end_offset=tail.next_offset,
            length=tail.position,
            crc=tail.crc,
            max_timestamp=tail.builder.max_timestamp,
            now_ms=now_ms,
            first_expiry_ms=tail.builder.first_expiry_ms,
            transactions=self.producers.open_transactions(),
        )
        active = SegmentMeta(seq=sealed.seq + 1, base_offset=tail.next_offset, created_ms=now_ms)
        self.backend.state.roll(self.spec.uid, sealed, active, self.producers.snapshot())
        old = Segment(sealed, tail.segment.bytes, tail.segment.index)
        new = self.open_segment(active)
        self.segments = (*self.segments[:-1], old, new)
        self.tail = Tail(new, next_offset=active.base_offset)
        self.known.begin(active.seq, Point(active.base_offset, 0))
        self._gathered_position = 0
        self._staged_index = None
        self.rows = Rows()
        self.synced = self._checkpoint()

    def give_back_room(self) -> None:
        """Lets the active segment's bytes end where its batches do."""
        self.tail.segment.bytes.give_back_room(self.tail.position)

    def must_roll_by_age(self, now_ms: int) -> bool:
        config, first = self.spec.config, self.tail.first_append_ms
        if first is None:
            return False
        if config.segment_ms is not None and now_ms - first >= config.segment_ms:
            return True
        limit = config.max_compaction_lag_ms
        return limit is not None and config.compacts and now_ms - first >= limit

    def open_segment(self, meta: SegmentMeta) -> Segment:
        return Segment(
            meta,
            self.backend.open_bytes(self.spec, meta),
            self.backend.open_index(self.spec, meta),
        )

    # Changes other than appends. The caller holds the lock. ---------------------------------

    def move_start(self, start_offset: int) -> None:
        """Moves the start and drops sealed segments that end at or below it."""
        try:
            self._move_start(start_offset)
        except StaleEpoch:
            # Whether a change of a copy was made is known to the catalog alone if it failed.
            for segment in self.segments[:-1]:
                self.take_changes(segment.meta.seq)
            self._move_start(start_offset)

    def _move_start(self, start_offset: int) -> None:
        view = self.view
        gone = [
            segment
            for segment in self.segments
            if segment.meta.is_sealed and segment.meta.end_offset <= start_offset
        ]
        if start_offset <= view.start_offset and not gone:
            return
        start_offset = max(start_offset, view.start_offset)
        if start_offset > self.synced.next_offset:
            self._sync_below_start()
        state, uid = self.backend.state, self.spec.uid
        state.move_start(uid, start_offset, [segment.meta for segment in gone])
        self.segments = self.segments[len(gone) :]
        has_forgotten = self.producers.forget_below(start_offset)
        self.view = view._replace(
            segments=self.segments,
            start_offset=start_offset,
            stable_offset=max(view.stable_offset, start_offset),
            aborted=self.producers.aborted,
        )
        if has_forgotten:
            self.backend.forget_aborted(self.spec, 0, start_offset)
        # Kept elsewhere first, if they are: who plans a read looks here and then there.
        dead = {key: below for key, below in self.dead_keys.items() if below <= start_offset}
        state.retire_dead_keys(uid, dead)
        # Not taken out of the same ones: who reads an older view still needs them.
        if dead:
            self.dead_keys = {key: at for key, at in self.dead_keys.items() if key not in dead}
        if any(offset < start_offset for offset in self.holes):
            self.holes = {offset for offset in self.holes if offset >= start_offset}
        for segment in gone:
            self.backend.drop_segment(self.spec, segment)
        # One with a copy in the object store is remembered until that is gone as well.
        done = [segment.meta.seq for segment in gone if segment.meta.tier is None]
        state.forget_segments(uid, done)

    def _sync_below_start(self) -> None:
        """A power cut must not leave a log that ends before its start."""
        try:
            self.sync()
        except OSError as error:
            raise self.fail(error) from error

    def forget_idle_producers(self, before_ms: int) -> int:
        """Drops producers that stored nothing since then; how many."""
        idle = self.producers.forget_idle(before_ms)
        if idle:
            self.backend.forget_producers(self.spec, idle)
        return len(idle)

    def restart(self, tail: Tail) -> None:
        """Goes on from another end of the active segment."""
        self.segments = (*self.segments[:-1], tail.segment)
        self.tail = tail
        self._gathered_position = tail.position
        self.synced = self._checkpoint()
        self.hints = {}
        self.known.begin(tail.segment.meta.seq, Point(tail.next_offset, tail.position))
        self._staged_index = None
        self.publish()

    def replace_segment(self, old: Segment, new: Segment) -> None:
        """Puts the same sealed segment in another medium."""
        self.segments = tuple(new if each is old else each for each in self.segments)
        self.view = self.view._replace(segments=self.segments)
        self.hints = {}  # Its epoch may be one that other bytes had.

    def change_copy(self, old: Segment, new: SegmentMeta) -> SegmentMeta:
        """Gives a sealed segment another copy in the object store, or says that it is only there:
        in the catalog first, then to readers."""
        state, uid = self.backend.state, self.spec.uid
        try:
            state.change_copy(uid, new)
        except STORAGE_ERRORS:
            kept = state.segment(uid, new.seq)
            if kept is None or _copy_of(kept) != _copy_of(new):
                raise
        self._show_copy(old, new)
        return new

    def take_changes(self, seq: int) -> None:
        """Takes over what the catalog says of a sealed segment's copy."""
        for segment in self.segments[:-1]:
            if segment.meta.seq != seq:
                continue
            kept = self.backend.state.segment(self.spec.uid, seq)
            if kept is not None and kept.is_sealed and _copy_of(kept) != _copy_of(segment.meta):
                new = dataclasses.replace(
                    segment.meta,
                    state=kept.state,
                    epoch=kept.epoch,
                    tier=kept.tier,
                    is_local=kept.is_local,
                )
                self._show_copy(segment, new)

    def _show_copy(self, old: Segment, new: SegmentMeta) -> None:
        if new.is_local:
            self.replace_segment(old, Segment(new, old.bytes, old.index))
            return
        self.cold_end_offset = max(self.cold_end_offset, new.end_offset)
        self.replace_segment(old, self.open_segment(new))
        self.cut_count += 2  # Whoever looks at its index here must not take it for empty.
        self.known.forget(new.seq)

    def replace_sealed(self, old: list[Segment], new: Segment) -> None:
        """Puts one segment in the place of some neighbours, whose readers then start over."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == tuple(old)
        merged = [segment.meta for segment in old[1:]]
        self.backend.state.replace_sealed(self.spec.uid, new.meta, merged)
        self.segments = (*self.segments[:first], new, *self.segments[first + len(old) :])
        self.view = self.view._replace(segments=self.segments)
        self.cut_count += 2
        for segment in old:
            self.known.forget(segment.meta.seq)

    # Staging --------------------------------------------------------------------------------

    def _stage_merged(self, requests: list[Append], now_ms: int) -> None:
        records: list[NewRecord] = []
        for request in requests:
            assert request.records is not None
            records += request.records
        offset = self._stage_batch(merge_records(records, self.spec.config, now_ms), now_ms)
        for request in requests:
            assert request.records is not None
            end = offset + len(request.records)
            request.appended = Appended(base_offset=offset, next_offset=end)
            offset = end

    def _stage_batches(self, request: Append, now_ms: int) -> None:
        """A request's batches; one that a producer sends again is answered, not stored again."""
        base_offset = next_offset = -1
        for batch in request.batches:
            header = batch.header
            stored: ProducerBatch | None = None
            if header.producer_id >= 0 and not header.is_control:
                try:
                    stored = self.producers.check(header)
                except PRODUCER_REFUSALS as refusal:
                    request.refusal = refusal
                    return
            if stored is not None:
                first, next_offset = stored.base_offset, stored.last_offset + 1
            else:
                first = self._stage_batch(batch, now_ms)
                next_offset = self.tail.next_offset
            base_offset = first if base_offset < 0 else base_offset
        request.appended = Appended(base_offset=base_offset, next_offset=next_offset)

    def _stage_batch(self, batch: PreparedBatch, now_ms: int) -> int:
        data, size = batch.data, len(batch.data)
        tail, spec = self.tail, self.spec
        position = tail.position
        if position and (
            position + size > spec.config.segment_bytes or self.must_roll_by_age(now_ms)
        ):
            self.roll()
            tail = self.tail
            position = 0
        base_offset = tail.next_offset
        patch_base(data, 0, base_offset, spec.epoch)
        tail.builder.add(
            self._staged_index or self._turn_index(),
            position=position,
            base_offset=base_offset,
            record_count=batch.record_count,
            max_timestamp=batch.max_timestamp,
            terms=batch.terms,
            first_expiry_ms=batch.first_expiry_ms,
        )
        if tail.first_append_ms is None:
            tail.first_append_ms = now_ms
        if size < _CHAINED_BYTES_MIN:
            tail.crc = crc32c(data, tail.crc, _KEEP_LOCK)
        else:
            tail.crc = chain_batch_crc(tail.crc, data)  # Its own CRC was checked or made before.
        tail.position = position = position + size
        tail.next_offset = next_offset = base_offset + batch.record_count
        if position >= self.known.next_border_position:
            self.known.note_appended(Point(next_offset, position))
        if batch.header.producer_id >= 0:
            self.producers.note(batch.header, base_offset, data, now_ms)
            self._has_staged_marker = self._has_staged_marker or batch.header.is_control
        self._gathered.append(data)
        return base_offset

    def _hand_over(self) -> None:
        """Gives the gathered batches to the segment with one gathered write."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            # A durable write covers its own bytes, so it will do only if none before are unsynced.
            durable = self.wants_sync and self.synced.position == self._gathered_position
            if self.tail.segment.bytes.append(
                gathered, self._gathered_position, self.rows, durable=durable
            ):
                self.synced = self._checkpoint()
        self._gathered_position = self.tail.position

    def _turn_index(self) -> TurnIndex:
        if self._staged_index is None:
            self._staged_index = self.backend.turn_index(self.spec, self.tail.segment)
        return self._staged_index

    def _checkpoint(self) -> Checkpoint:
        tail = self.tail
        return Checkpoint(
            next_offset=tail.next_offset,
            position=tail.position,
            crc=tail.crc,
            max_timestamp=tail.builder.max_timestamp,
            records_since_point=tail.builder.records_since_point,
            indexed_upto=tail.next_offset,
            first_expiry_ms=tail.builder.first_expiry_ms,
        )


def _copy_of(meta: SegmentMeta) -> tuple[object, ...]:
    """What changes when a segment's copy does."""
    return meta.state, meta.epoch, meta.tier, meta.is_local


PRODUCER_REFUSALS = (ProducerFenced, OutOfOrderSequence, InvalidTransactionState)
"""What a producer's batch may be refused with; the shard goes on."""
STORAGE_ERRORS = (OSError, FirnError)
"""What staging, syncing and committing may raise: all of it closes the shard."""
