"""A shard's log: a chain of segments, the last one active, and what is shown of it.

Two parties use a log. The holder of `lock` may change it: the I/O worker during a turn, or a
caller of a control operation. Readers take no lock: they look once at `view`, which is replaced
as a whole. The view ends at the high watermark, which `advance` alone moves, and never shows more
than is durable and indexed.

Each turn ends with a point. With one replica the point is the high watermark at once. With more,
points wait (`watermark.py`) until the replicas have them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from firnmq.config import Durability
from firnmq.disk import Settlement, Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.api import Appended
from firnmq.engines.catalog.segments import Rows, Segment
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.deletion.deletions import Deletions
from firnmq.engines.shardlog import changes
from firnmq.engines.shardlog.append import (
    BATCH_RECORDS_MAX,
    Append,
    PreparedBatch,
    merge_records,
)
from firnmq.engines.shardlog.backend import Backend, IndexEntry, TurnIndex
from firnmq.engines.shardlog.producers import PRODUCER_REFUSALS, ProducerBatch, ProducerStates
from firnmq.engines.shardlog.reading.known import KnownBytes
from firnmq.engines.shardlog.replica import LogReplica
from firnmq.engines.shardlog.rolling.machine import LogClosed, RollMachine
from firnmq.engines.shardlog.rolling.parked import ParkedAppends
from firnmq.engines.shardlog.rolling.steps import is_old
from firnmq.engines.shardlog.tail import Tail, chained
from firnmq.engines.shardlog.use import LogUse
from firnmq.engines.shardlog.view import View
from firnmq.engines.shardlog.watchers import shown_alone
from firnmq.engines.shardlog.watermark import HighWatermark, PendingPoint, complete
from firnmq.errors import FirnError, StorageFailed, storage_failure
from firnmq.health import ProblemKind
from firnmq.index import Checkpoint, Point
from firnmq.record import NewRecord, parse_header, patch_base
from firnmq.record.deletion import deletion_of

CHECKPOINT_BYTES = 64 * 1024
"""What an opening after a crash scans at most because turns stored no checkpoint."""
_NO_ROOM = -1
_NONE_LEFT: Sequence[Append] = ()


class ShardLog(HighWatermark):
    """One shard. `lock` guards everything but `view`; see the module's text.

    durable end >= every pending point > `view.end_offset`, which is the high watermark. Appends are
    completed, and index entries stored, when the view reaches them and not before.
    """

    __slots__ = (
        "__weakref__",
        "_gathered",
        "_gathered_position",
        "_has_staged_control",
        "_staged_index",
        "backend",
        "change_ended",
        "cold_end_offset",
        "cut_count",
        "hints",
        "is_changing",
        "known",
        "leftovers",
        "lock",
        "parked",
        "producers",
        "refusal",
        "replica",
        "replication",
        "rolling",
        "rows",
        "segments",
        "spec",
        "stored",
        "synced",
        "tail",
        "upkeep",
        "use",
        "wants_roll",
    )

    def __init__(
        self,
        spec: ShardSpec,
        backend: Backend,
        *,
        segments: tuple[Segment, ...],
        tail: Tail,
        start_offset: int,
        deletions: Deletions,
        producers: ProducerStates,
    ) -> None:
        self.spec = spec
        self.backend = backend
        self.lock = threading.Lock()
        self.upkeep = threading.Lock()
        """Held by the thread that rewrites segments, and taken before `lock`."""
        self.rolling = RollMachine()
        self.is_changing = False
        """A change of the start or of segments is under way, with the lock free; see `unlocked`."""
        self.change_ended = threading.Condition(self.lock)
        """Notified at the end of such a change and of a roll."""
        self.wants_roll = False
        """The active segment is full or old; a roll ends that."""
        self.parked = ParkedAppends(backend.parking)
        """Appends that wait for the next segment."""
        self.replication = backend.replication
        """What moves the high watermark; None where this is the only replica."""
        self.replica: LogReplica | None = None
        """The replica that the tail is; None where it is the only one."""
        self.segments = segments
        self.tail = tail
        self.producers = producers
        """What is known of idempotent producers."""
        self.hints: dict[int, tuple[int, int, Point]] = {}
        """Where sequential readers will go on: offset → a segment's seq and epoch, and a batch."""
        self.known = KnownBytes(tail.segment.meta.seq, Point(tail.next_offset, tail.position))
        """What can be given out without being read."""
        self.cut_count = 0
        """Odd while a truncation is under way; goes up by two when segments were replaced."""
        self.cold_end_offset = max(
            (each.meta.end_offset for each in segments if not each.meta.is_local), default=0
        )
        """Nothing from here on is only in the object store."""
        self.use = LogUse()
        self.refusal: FirnError | None = None
        """Why nothing can be appended any more: storage failed or the shard was deleted."""
        self.leftovers = changes.Leftovers()
        """What other stores still have of what is no longer part of the log."""
        self.rows = Rows()
        self._gathered: list[Buffer] = []
        self._gathered_position = tail.position
        self._staged_index: TurnIndex | None = None
        self._has_staged_control = False
        self.synced = self.tail.checkpoint()
        """How far the active segment is known to be on the device."""
        self.stored: Checkpoint | None = None
        """The checkpoint that the backend was given last; None if the next turn must give one."""
        super().__init__(self._view_of_tail(start_offset), deletions)

    # Appending: stage, sync, commit, end the turn. The lock is held throughout. -----------------

    def stage(self, requests: list[Append]) -> Sequence[Append]:
        """Numbers the requests' records and hands their bytes to the active segment. Returns the
        last ones if they do not fit, and must wait for the next segment."""
        self.use.note_changed()
        now_ms = self.backend.clock.now_ms()
        if is_old(self):
            self.wants_roll = True
        waiting: list[Append] = []
        waiting_count = waiting_bytes = 0
        fits = True
        for request in requests:
            if request.records is None:
                if waiting:
                    fits = self._stage_merged(waiting, now_ms)
                    waiting, waiting_count, waiting_bytes = [], 0, 0
                assert request.batch is not None
                fits = fits and self._stage_request(request, request.batch, now_ms)
                if not fits:
                    break
                continue
            if waiting and (
                waiting_count + len(request.records) > BATCH_RECORDS_MAX
                or waiting_bytes + request.size_bytes > self.spec.config.max_batch_bytes
            ):
                fits = self._stage_merged(waiting, now_ms)
                waiting, waiting_count, waiting_bytes = [], 0, 0
                if not fits:
                    break
            waiting.append(request)
            waiting_count += len(request.records)
            waiting_bytes += request.size_bytes
        if waiting:
            fits = self._stage_merged(waiting, now_ms)
        self._hand_over()
        if fits:
            return _NONE_LEFT
        return [each for each in requests if each.appended is None and each.refusal is None]

    def stage_replicated(self, batches: Sequence[PreparedBatch]) -> None:
        """Hands the leader's batches to the active segment. They have the numbers that they get
        here, so their bytes stay the same. When to roll is the leader's affair."""
        now_ms = self.backend.clock.now_ms()
        for batch in batches:
            self._stage_batch(batch, now_ms, is_forced=True)
        self._hand_over()
        self.wants_roll = False

    def sync(self) -> None:
        """Makes staged bytes durable; afterwards the checkpoint moves to the staged end."""
        if self.has_unsynced:
            self.tail.segment.bytes.sync()
            self.synced = self.tail.checkpoint()

    def note_synced(self, reached: Checkpoint) -> None:
        """Moves the checkpoint to an end whose bytes were synced without the lock."""
        self.synced = reached

    def staged_entries(self) -> list[IndexEntry]:
        """Index entries to be committed, with how far the segment is synced and indexed; none where
        they wait for the high watermark.

        A checkpoint alone waits for CHECKPOINT_BYTES, for housekeeping or for closing: the stored
        one is still right, and an opening looks at the log from there, also for producers' states.
        """
        if self.replication is not None:
            return []
        index = self._turn_index()
        synced, stored = self.synced, self.stored
        if (
            stored is not None
            and synced.position - stored.position < CHECKPOINT_BYTES
            and not (index.entries or self.rows)
        ):
            return []
        self.producers.store_changes(index)
        self.deletions.store_changes(index)
        self.stored = synced
        index.set_checkpoint(synced.indexed_to(self.tail.next_offset))
        return index.entries

    # The high watermark -------------------------------------------------------------------------

    def end_turn(self, requests: list[Append], settlement: Settlement) -> None:
        """Adds the point that a turn has reached; what was staged is committed. With one replica,
        that is the high watermark."""
        if self.replication is None:
            before = self.view
            self._staged_is_committed()
            self.show(self._view_of_tail(before.start_offset))
            complete(requests, settlement)  # First: appends need not wait for readers.
            self.watchers.wake(settlement, shown_alone(requests, before.end_offset, self.view))
            return
        self._add_point(requests, settlement)
        self.replication.durable_end_moved(self, self.tail.next_offset)

    def advance(self, high_watermark: int) -> None:
        """Moves the high watermark: shows the last point at or below it, and completes the appends
        up to that same point. One that is below the present one changes nothing.

        Any thread may call it. It does not wait for `lock`, which is held during a sync, unless the
        index cannot be written: then the log closes.
        """
        settlement = Settlement()
        try:
            self.show_pending(high_watermark, settlement)
        except STORAGE_ERRORS as error:
            with self.lock:
                if self.refusal is None:
                    self.fail(error)
            self.watchers.wake(settlement)
        settlement.deliver()

    def store_entries(self, points: list[PendingPoint]) -> None:
        last = points[-1].view
        checkpoints = [each.checkpoint for each in points if each.checkpoint is not None]
        if checkpoints:
            index = self.backend.turn_index(self.spec, last.segments[-1])
            for point in points:
                index.entries.extend(point.entries)
            index.set_checkpoint(checkpoints[-1])
            self.backend.commit_entries(index.entries)
        self.deletions.show(last.end_offset)

    def _add_point(self, requests: list[Append], settlement: Settlement) -> None:
        """Lets the staged point wait for the high watermark, with the appends that need it. States
        of producers wait for a checkpoint, as in `staged_entries`."""
        index, view = self._turn_index(), self._view_of_tail(self.view.start_offset)
        stored, checkpoint = self.stored, None
        if (
            index.entries
            or stored is None
            or self.synced.position - stored.position >= CHECKPOINT_BYTES
        ):
            self.producers.store_changes(index)
            self.deletions.store_changes(index)
            checkpoint = self.stored = self.synced.indexed_to(view.end_offset)
        entries = list(index.entries)
        self._staged_is_committed()
        complete((each for each in requests if each.refusal is not None), settlement)
        waiting = [each for each in requests if each.refusal is None]
        if self.replica is not None:
            waiting = self.replica.take_own(waiting, settlement)
        self.add_pending(PendingPoint(view, waiting, entries, checkpoint), settlement)

    def commit_checkpoint(self) -> None:
        """Stores how far the segment is synced, outside a turn."""
        self.stored = None
        self.backend.commit([self])
        if self.replication is None:
            self._staged_is_committed()
        else:
            self._add_point([], Settlement())

    def show_truncated(self, offset: int, position: int) -> None:
        """Takes everything from the offset on out of sight, before it goes. Appends that wait for
        the high watermark fail."""
        cause = OSError(f"the log was truncated to offset {offset} before the append was complete")
        self._fail_waiting(StorageFailed(self.spec.name, cause))
        view = self.view
        self.show(
            view._replace(
                end_offset=offset,
                active_length=position,
                stable_offset=min(view.stable_offset, offset),
            )
        )

    def show_start(self, start_offset: int) -> None:
        """Shows that the log starts later, and the segments that it has now."""
        self.change_shown(
            lambda view: view._replace(
                segments=self.segments,
                start_offset=start_offset,
                stable_offset=max(view.stable_offset, start_offset),
                aborted=self.producers.aborted,
            )
        )

    def _staged_is_committed(self) -> None:
        if self._staged_index is not None and self._staged_index.entries:
            self._staged_index = None
        if self.rows:
            self.rows = Rows()
        self._has_staged_control = False

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
            tail.builder.max_timestamp,
        )
        return tuple.__new__(View, fields)  # Calling the class takes another call.

    def written_alone(self) -> None:
        """Shows a batch that was written and taken into the tail by itself; see `stage`."""
        self._gathered_position = self.tail.position
        self.show(self._view_of_tail(self.view.start_offset))

    def watch(self, ticket: Ticket[None], end_offset: int) -> bool:
        """Completes the ticket when the end moves beyond the offset; False if it has already."""
        return self.watchers.add(
            ticket, lambda: self.view.end_offset > end_offset or self.refusal is not None
        )

    def fail(self, cause: BaseException) -> StorageFailed:
        """Closes the log for writing; what is shown stays readable, the rest is forgotten."""
        if isinstance(cause, StorageFailed):
            failure = type(cause)(self.spec.name, cause.cause)
        else:
            failure = storage_failure(self.spec.name, cause)
        self.refuse(failure)
        self.backend.health.report(ProblemKind.SHARD_FAILED, self.spec.name, failure)
        if self.replica is not None:
            self.replica.listener.failed(self.replica.id, failure)
        return failure

    def _fail_waiting(self, error: FirnError) -> None:
        """Fails the appends that wait for other replicas."""
        self.drop_pending(error)
        if self.replica is not None:
            self.replica.drop_waiting(error)
            if self.replica.has_held:
                self.parked.resume()

    def refuse(self, refusal: FirnError) -> None:
        """Lets nothing be appended any more, and fails what waits for the high watermark or for the
        next segment. A driver that is at work is not waited for. The lock is held."""
        self.refusal = refusal
        self._fail_waiting(refusal)
        self.rolling.handle(LogClosed(), 0.0)
        self.change_ended.notify_all()  # A roll that was only wanted will not come.
        self.parked.fail(refusal)
        if self.rolling.is_under_way:  # Its driver may be waiting for the high watermark.
            settlement = Settlement()
            self.watchers.wake(settlement)
            settlement.deliver()

    @property
    def has_unsynced(self) -> bool:
        return self.synced.position < self.tail.position

    @property
    def has_late_checkpoint(self) -> bool:
        """Whether more is synced than the stored checkpoint says."""
        return self.replication is None and self.synced is not (self.stored or self.synced)

    @property
    def wants_sync(self) -> bool:
        """Whether staged bytes must be durable before they are acknowledged.

        Control batches must be in any case. A transaction is forgotten once its marker is written
        everywhere, and no crash may bring back what is reported as deleted.
        """
        return self.spec.config.durability is Durability.FSYNC or self._has_staged_control

    # Rolling: the rest is in `rolling`. ------------------------------------------------------

    def show_all_pending(self) -> None:
        """Moves the high watermark to the end."""
        if self.replication is not None:
            settlement = Settlement()
            self._add_point([], settlement)
            self.show_pending(self.tail.next_offset, settlement)
            settlement.deliver()

    def release_preallocation(self) -> None:
        """Lets the active segment's bytes end where its batches do."""
        self.tail.segment.bytes.release_preallocation(self.tail.position)

    # Changes other than appends. The caller holds the lock, with `rolling.steps.unchanging`. -----

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """Releases the lock, which is held, while other stores are waited for: appends go on, and
        every other change waits for this one."""
        assert not self.is_changing
        self.is_changing = True
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()
            self.is_changing = False
            self.change_ended.notify_all()

    def move_start(self, start_offset: int) -> None:
        """Moves the start and drops sealed segments that end at or below it."""
        changes.move_start(self, start_offset)

    def append_at_opening(self, batches: Sequence[bytearray]) -> None:
        """Appends control batches, durably, to a log that is being opened and has no other user.
        There is always room for them; a roll may follow."""
        now_ms = self.backend.clock.now_ms()
        for data in batches:
            batch = PreparedBatch(data, parse_header(data), None)
            self._stage_batch(batch, now_ms, is_forced=True)
        self._hand_over()
        self.sync()
        self.backend.commit([self])
        if self.replication is None:
            self.end_turn([], Settlement())
        else:
            self.show_all_pending()

    def restart(self, tail: Tail) -> None:
        """Goes on from another end of the active segment."""
        self.segments = (*self.segments[:-1], tail.segment)
        self.tail = tail
        self._gathered_position = tail.position
        self.synced = self.tail.checkpoint()
        self.hints = {}
        self.known.begin(tail.segment.meta.seq, Point(tail.next_offset, tail.position))
        self.stored = self._staged_index = None
        self._staged_is_committed()
        self.wants_roll = False
        self.show(self._view_of_tail(self.view.start_offset))

    def replace_segment(self, old: Segment, new: Segment) -> None:
        """Puts the same sealed segment in another medium."""
        self.segments = tuple(new if each is old else each for each in self.segments)
        self.change_shown(lambda view: view._replace(segments=self.segments))
        self.hints = {}  # Its epoch may be one that other bytes had.

    def replace_sealed(self, old: list[Segment], new: Segment) -> None:
        """Puts one segment in the place of some neighbours, whose readers then start over."""
        merged = [segment.meta for segment in old[1:]]
        with self.unlocked():
            self.backend.state.replace_sealed(self.spec.uid, new.meta, merged)
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == tuple(old)
        self.segments = (*self.segments[:first], new, *self.segments[first + len(old) :])
        self.change_shown(lambda view: view._replace(segments=self.segments))
        self.cut_count += 2
        for segment in old:
            self.known.forget(segment.meta.seq)

    # Staging --------------------------------------------------------------------------------

    def _stage_merged(self, requests: list[Append], now_ms: int) -> bool:
        """Whether there was room for the requests, as one batch."""
        records: list[NewRecord] = []
        for request in requests:
            assert request.records is not None
            records += request.records
        offset = self._stage_batch(merge_records(records, self.spec.config, now_ms), now_ms)
        if offset == _NO_ROOM:
            return False
        for request in requests:
            assert request.records is not None
            end = offset + len(request.records)
            request.appended = Appended(base_offset=offset, next_offset=end)
            offset = end
        return True

    def _stage_request(self, request: Append, batch: PreparedBatch, now_ms: int) -> bool:
        """Whether there was room for a request's batch. One that a producer sends again is
        answered, not stored again."""
        header = batch.header
        stored: ProducerBatch | None = None
        if header.producer_id >= 0 and not header.is_control:
            try:
                stored = self.producers.check(header)
            except PRODUCER_REFUSALS as refusal:
                request.refusal = refusal
                return True
        if stored is not None:
            base_offset, next_offset = stored.base_offset, stored.last_offset + 1
        else:
            base_offset = self._stage_batch(batch, now_ms)
            if base_offset == _NO_ROOM:
                return False
            next_offset = self.tail.next_offset
        append_time_ms = header.max_timestamp if header.is_append_time else -1
        request.appended = Appended(base_offset, next_offset, append_time_ms)
        return True

    def _stage_batch(self, batch: PreparedBatch, now_ms: int, *, is_forced: bool = False) -> int:
        data, size = batch.data, len(batch.data)
        tail, spec = self.tail, self.spec
        position = tail.position
        if position + size > spec.config.segment_bytes:
            self.wants_roll = True
            if position and not is_forced and position + size > spec.config.segment_bytes_max:
                return _NO_ROOM
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
        tail.crc = chained(tail.crc, data)
        tail.position = position = position + size
        tail.next_offset = next_offset = base_offset + batch.record_count
        if position >= self.known.next_border_position:
            self.known.note_appended(Point(next_offset, position))
        if batch.header.producer_id >= 0:
            self.producers.note(batch.header, base_offset, data, now_ms)
        if batch.header.is_control:
            self._note_control(base_offset, data)
        self._gathered.append(data)
        return base_offset

    def _note_control(self, offset: int, batch: Buffer) -> None:
        self._has_staged_control = True
        if (deletion := deletion_of(batch)) is not None:
            self.deletions.note(offset, deletion)
            self.stored = None  # Its row is stored with this turn: manifests are made from rows.

    def _hand_over(self) -> None:
        """Gives the gathered batches to the segment with one gathered write."""
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            # A durable write covers its own bytes, so it will do only if none before are unsynced.
            # The followers of a log that leads fetch them before the sync.
            has_followers = self.replica is not None and self.replica.leads
            is_all = self.synced.position == self._gathered_position
            durable = self.wants_sync and is_all and not has_followers
            if self.tail.segment.bytes.append(
                gathered, self._gathered_position, self.rows, durable=durable
            ):
                self.synced = self.tail.checkpoint()
        self._gathered_position = self.tail.position

    def _turn_index(self) -> TurnIndex:
        if self._staged_index is None:
            self._staged_index = self.backend.turn_index(self.spec, self.tail.segment)
        return self._staged_index


STORAGE_ERRORS = (OSError, FirnError)
"""What staging, syncing and committing may raise: all of it closes the shard."""
