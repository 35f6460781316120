"""The engine over shard logs: finds, opens and reopens logs, and runs operations on them."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TypeVar

from firnmq.clock import Clock
from firnmq.config import Durability, TopicConfig
from firnmq.disk import Ticket, call_blocking
from firnmq.disk.files import Buffer
from firnmq.engines import tiered
from firnmq.engines.api import (
    AdapterOffsetStrategy,
    Appended,
    CompactionCounts,
    Page,
    RawPage,
    ShardStatus,
    StoredPage,
    Survey,
)
from firnmq.engines.compactor import Compactor
from firnmq.engines.direct import DirectLogs
from firnmq.engines.keeper import LogKeeper
from firnmq.engines.retention import expired_end, has_expired
from firnmq.engines.segments import SegmentMeta
from firnmq.engines.shardlog import (
    Append,
    LogReader,
    RawReader,
    ShardLog,
    prepare_batch,
    prepare_records,
)
from firnmq.engines.shardlog.append import PreparedBatch
from firnmq.engines.shardlog.deletions import delete_key, delete_offsets
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.engines.shardlog.truncate import cut_position
from firnmq.engines.state import ShardSpec, ShardState
from firnmq.engines.tier import SealedSource, TierCopy
from firnmq.engines.transactions import marker_batch
from firnmq.errors import (
    Closed,
    FirnError,
    InvalidArgument,
    ShardNotFound,
    StorageFailed,
    storage_failure,
)
from firnmq.eventlog import EventLogger
from firnmq.record import NewRecord, parse_header

T = TypeVar("T")
_LOCK_STRIPES = 64
_log = EventLogger("engine")


class LogEngine:
    """An Engine whose shards are logs; `keeper` says how they are opened and written."""

    def __init__(
        self,
        keeper: LogKeeper,
        state: ShardState,
        clock: Clock,
        *,
        producer_expiration_ms: int,
        compaction_bytes: int,
    ) -> None:
        """A producer is forgotten once it has stored nothing for `producer_expiration_ms`."""
        self._producer_expiration_ms = producer_expiration_ms
        self._keeper = keeper
        self.hand_over = keeper.hand_over
        """Appends what was accepted; the requests' tickets are settled once it is durable."""
        self._state = state
        self._clock = clock
        self._specs = {
            spec.name: spec
            for spec in state.shards()
            if spec.config.storage_type == keeper.storage_type
        }
        self._logs: dict[str, ShardLog] = {}
        self._opening = [threading.Lock() for _ in range(_LOCK_STRIPES)]
        self._is_closed = False
        self.direct = DirectLogs(self._logs, keeper.guest)
        self._tiered_refusal: FirnError | None = None
        """Why nothing is appended to topics with tiering at present."""
        self._compactor = Compactor(
            self._shards_to_compact,
            self._writable_log,
            keeper.recount,
            clock,
            memory_bytes=compaction_bytes,
        )

    # Shards -------------------------------------------------------------------------------------

    def create_shard(self, name: str, config: TopicConfig) -> ShardSpec:
        return self.create_shards([name], config)[0]

    def create_shards(
        self, names: Sequence[str], config: TopicConfig, topic_id: str | None = None
    ) -> list[ShardSpec]:
        """Makes many shards at once, with their topic's options if they are of a topic."""
        self._check_open()
        specs = self._state.add_shards(names, config, topic_id)
        self._specs.update((spec.name, spec) for spec in specs)
        return specs

    def delete_shard(self, name: str) -> None:
        """Removes a shard with all its records, without opening it: a corrupt one can go too."""
        self._spec(name)
        self.delete_shards([name])

    def delete_shards(self, names: Sequence[str]) -> None:
        """Removes shards; those that are not there are passed over, those that only the catalog
        knows go too.

        Their bytes go first, so that after a crash the catalog still knows what is left of them.
        """
        self._check_open()
        specs = [spec for name in names if (spec := self._specs.pop(name, None)) is not None]
        try:
            for spec in specs:
                self._drop(spec)
            self._state.remove_shards(names, specs)
        except STORAGE_ERRORS as error:
            self._specs.update((spec.name, spec) for spec in specs)  # To be deleted again.
            if isinstance(error, OSError):
                raise storage_failure(names[0], error) from error
            raise

    def _drop(self, spec: ShardSpec) -> None:
        with self._opening[spec.uid % _LOCK_STRIPES], ExitStack() as held:
            log = self._logs.pop(spec.name, None)
            if log is not None:
                with log.lock:
                    log.refusal = ShardNotFound(spec.name)
                held.enter_context(log.upkeep)  # Until compaction has seen the refusal.
                held.enter_context(log.lock)
            self._keeper.drop_shard(spec, log)

    def list_shard(self) -> list[ShardSpec]:
        return list(self._specs.values())

    def status(self, shard: str) -> ShardStatus:
        log = self._log(shard)
        view = log.view
        sealed = sum(each.meta.length for each in view.segments if each.meta.is_sealed)
        return ShardStatus(
            spec=log.spec,
            start_offset=view.start_offset,
            end_offset=view.end_offset,
            stable_offset=view.stable_offset,
            length_bytes=sealed + view.active_length,
            max_timestamp=max(
                log.tail.builder.max_timestamp,
                *(each.meta.max_timestamp for each in view.segments),
            ),
            segments=tuple(each.meta for each in view.segments),
            failure=None if log.refusal is None else str(log.refusal),
        )

    def is_open(self, shard: str) -> bool:
        """Whether a call on the shard needs no recovery first."""
        return shard in self._logs

    def bounds(self, shard: str) -> tuple[int, int]:
        """Start and end offset."""
        view = self._log(shard).view
        return view.start_offset, view.end_offset

    def stable_offset(self, shard: str) -> int:
        """First offset of the earliest transaction that has not ended, or the end."""
        return self._log(shard).view.stable_offset

    def reconfigure(self, shard: str, config: TopicConfig) -> None:
        """Gives a shard other options, for what is written and judged from now on."""

        spec = dataclasses.replace(self._spec(shard), config=config)
        if config.expire_header != self._spec(shard).config.expire_header:
            raise InvalidArgument("expire.header", "is fixed when a topic is made")
        with self._opening[spec.uid % _LOCK_STRIPES]:
            self._state.reconfigure(spec)
            self._specs[shard] = spec
            log = self._logs.get(shard)
            if log is not None:
                with log.lock:
                    log.spec = spec
                    if log.refusal is None and config.durability is not Durability.FSYNC:
                        with suppress(OSError):  # Else the next roll or opening cuts it off.
                            log.give_back_room()

    # Writing ------------------------------------------------------------------------------------

    async def append(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        spec = self._spec(shard)
        request = prepare_records(records, spec.config, self._clock.now_ms())
        return await (await self._keeper.submit(await self._log_to_append(shard), request))

    async def append_batches(self, shard: str, batches: Sequence[Buffer]) -> Appended:
        """Appends a client's batches. Writable buffers are patched in place: hand them over."""
        return await (await self.submit_batches(shard, batches))

    async def submit_batches(self, shard: str, batches: Sequence[Buffer]) -> Ticket[Appended]:
        """Queues a client's batches in the order of calls; the ticket waits for durability."""
        if not batches:
            raise InvalidArgument("batches", "there must be at least one")
        if len({id(batch) for batch in batches}) < len(batches):
            batches = [bytearray(batch) for batch in batches]  # Each is patched by itself.
        spec = self._spec(shard)
        prepared = [prepare_batch(batch, spec.config) for batch in batches]
        request = Append(None, prepared, sum(len(batch.data) for batch in prepared))
        return await self._keeper.submit(await self._log_to_append(shard), request)

    def accept_batch(self, shard: str, batch: Buffer, ticket: Ticket[Appended]) -> Append | None:
        """A client's batch, checked, for `hand_over`; None where the caller would have to wait.

        This and `submit_batches` keep the order of calls as long as each accepted request is
        handed over before the next is submitted.
        """
        log = self._logs.get(shard)
        if log is None or log.refusal is not None or self._is_closed:
            return None
        if self._tiered_refusal is not None and log.spec.config.is_tiered:
            return None  # Whoever submits it instead is told why.
        prepared = prepare_batch(batch, log.spec.config)
        request = Append(None, [prepared], len(prepared.data))
        if not self._keeper.accepts(log, request):
            return None
        request.log = log
        request.ticket = ticket
        return request

    async def append_marker(
        self, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended:
        """Ends a producer's transaction in the shard; durable whatever the topic asks for."""
        data = marker_batch(producer_id, epoch, is_commit=is_commit)
        request = Append(None, [PreparedBatch(data, parse_header(data), None)], len(data))
        log = await self._log_to_append(shard, is_marker=True)
        return await (await self._keeper.submit(log, request))

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> bool:
        """Settles the ticket when the shard grows beyond the offset; False if it has already."""
        return self._log(shard).watch(ticket, end_offset)

    def unwatch(self, shard: str, ticket: Ticket[None]) -> None:
        log = self._logs.get(shard)
        if log is not None:
            log.watchers.remove(ticket)

    # Reading ------------------------------------------------------------------------------------

    def read_by_offset(self, shard: str, offset: int, *, max_records: int, max_bytes: int) -> Page:
        return self._reader(shard).by_offset(offset, max_records, max_bytes)

    def read_batches(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool = False
    ) -> RawPage:
        return self._reader(shard).raw(offset, max_bytes, committed=committed)

    def read_stored_nowait(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage | None:
        """Whole batches for a client, if they can be had without waiting; may be called in a loop.

        Large ones come as file ranges if those are taken.
        """
        log = self._logs.get(shard)
        if log is None or log.cut_count % 2 or self._is_closed:
            return None
        reader = RawReader(log, self._clock.now_ms())
        return reader.nowait(offset, max_bytes, committed=committed, ranges=ranges)

    def read_stored(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage:
        """The same, read and checked first."""
        reader = RawReader(self._log(shard), self._clock.now_ms())
        return reader.checked(offset, max_bytes, committed=committed, ranges=ranges)

    def read_by_key(self, shard: str, key: bytes, *, hot_only: bool = False) -> Page:
        return self._reader(shard).by_key(key, hot_only=hot_only)

    def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return self._reader(shard).by_tag(tag, start_offset, max_records, max_bytes)

    def get_offset_by_timestamp(
        self,
        shard: str,
        timestamp_ms: int,
        strategy: AdapterOffsetStrategy,
        *,
        committed: bool = True,
    ) -> int:
        return self._reader(shard).offset_by_time(timestamp_ms, strategy, committed=committed)

    def survey(self, shard: str, judge: Callable[[Survey], T]) -> T:
        """What `judge` makes of the shard; it is called anew if segments are replaced meanwhile."""
        return self._reader(shard).survey(judge)

    def settle(self, shard: str) -> int:
        """Has synced what is shown and not synced yet (durability=os, interval); the end of what is
        durable then."""
        log = self._writable_log(shard)
        end_offset = log.view.end_offset
        self._keeper.settle(log)
        return end_offset

    # Changing what is there -----------------------------------------------------------------------

    def delete_by_key(self, shard: str, key: bytes) -> int | None:
        """Deletes every record of the key below the offset that it returns; None if the shard has
        no record of the key."""
        return self._change(shard, lambda log: delete_key(log, key))

    def delete_by_offset(self, shard: str, offsets: Sequence[int]) -> list[int]:
        """Deletes records, and returns the offsets of those that were not deleted before."""
        return self._change(shard, lambda log: delete_offsets(log, offsets))

    def delete_records_before(self, shard: str, offset: int) -> int:
        """Moves the start of the shard up to the offset; one below the start changes nothing.
        Returns where it was."""

        def move(log: ShardLog) -> int:
            start_offset = log.view.start_offset
            LogReader(log, 0).check_bounds(max(offset, start_offset))
            log.move_start(offset)
            return start_offset

        return self._change(shard, move)

    def truncate(self, shard: str, offset: int) -> None:
        """Cuts everything from the offset on, which must begin a batch of the active segment."""
        log = self._writable_log(shard)
        with log.lock:
            _refuse(log)
            position = cut_position(log, offset)
            if position is None:
                return
            try:
                self._keeper.truncate(log, offset, position)
            except STORAGE_ERRORS as error:
                raise log.fail(error) from error

    def roll(self, shard: str) -> None:
        """Seals the active segment now; an empty one stays."""
        self._change(shard, _roll)

    # Copies in an object store --------------------------------------------------------------------

    def begin_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta:
        """Notes that a sealed segment is being copied; StaleEpoch if it is gone or copied already.

        The segment as it was is returned: with the unfinished copy, if there is one, that this one
        takes the place of and whose objects nobody else will remove.
        """
        return self._of_copy(shard, lambda log: tiered.begin_copy(log, seq, copy))

    def finish_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta:
        """Notes that a segment's copy is whole and verified; StaleEpoch unless it is the one that
        was begun last."""
        return self._of_copy(shard, lambda log: tiered.finish_copy(log, seq, copy))

    def abandon_copy(self, shard: str, seq: int, upload_id: str) -> bool:
        """Forgets an unfinished copy, whose objects can then go; False if it is finished, or not
        there any more, and nothing was changed."""
        return self._of_copy(shard, lambda log: tiered.abandon_copy(log, seq, upload_id))

    def lose_copy(self, shard: str, seq: int, upload_id: str) -> TierCopy | None:
        """Forgets a finished copy that is not whole any more, so that another can be made; None if
        the segment is not here as well, or has another copy by now, and nothing was changed."""
        return self._of_copy(shard, lambda log: tiered.lose_copy(log, seq, upload_id))

    def sealed_source(self, shard: str, seq: int) -> SealedSource:
        """What an uploader reads; StaleEpoch if the segment is not here."""

        def source(log: ShardLog) -> SealedSource:
            return tiered.SegmentSource(log, tiered.sealed_segment(log, seq), self._state)

        return self._of_copy(shard, source)

    def drop_local(self, shard: str, seq: int) -> None:
        """Removes what is here of a segment that is in the object store.

        The catalog is told first, then readers, then bytes and index entries go; a crash between
        the two is finished when the shard is opened.
        """
        gone = self._of_copy(shard, lambda log: tiered.become_remote(log, seq))
        if gone is not None:
            log = self._log(shard)
            try:
                log.backend.drop_segment(log.spec, gone)
            except OSError as error:
                raise storage_failure(shard, error) from error

    def dead_copies(self) -> list[tuple[str, SegmentMeta]]:
        """Deleted segments, with their shards, that may still have objects."""
        return [each for each in self._state.dead_copies() if each[0] in self._specs]

    def forget_copy(self, shard: str, seq: int) -> None:
        """Forgets a deleted segment whose objects are gone."""
        self._state.forget_copy(self._spec(shard).uid, seq)

    def reads_cold(self, shard: str, offset: int) -> bool:
        """Whether a read from the offset on may have to wait for an object store. Does not wait
        if the shard is open."""
        return offset < self._log(shard).cold_end_offset

    def finds_cold(self, shard: str, timestamp_ms: int) -> bool:
        """The same for the search of a timestamp."""
        log = self._log(shard)
        return log.cold_end_offset > log.view.start_offset and any(
            not each.meta.is_local and each.meta.max_timestamp >= timestamp_ms
            for each in log.view.segments
        )

    def refuse_tiered(self, refusal: FirnError | None) -> None:
        """Has appends to topics with tiering refused, until it is called with None: too much waits
        to be copied."""
        self._tiered_refusal = self.direct.tiered_refusal = refusal

    def check_change(self, shard: str, config: TopicConfig) -> None:
        """InvalidArgument if the shard's copies do not allow these options."""
        metas = self._state.chain(self._spec(shard).uid)
        live = [meta for meta in metas if meta.is_sealed]
        if not config.is_tiered and not all(meta.is_local for meta in live):
            raise InvalidArgument(
                "tiering",
                "cannot be turned off while segments are in the object store alone; "
                "wait until retention has removed them, or lower retention.ms",
            )
        if config.compacts and any(meta.tier is not None for meta in live):
            raise InvalidArgument(
                "cleanup.policy",
                "cannot compact a topic that has segments in the object store, which never change",
            )

    def _of_copy(self, shard: str, change: Callable[[ShardLog], T]) -> T:
        log = self._writable_log(shard)
        with log.lock:
            _refuse(log)
            try:
                return change(log)
            except OSError as error:
                raise storage_failure(shard, error) from error

    # Upkeep -------------------------------------------------------------------------------------

    def housekeep(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """Rolls by age, drops what retention allows and producers that have long been silent,
        and whatever else the keeper has to do; then compacts for a while.

        One shard's trouble is logged and does not keep others from their turn; if it is a defect,
        it is raised in the end.
        """
        defects: list[Exception] = []
        for name, spec in list(self._specs.items()):
            config = spec.config
            limits = (config.retention_ms, config.retention_bytes, config.ttl_ms)
            has_limits = limits != (None,) * 3
            if name not in self._logs and not has_limits and not config.compacts:
                continue
            try:
                log = self._writable_log(name)
                with log.lock:
                    _refuse(log)
                    self._retain(log)
                    self._forget_producers(log)
                self._keeper.housekeep(log)
            except ShardNotFound:
                continue  # Deleted meanwhile.
            except (FirnError, OSError) as error:
                _log.error("housekeeping_failed", shard=name, error=str(error))
            except Exception as defect:  # Supervisor: other shards have their turn first.
                _log.error("housekeeping_failed", shard=name, error=repr(defect))
                defects.append(defect)
        self._compactor.work(is_stopping)
        if defects:
            raise defects[0]

    def compaction_counts(self) -> CompactionCounts:
        return self._compactor.counts

    def close(self) -> None:
        self._compactor.close()
        self._is_closed = self.direct.is_closed = True

    def _shards_to_compact(self) -> list[str]:
        return [name for name, spec in list(self._specs.items()) if spec.config.compacts]

    def _retain(self, log: ShardLog) -> None:
        config, now_ms = log.spec.config, self._clock.now_ms()
        tail = log.tail
        written_ms = tail.first_append_ms or now_ms
        is_old = has_expired(tail.builder.max_timestamp, written_ms, config, now_ms)
        if log.must_roll_by_age(now_ms) or is_old:
            _roll(log)
        metas = [segment.meta for segment in log.segments]
        lake_end = self._state.lake_end(log.spec.uid) if config.lake_required else None
        end = expired_end(metas, config, log.tail.position, now_ms, lake_end)
        # Sealed segments below the start go too: they were active when it was moved past them.
        log.move_start(log.view.start_offset if end is None else end)

    def _forget_producers(self, log: ShardLog) -> None:
        count = log.forget_idle_producers(self._clock.now_ms() - self._producer_expiration_ms)
        if count:
            _log.info("producers_forgotten", shard=log.spec.name, count=count)

    def log(self, shard: str) -> ShardLog:
        """The shard's log, for tools that check it from inside."""
        return self._log(shard)

    # Finding logs ---------------------------------------------------------------------------------

    def _spec(self, name: str) -> ShardSpec:
        self._check_open()
        spec = self._specs.get(name)
        if spec is None:
            raise ShardNotFound(name, within=self._keeper.storage_type)
        return spec

    def _log(self, name: str) -> ShardLog:
        self._check_open()
        log = self._logs.get(name)
        return log if log is not None else self._open(name, None)

    def _writable_log(self, name: str) -> ShardLog:
        """The log, reopened from disk if storage had failed."""
        log = self._log(name)
        if log.refusal is None:
            return log
        if isinstance(log.refusal, StorageFailed):
            return self._open(name, log)
        raise log.refusal

    async def _log_to_append(self, name: str, *, is_marker: bool = False) -> ShardLog:
        """The same without blocking an event loop while a log is being opened."""
        refusal = None if is_marker else self._tiered_refusal
        if refusal is not None and self._spec(name).config.is_tiered:
            raise refusal
        log = self._logs.get(name)
        if log is not None and log.refusal is None:
            return log
        return await call_blocking(None, self._writable_log, name)

    def _open(self, name: str, failed: ShardLog | None) -> ShardLog:
        spec = self._spec(name)
        with self._opening[spec.uid % _LOCK_STRIPES]:
            spec = self._spec(name)  # It may have been deleted, or made anew, meanwhile.
            log = self._logs.get(name)
            if log is not None and log is not failed:
                return log
            try:
                log = self._keeper.open(spec, failed)
            except OSError as error:
                raise storage_failure(name, error) from error
            self._logs[name] = log
            return log

    def _reader(self, shard: str) -> LogReader:
        return LogReader(self._log(shard), self._clock.now_ms())

    def _change(self, shard: str, change: Callable[[ShardLog], T]) -> T:
        log = self._writable_log(shard)
        with log.lock:
            _refuse(log)
            try:
                changed = change(log)
            except OSError as error:
                raise storage_failure(shard, error) from error
            self._keeper.recount(log)
        return changed

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed("the store is closed")


def _roll(log: ShardLog) -> None:
    if log.tail.position == 0:
        return
    try:
        log.roll()
        log.publish()
    except STORAGE_ERRORS as error:
        raise log.fail(error) from error


def _refuse(log: ShardLog) -> None:
    if log.refusal is not None:
        raise log.refusal
