"""The engine over shard logs: every operation on a shard, from finding the log to its errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from firnmq.clock import Clock
from firnmq.config import TopicConfig
from firnmq.disk import Ticket, call_blocking, run_blocking
from firnmq.disk.files import Buffer
from firnmq.engines.api import (
    Acks,
    AdapterOffsetStrategy,
    Appended,
    CompactionCounts,
    Page,
    ProducerStatus,
    RawPage,
    ShardStatus,
    StoredPage,
    Survey,
    meant_by,
)
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.catalog.transactions import marker_batch
from firnmq.engines.deletion.requests import deletion_of_key, deletion_of_offsets
from firnmq.engines.due import DueTimes
from firnmq.engines.gate import AppendGate
from firnmq.engines.keeper import LogKeeper
from firnmq.engines.logs import OPEN_MAX, ShardLogs
from firnmq.engines.open_log import OpenLog
from firnmq.engines.opener import LogOpener
from firnmq.engines.shard_changes import ShardChanges
from firnmq.engines.shardlog import (
    Append,
    BatchRules,
    RawReader,
    ShardLog,
    TimeReader,
    prepare_records,
    prepare_request,
)
from firnmq.engines.shardlog.append import PreparedBatch
from firnmq.engines.shardlog.changes import drops_of, remove_unlocked
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.engines.shardlog.reading.survey import producers_of, status_of
from firnmq.engines.shardlog.rolling.steps import Move, unchanging, wait_until_idle
from firnmq.engines.shardlog.truncate import cut_position
from firnmq.engines.shards import ShardTable
from firnmq.engines.tiering import copies
from firnmq.engines.tiering.api import SealedSource, TierCopy
from firnmq.engines.upkeep import Upkeep
from firnmq.errors import (
    Closed,
    FirnError,
    InvalidArgument,
    NotLeader,
    storage_failure,
)
from firnmq.health import Health
from firnmq.record import NewRecord, parse_header
from firnmq.record.deletion import Deletion, deletion_batch

T = TypeVar("T")


class LogEngine:
    """An Engine whose shards are logs; `keeper` says how they are opened and written."""

    def __init__(
        self,
        keeper: LogKeeper,
        state: ShardState,
        clock: Clock,
        *,
        health: Health,
        gate: AppendGate,
        producer_expiration_ms: int,
        compaction_bytes: int,
        judges: Executor | None = None,
        open_max: int = OPEN_MAX,
        due: DueTimes | None = None,
    ) -> None:
        """A producer is forgotten once it has stored nothing for `producer_expiration_ms`.
        Threads of `judges` judge batches that are too large for an event loop."""
        self._judges = judges
        self._keeper = keeper
        self._state = state
        self._clock = clock
        self._gate = gate
        storage_type = keeper.storage_type
        self._logs = ShardLogs(
            keeper,
            ShardTable(
                (spec for spec in state.shards() if spec.config.storage_type == storage_type),
                (each for each in state.ranges() if each[1].storage_type == storage_type),
            ),
            health,
            open_max=open_max,
        )
        self._opener = LogOpener(self._logs.writable)
        changes = ShardChanges(self._logs, state, due)
        self.create_shard = changes.create_shard
        self.create_shards = changes.create_shards
        self.delete_shard = changes.delete_shard
        self.delete_shards = changes.delete_shards
        self.shards_beyond = changes.shards_beyond
        self.adopt = changes.adopt
        self.release = changes.release
        self.hold = changes.hold
        self.discard = changes.discard
        self.reconfigure = changes.reconfigure
        self.apart = changes.apart
        self._tiered_refusal: FirnError | None = None
        """Why nothing is appended to topics with tiering at present."""
        self._upkeep = Upkeep(
            self._logs,
            keeper,
            state,
            clock,
            producer_expiration_ms=producer_expiration_ms,
            compaction_bytes=compaction_bytes,
            due=due,
        )

    @property
    def is_closed(self) -> bool:
        return self._logs.is_closed

    @property
    def logs(self) -> ShardLogs:
        """Where logs with other replicas are shown to clients."""
        return self._logs

    # Shards -------------------------------------------------------------------------------------

    def has_shard(self, shard: str) -> bool:
        """Whether the shard is one of this engine's. Never waits."""
        return shard in self._logs.shards

    def list_shard(self) -> list[ShardSpec]:
        return list(self._logs.shards)

    def find_shard(self, shard: str) -> ShardSpec | None:
        return self._logs.shards.get(shard)

    def opened(self) -> list[str]:
        return [log.spec.name for log in self._logs.opened()]

    def status(self, shard: str) -> ShardStatus:
        return status_of(self._logs.find(shard), self._logs.troubles.of(shard))

    def producers(self, shard: str) -> list[ProducerStatus]:
        return producers_of(self._logs.find(shard))

    def is_open(self, shard: str) -> bool:
        """Whether a call on the shard needs no recovery first."""
        return shard in self._logs

    def bounds(self, shard: str) -> tuple[int, int]:
        """Start and end offset."""
        view = self._logs.find(shard).view
        return view.start_offset, view.end_offset

    def stable_offset(self, shard: str) -> int:
        """First offset of the earliest transaction that has not ended, or the end."""
        return self._logs.find(shard).view.stable_offset

    # Writing ------------------------------------------------------------------------------------

    async def submit(
        self,
        shard: str,
        batch: Buffer,
        acks: Acks = Acks.ALL,
        deadline_s: float | None = None,
    ) -> Ticket[Appended]:
        config = self._logs.spec(shard).config
        rules = BatchRules(config)
        request = await prepare_request(batch, rules, self._judges, self._clock.now_ms())
        request.promise(meant_by(acks, config), deadline_s)
        return await self._submit(request, await self._log_to_append(shard))

    async def append(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        request = prepare_records(records, self._logs.spec(shard).config, self._clock.now_ms())
        return await (await self._submit(request, await self._log_to_append(shard)))

    async def append_marker(
        self, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended:
        """Ends a producer's transaction in the shard; durable whatever the topic asks for."""
        return await (
            await self._submit_control(shard, marker_batch(producer_id, epoch, is_commit=is_commit))
        )

    async def submit_deletion(self, shard: str, deletion: Deletion) -> list[Ticket[Appended]]:
        """Appends the entries of a deletion, each of which takes an offset; durable whatever the
        topic asks for. It counts once the tickets are complete."""
        parts = map(deletion_batch, deletion.parts())
        return [await self._submit_control(shard, data) for data in parts]

    async def _submit_control(self, shard: str, data: bytearray) -> Ticket[Appended]:
        """What is no client's record is appended on a full disk too, as far as the disk lets it."""
        request = Append(None, PreparedBatch(data, parse_header(data), None), len(data))
        return await self._submit(request, await self._log_to_append(shard, is_control=True))

    async def _submit(self, request: Append, log: ShardLog) -> Ticket[Appended]:
        """Waits for room, then submits; the ticket waits for the acknowledgement."""
        request.log = log
        request.ticket = Ticket()
        await self._keeper.wait_for_room(log, request)
        self._keeper.submit([request])
        return request.ticket

    def open_log(self, shard: str) -> OpenLog | None:
        log = self._logs.get(shard)
        if log is None or log.refusal is not None or self._logs.is_closed:
            return None
        log.use.is_used = True
        return OpenLog(self, log, self._keeper)

    def takes_appends(self, log: ShardLog) -> bool:
        """Whether there is nothing to wait for, nor to be refused, before an append."""
        return (
            log.refusal is None
            and not self._logs.is_closed
            and not self._gate.is_shut
            and (self._tiered_refusal is None or not log.spec.config.is_tiered)
        )

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> bool:
        """Completes the ticket when the shard grows beyond the offset; False if it has already."""
        log = self._logs.find(shard)
        is_waiting = log.watch(ticket, end_offset)
        if is_waiting:
            self._logs.stay_open(shard, log)
        return is_waiting

    def unwatch(self, shard: str, ticket: Ticket[None]) -> None:
        log = self._logs.get(shard)
        if log is not None:
            log.watchers.remove(ticket)

    # Reading ------------------------------------------------------------------------------------

    def read_by_offset(self, shard: str, offset: int, *, max_records: int, max_bytes: int) -> Page:
        return self._read(shard, lambda reader: reader.by_offset(offset, max_records, max_bytes))

    def read_batches(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool = False
    ) -> RawPage:
        return self._read(shard, lambda reader: reader.raw(offset, max_bytes, committed=committed))

    def read_stored_nowait(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage | None:
        """Whole batches for a client if that needs no waiting; large ones as file ranges."""
        log = self._logs.get(shard)
        if log is None or log.cut_count % 2 or self._logs.is_closed:
            return None
        log.use.is_used = True
        reader = RawReader(log, self._clock.now_ms())
        try:
            return reader.nowait(offset, max_bytes, committed=committed, ranges=ranges)
        except OSError:
            return None  # `read_stored` meets it too, and reports it.

    def read_stored(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage:
        """The same, read and checked first."""
        self._logs.find(shard)

        def read() -> StoredPage:
            reader = RawReader(self._logs.find(shard), self._clock.now_ms())
            return reader.checked(offset, max_bytes, committed=committed, ranges=ranges)

        return self._logs.troubles.read(shard, read)

    def read_by_key(self, shard: str, key: bytes, *, hot_only: bool = False) -> Page:
        return self._read(shard, lambda reader: reader.by_key(key, hot_only=hot_only))

    def read_key_history(self, shard: str, key: bytes, start_offset: int, **limits: int) -> Page:
        return self._read(shard, lambda reader: reader.key_history(key, start_offset, **limits))

    def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return self._read(
            shard, lambda reader: reader.by_tag(tag, start_offset, max_records, max_bytes)
        )

    def get_offset_by_timestamp(
        self,
        shard: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy,
        *,
        committed: bool = True,
    ) -> int:
        return self._read(
            shard,
            lambda reader: reader.offset_by_time(timestamp_ms, strategy, committed=committed),
        )

    def newest_record(self, shard: str, *, committed: bool) -> tuple[int, int] | None:
        return self._read(shard, lambda reader: reader.newest(committed=committed))

    def survey(self, shard: str, judge: Callable[[Survey], T]) -> T:
        """What `judge` makes of the shard; it is called again if segments are replaced under it."""
        return self._read(shard, lambda reader: reader.survey(judge))

    def settle(self, shard: str) -> int:
        """Has synced what is shown and not synced yet (durability=os, interval); the end of what is
        durable then."""
        log = self._logs.writable(shard)
        end_offset = log.view.end_offset
        self._keeper.settle(log)
        return end_offset

    # Changing what is there -----------------------------------------------------------------------

    def delete_by_key(self, shard: str, key: bytes) -> int | None:
        """Deletes every record of the key below the offset that it returns; None if the shard has
        no record of the key that is not deleted already. The entry of the deletion takes an offset.
        """
        log = self._logs.writable(shard)
        deletion, for_table = deletion_of_key(log, key)
        self._delete(shard, deletion, for_table)
        return deletion.keys[0][1] if deletion.keys else None

    def delete_by_offset(self, shard: str, offsets: Sequence[int]) -> list[int]:
        """Deletes records, and returns the offsets of those that were not deleted before. If there
        are any, the entry of the deletion takes an offset; many make several entries."""
        log = self._logs.writable(shard)
        deletion, for_table = deletion_of_offsets(log, offsets)
        self._delete(shard, deletion, for_table)
        return list(deletion.offsets)

    def _delete(self, shard: str, deletion: Deletion, for_table: Deletion) -> None:
        """Returns once no read shows the records, and no crash brings them back."""
        for ticket in run_blocking(self.submit_deletion(shard, deletion)):
            ticket.wait()
        if any(for_table):
            log = self._logs.writable(shard)
            with log.lock:
                _refuse(log)
                log.backend.state.note_retired(log.spec.uid, for_table)

    def delete_records_before(self, shard: str, offset: int) -> int:
        """Moves the start of the shard up to the offset; one below the start changes nothing.
        Returns where it was."""

        def move(log: ShardLog) -> int:
            start_offset = log.view.start_offset
            TimeReader(log, 0).check_bounds(max(offset, start_offset))
            log.move_start(offset)
            return start_offset

        return self._change(shard, move)

    def truncate(self, shard: str, offset: int) -> None:
        """Removes everything from the offset on, which must begin a batch of the active segment."""
        log = self._logs.writable(shard)
        with unchanging(log):
            _refuse(log)
            if log.replica is not None:
                raise InvalidArgument("shard", f"{shard} has replicas and cannot be truncated")
            position = cut_position(log, offset)
            if position is None:
                return
            try:
                self._keeper.truncate(log, offset, position)
            except STORAGE_ERRORS as error:
                raise log.fail(error) from error

    def roll(self, shard: str, move: Move | None = None) -> None:
        """Seals the active segment now; an empty one stays. With a move another node leads the next
        segment, and the shard is not this engine's any more when this returns."""
        log = self._logs.writable(shard)
        try:
            self._keeper.roll(log, move)
        except OSError as error:
            raise storage_failure(shard, error) from error
        if move is not None:
            refusal = NotLeader(shard, move.node, move.successor.node)
            self._logs.release(shard, log.spec.epoch, refusal)

    # Copies in an object store --------------------------------------------------------------------

    def begin_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta:
        """Notes that a sealed segment is being copied; StaleEpoch if it is gone or copied already.

        Returns the segment as it was. If it has an unfinished copy, this one replaces that copy,
        and the caller has to remove its objects.
        """
        return self._of_copy(shard, lambda log: copies.begin_copy(log, seq, copy))

    def finish_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta:
        """Notes that a segment's copy is whole and verified; StaleEpoch unless it is the one that
        was begun last."""
        return self._of_copy(shard, lambda log: copies.finish_copy(log, seq, copy))

    def abandon_copy(self, shard: str, seq: int, upload_id: str) -> bool:
        """Forgets an unfinished copy, whose objects can then go; False if it is finished, or not
        there any more, and nothing was changed."""
        return self._of_copy(shard, lambda log: copies.abandon_copy(log, seq, upload_id))

    def lose_copy(self, shard: str, seq: int, upload_id: str) -> TierCopy | None:
        """Forgets a finished copy that is not whole any more, so that another can be made; None if
        the segment is not here as well, or has another copy by now, and nothing was changed."""
        return self._of_copy(shard, lambda log: copies.lose_copy(log, seq, upload_id))

    def sealed_source(self, shard: str, seq: int) -> SealedSource:
        """What an uploader reads; StaleEpoch if the segment is not here."""

        def source(log: ShardLog) -> SealedSource:
            return copies.SegmentSource(log, copies.sealed_segment(log, seq), self._state)

        return self._of_copy(shard, source)

    def drop_local(self, shard: str, seq: int) -> None:
        """Removes what is here of a segment that is in the object store.

        The catalog is told first, then readers, then bytes and index entries go; a crash between
        the two is finished when the shard is opened.
        """
        gone = self._of_copy(shard, lambda log: copies.become_remote(log, seq))
        if gone is not None:
            log = self._logs.find(shard)
            remove_unlocked(log, drops_of(log, [gone]))

    def dead_copies(self) -> list[tuple[str, SegmentMeta]]:
        """Deleted segments, with their shards, that may still have objects."""
        return [each for each in self._state.dead_copies() if each[0] in self._logs.shards]

    def shows(self, shard: str, seq: int) -> bool:
        """Whether readers are shown a segment: its objects must stay as long as they are. A log
        that was closed by a failure shows what the catalog may have given up; upkeep reopens it."""
        log = self._logs.get(shard)
        return log is not None and any(each.meta.seq == seq for each in log.view.segments)

    def forget_copy(self, shard: str, seq: int) -> None:
        """Forgets a deleted segment whose objects are gone."""
        self._state.forget_copy(self._logs.spec(shard).uid, seq)

    def reads_cold(self, shard: str, offset: int) -> bool:
        """Whether a read from the offset on may have to wait for an object store. Does not wait
        if the shard is open."""
        return offset < self._logs.find(shard).cold_end_offset

    def finds_cold(self, shard: str, timestamp_ms: int) -> bool:
        """The same for the search of a timestamp."""
        log = self._logs.find(shard)
        return log.cold_end_offset > log.view.start_offset and any(
            not each.meta.is_local and each.meta.max_timestamp >= timestamp_ms
            for each in log.view.segments
        )

    def refuse_tiered(self, refusal: FirnError | None) -> None:
        """Has appends to topics with tiering refused, until it is called with None: too much waits
        to be copied."""
        self._tiered_refusal = refusal

    def check_change(self, shard: str, config: TopicConfig) -> None:
        """InvalidArgument if the shard's copies do not allow these options."""
        copies.check_change(self._state.chain(self._logs.spec(shard).uid), config)

    def _of_copy(self, shard: str, change: Callable[[ShardLog], T]) -> T:
        log = self._logs.writable(shard)
        with unchanging(log):
            _refuse(log)
            try:
                return change(log)
            except OSError as error:
                raise storage_failure(shard, error) from error

    # Upkeep -------------------------------------------------------------------------------------

    def housekeep(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        self._upkeep.work(is_stopping)

    def compaction_counts(self) -> CompactionCounts:
        return self._upkeep.compactor.counts

    def close(self) -> None:
        self._upkeep.compactor.close()
        self._logs.is_closed = True

    def fail_pending(self) -> None:
        """Fails appends that wait for the high watermark: nothing will move it any more."""
        for log in filter(lambda each: each.has_pending, self._logs.opened()):
            with log.lock:
                log.refuse(Closed("the store was closed before the replicas had the append"))

    def log(self, shard: str) -> ShardLog:
        """The shard's log, for tools that check it from inside."""
        return self._logs.find(shard)

    def wait_for_roll(self, shard: str) -> None:
        """Waits until no roll of the shard is wanted or under way."""
        log = self._logs.get(shard)
        if log is not None:
            with log.lock:
                wait_until_idle(log)

    def shown_length(self, shard: str) -> int | None:
        """Bytes of the active segment below the high watermark; None if all are, or if the shard is
        not open."""
        log = self._logs.get(shard)
        return None if log is None or not log.has_pending else log.view.active_length

    # Finding logs ---------------------------------------------------------------------------------

    async def _log_to_append(self, name: str, *, is_control: bool = False) -> ShardLog:
        """The same without blocking an event loop while a log is being opened."""
        refusal = None if is_control else self._tiered_refusal
        if refusal is not None and self._logs.spec(name).config.is_tiered:
            raise refusal
        if self._gate.is_shut and not is_control:
            await call_blocking(None, self._gate.check, name)
        log = self._logs.get(name)
        if log is not None and log.refusal is None:
            log.use.is_used = True
            return log
        return await self._opener.open(name)

    def _read(self, shard: str, read: Callable[[TimeReader], T]) -> T:
        """What `read` gives; an unreadable place is reported, a shard that cannot be opened as
        such."""
        self._logs.find(shard)
        return self._logs.troubles.read(
            shard, lambda: read(TimeReader(self._logs.find(shard), self._clock.now_ms()))
        )

    def _change(self, shard: str, change: Callable[[ShardLog], T]) -> T:
        log = self._logs.writable(shard)
        with unchanging(log):
            _refuse(log)
            try:
                changed = change(log)
            except OSError as error:
                raise storage_failure(shard, error) from error
            self._keeper.recount(log)
        return changed


def _refuse(log: ShardLog) -> None:
    if log.refusal is not None:
        raise log.refusal
