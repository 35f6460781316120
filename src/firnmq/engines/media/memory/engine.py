"""Puts the memory engine together: appends in the caller's thread, within a limit for all."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from time import monotonic

from firnmq.clock import Clock
from firnmq.config import StorageType, TopicConfig
from firnmq.disk import Family, KeyValueStore, Settlement, call_blocking
from firnmq.disk.waiting import is_blocking
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import Medium, Segment, SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.compaction.stored_copy import drop_strays_of
from firnmq.engines.deadlines import Deadlines
from firnmq.engines.deletion.opening import append_unlogged
from firnmq.engines.engine import LogEngine
from firnmq.engines.gate import AppendGate
from firnmq.engines.inline import InlineAppends
from firnmq.engines.media.layouts import PartitionPerFile
from firnmq.engines.media.memory.backend import MemoryBackend, in_memory_after, is_in_chain, spills
from firnmq.engines.media.memory.bytes import BATCH_BYTES, MemoryBytes
from firnmq.engines.media.memory.log import MemoryLog
from firnmq.engines.media.memory.spill import (
    recall_deletions,
    recall_producers,
    save_aborted,
    spill,
)
from firnmq.engines.shardlog import (
    Append,
    ShardLog,
    truncate_log,
)
from firnmq.engines.shardlog.append import PreparedBatch
from firnmq.engines.shardlog.backend import open_segment
from firnmq.engines.shardlog.changes import trim_deletions
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.engines.shardlog.rolling.driver import roll_in_memory
from firnmq.engines.shardlog.rolling.steps import Move
from firnmq.engines.shardlog.tail import Tail
from firnmq.engines.shardlog.watermark import Replication
from firnmq.engines.tiering.api import ColdMedium
from firnmq.errors import FirnError, InvalidArgument, LimitExceeded, StorageFailed, storage_failure
from firnmq.health import Health
from firnmq.index import MemorySegmentIndex
from firnmq.index.layout import shard_range
from firnmq.index.memory import POINT_BYTES, TERM_BYTES
from firnmq.record import HEADER_BYTES
from firnmq.record.deletion import deletion_of


def memory_engine(
    *,
    kv: KeyValueStore,
    state: ShardState,
    layout: PartitionPerFile,
    clock: Clock,
    health: Health,
    memory_bytes: int,
    producer_expiration_ms: int,
    compaction_bytes: int,
    cold: ColdMedium | None = None,
    judges: Executor | None = None,
    replication: Replication | None = None,
) -> LogEngine:
    keeper = MemoryKeeper(
        kv=kv,
        state=state,
        layout=layout,
        clock=clock,
        health=health,
        memory_bytes=memory_bytes,
        cold=cold,
        replication=replication,
    )
    return LogEngine(
        keeper,
        state,
        clock,
        health=health,
        gate=AppendGate(),
        producer_expiration_ms=producer_expiration_ms,
        compaction_bytes=compaction_bytes,
        judges=judges,
    )


class MemoryKeeper:
    """A LogKeeper. All its logs together hold at most `memory_bytes`."""

    storage_type = StorageType.MEMORY.value

    def __init__(
        self,
        *,
        kv: KeyValueStore,
        state: ShardState,
        layout: PartitionPerFile,
        clock: Clock,
        health: Health,
        memory_bytes: int,
        cold: ColdMedium | None = None,
        replication: Replication | None = None,
    ) -> None:
        self._health = health
        self._cold = cold
        self._replication = replication
        self._kv = kv
        self._state = state
        self._layout = layout
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        """Guards the four fields below."""
        self._held: dict[ShardLog, int] = {}
        self._held_total = 0
        self._reserved = 0
        """What appends that are under way are going to hold."""
        self._deferred: dict[ShardLog, deque[Append]] = {}
        """Logs for whose lock a thread waits on behalf of event loops, with what comes next."""
        self._spilling = threading.Lock()
        self._deadlines = Deadlines(self._withdraw)

    def open(self, spec: ShardSpec, failed: ShardLog | None) -> ShardLog:
        """Spilled segments come back; whatever was only in memory is gone."""
        backend = self._backend()
        known = self._state.chain(spec.uid)
        chain = [meta for meta in known if meta.is_sealed]
        deleted = [meta for meta in known if meta.state is SegmentState.DELETED]
        for meta in deleted:  # A crash came between moving the start and removing the bytes.
            gone = open_segment(backend, spec, meta)
            backend.drop_segment(spec, gone)
        done = [meta.seq for meta in deleted if meta.tier is None]
        self._state.forget_segments(spec.uid, done)
        start_offset = self._state.start_offset(spec.uid)
        # Offsets that the lake's table has must not be given to other records.
        lake_end = self._state.lake_end(spec.uid)
        base_offset = max(start_offset, chain[-1].end_offset if chain else 0, lake_end)
        # One that is deleted is remembered as long as it has a copy in the object store.
        used = [meta.seq for meta in (*chain, *deleted) if meta.seq not in done]
        seq = max(used, default=-1) + 1
        self._drop_unfinished_spill(spec, chain)
        active = self._begin(spec, known, seq, base_offset)
        segments = tuple(open_segment(backend, spec, meta) for meta in (*chain, active))
        log = MemoryLog(
            spec,
            backend,
            segments=segments,
            tail=Tail(segments[-1], next_offset=base_offset),
            start_offset=max(start_offset, chain[0].base_offset) if chain else base_offset,
            deletions=recall_deletions(spec, chain, self._state.deletions),
            producers=recall_producers(spec, chain, self._kv),
        )
        backend.state.attach(log)
        trim_deletions(log)
        self._state.retired_deletions.cut(spec.uid, base_offset)
        append_unlogged(log, self._state.deletions, keeps_rows=True)
        with self._lock:
            if failed is not None:
                self._held_total -= self._held.pop(failed, 0)
            self._held[log] = 0
        return log

    def _begin(
        self, spec: ShardSpec, known: Sequence[SegmentMeta], seq: int, base_offset: int
    ) -> SegmentMeta:
        """The active segment; the catalog learns whose memory it is in."""
        catalog = self._state.catalog
        for meta in known:
            is_same = (meta.seq, meta.base_offset) == (seq, base_offset)
            if meta.state is SegmentState.ACTIVE and is_same and catalog.is_held_here(spec.uid):
                return meta
        now_ms = self._clock.now_ms()
        return catalog.begin_again(
            spec.uid, SegmentMeta(seq=seq, base_offset=base_offset, created_ms=now_ms)
        )

    def _drop_unfinished_spill(self, spec: ShardSpec, chain: Sequence[SegmentMeta]) -> None:
        """A crash or an error came before the description of a spilled segment was saved, or before
        what is here of one that is in the store was gone. The number of a spilled one tells
        nothing: those before it may have been dropped, or merged into one."""
        local = [meta for meta in chain if meta.is_local]
        self._layout.drop_strays(spec, local)
        drop_strays_of(self._kv, Family.INDEX, spec.uid, local)

    def reserve(self, log: ShardLog, request: Append) -> bool:
        return self._reserve(_needed_bytes(request))

    async def wait_for_room(self, log: ShardLog, request: Append) -> None:
        size = _needed_bytes(request)
        while not self._reserve(size):
            await call_blocking(None, self._make_room, size)

    def submit(self, requests: list[Append], inline: InlineAppends | None = None) -> None:
        """Stores at once, unless an event loop would have to wait for the log's lock."""
        settlement = Settlement()
        for request in requests:
            has_lock = self._take_lock(request.log)
            if not has_lock or request.log.replication is not None:
                self._deadlines.watch(request)
            if has_lock:
                self._store(request, _needed_bytes(request), settlement)
            else:
                self._defer(request)
        settlement.deliver_here()

    def _withdraw(self, request: Append) -> bool:
        """Takes back a request that waits for its log's lock."""
        with self._lock:
            waiting = self._deferred.get(request.log)
            if waiting is None or request not in waiting:
                return False
            waiting.remove(request)
            self._reserved -= _needed_bytes(request)
            return True

    def _take_lock(self, log: ShardLog) -> bool:
        """Takes a log's lock for an append. An event loop does not wait for it, since it may be
        held until a disk has answered, nor overtakes what it has deferred."""
        if is_blocking():
            return log.lock.acquire()
        return log not in self._deferred and log.lock.acquire(blocking=False)

    def _store(self, request: Append, size: int, settlement: Settlement) -> None:
        """Stores a request for which memory of this size is reserved, lets go of the log's lock,
        and answers the request, here or when the high watermark reaches it."""
        log = request.log
        try:
            if log.refusal is not None:
                raise log.refusal
            if request.deadline_s is not None and request.deadline_s <= monotonic():
                raise request.overdue()
            if request.batch is not None and request.batch.header.is_control:
                _keep_deletion(_mine(log), request.batch)
            if log.stage([request]):
                roll_in_memory(log)
                log.stage([request])
            log.backend.commit([log])
            log.end_turn([request], settlement)
            if log.wants_roll:
                roll_in_memory(log)
            self._count(log)
        except FirnError as error:
            settlement.fail(request.ticket, error)
        finally:
            log.lock.release()
            with self._lock:
                self._reserved -= size

    def _defer(self, request: Append) -> None:
        """Has a thread wait for the log's lock; requests of a log stay in order."""
        log = request.log
        with self._lock:
            waiting = self._deferred.get(log)
            if waiting is not None:
                waiting.append(request)
                return
            self._deferred[log] = deque([request])
        asyncio.get_running_loop().run_in_executor(None, self._store_deferred, log)

    def _store_deferred(self, log: ShardLog) -> None:
        while (request := self._next_deferred(log)) is not None:
            settlement = Settlement()
            log.lock.acquire()
            try:
                self._store(request, _needed_bytes(request), settlement)
            except BaseException as defect:
                settlement.fail(request.ticket, defect)
                self._fail_deferred(log, defect, settlement)
                raise
            finally:
                settlement.deliver()

    def _next_deferred(self, log: ShardLog) -> Append | None:
        """The next request; if there is none, loops store by themselves again."""
        with self._lock:
            waiting = self._deferred[log]
            if waiting:
                return waiting.popleft()
            del self._deferred[log]
            return None

    def _fail_deferred(self, log: ShardLog, defect: BaseException, settlement: Settlement) -> None:
        """Fails the log's deferred requests, since the thread that would append them ends."""
        with self._lock:
            waiting = self._deferred.pop(log)
            self._reserved -= sum(map(_needed_bytes, waiting))
        for request in waiting:
            settlement.fail(request.ticket, defect)

    def roll(self, log: ShardLog, move: Move | None = None) -> None:
        if move is not None:
            reason = f"{log.spec.name} is of {self.storage_type}, which stays on its node"
            raise InvalidArgument("shard", reason)
        with log.lock:
            if log.refusal is not None:
                raise log.refusal
            if log.tail.position:
                roll_in_memory(log)
            self._count(log)

    def truncate(self, log: ShardLog, offset: int, position: int) -> None:
        """What is kept of deletions goes first: should that fail, nothing is truncated."""
        if _mine(log).state.is_kept():
            _mine(log).state.keep_unlogged(log.spec.uid, offset)
        self._state.retired_deletions.cut(log.spec.uid, offset)
        truncate_log(log, self._backend(), None, offset, position)
        self._count(log)

    def keep(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """What is in memory is on one node, with what was spilled."""

    def drop_shard(self, spec: ShardSpec, log: ShardLog | None) -> None:
        if log is not None:
            with self._lock:
                self._held_total -= self._held.pop(log, 0)
            _mine(log).state.detach()
        self._layout.drop_shard(spec)
        with self._kv.batch() as batch:
            batch.delete_range(Family.INDEX, *shard_range(spec.uid))

    def drop_range(self, shards: ShardRange, config: TopicConfig) -> None:
        self._layout.drop_range(shards)
        with self._kv.batch() as batch:
            lower, _ = shard_range(shards.first_uid)
            batch.delete_range(Family.INDEX, lower, shard_range(shards.end_uid)[0])

    def may_close(self, log: ShardLog) -> bool:
        return False

    def recount(self, log: ShardLog) -> None:
        self._count(log)

    def settle(self, log: ShardLog) -> None:
        """Memory is not durable."""

    def housekeep(self, log: ShardLog) -> None:
        """Spills what is sealed, oldest first."""
        with log.lock:
            _mine(log).settle()
            self._count(log)
        self._drop_strays(_mine(log))
        while spills(log.spec) and (segment := _oldest_in_memory(log)) is not None:
            self._spill(log, segment)

    def _reserve(self, size: int) -> bool:
        with self._lock:
            fits = self._fits(size)
            if fits:
                self._reserved += size
            return fits

    def _fits(self, size: int) -> bool:
        return self._held_total + self._reserved + size <= self._memory_bytes

    def _make_room(self, size: int) -> None:
        """Lets the oldest sealed segments go until the size fits; rolls one if none is sealed.

        Holds no lock of a log while it looks for room in another.
        """
        if size > self._memory_bytes:
            raise LimitExceeded("request", size, self._memory_bytes, option="store.memory_bytes")
        while not self._fits(size):
            with self._lock:
                logs = [each for each in self._held if each.refusal is None]
            if not logs:
                return  # What there is belongs to shards that are being deleted.
            sealed = [(each, oldest) for each in logs if (oldest := _oldest_in_memory(each))]
            if sealed:
                victim, segment = min(sealed, key=lambda pair: pair[1].meta.sealed_ms)
                self._let_go(victim, segment)
                continue
            victim = max(logs, key=lambda each: self._held.get(each, 0))
            with victim.lock:
                if victim.tail.position:
                    roll_in_memory(victim)
                    continue
                self._count(victim)
            if self._held.get(victim, 0) == 0:
                return  # The rest is reserved for appends that are about to end.

    def _let_go(self, log: ShardLog, segment: Segment) -> None:
        if spills(log.spec):
            self._spill(log, segment)
            return
        with log.lock:
            if log.refusal is not None:
                return
            try:
                log.move_start(segment.meta.end_offset)
            except OSError as error:
                raise storage_failure(log.spec.name, error) from error
            finally:
                self._count(log)

    def _spill(self, log: ShardLog, segment: Segment) -> None:
        """If this fails the segment stays in memory, and the log goes on.

        A shard that is being deleted waits for the end of it, so that nothing is written later.
        """
        with self._spilling, log.upkeep:
            try:
                self._spill_alone(_mine(log), segment)
            except STORAGE_ERRORS as error:
                _mine(log).state.has_strays = True
                if isinstance(error, OSError):
                    raise storage_failure(log.spec.name, error) from error
                raise

    def _drop_strays(self, log: MemoryLog) -> None:
        """Removes what spills that failed have written. The segments in question may be dropped or
        merged before they are spilled again, and then nothing else looks at that place."""
        state, uid = log.state, log.spec.uid
        if not state.has_strays:
            return
        with self._spilling, log.upkeep, log.lock:
            if log.refusal is not None or state.doubt is not None:
                return
            start, own = log.view.start_offset, {each.meta.place: each for each in log.segments}
            known = self._state.chain(uid)
            chain = [meta for meta in known if meta.is_sealed]
            # A spill that was reported as failed, of a segment that the log has dropped since.
            gone = [meta for meta in chain if meta.end_offset <= start and meta.place not in own]
            if gone:
                self._state.move_start(uid, start, gone)
            kept = [meta for meta in chain if meta not in gone]
            self._drop_unfinished_spill(log.spec, kept)
            gone += (meta for meta in known if meta.state is SegmentState.DELETED)
            self._state.forget_segments(uid, [meta.seq for meta in gone if meta.tier is None])
            spilled = {place for place, each in own.items() if each.meta.medium is Medium.FILE}
            state.has_strays = any(meta.place not in spilled for meta in kept)

    def _spill_alone(self, log: MemoryLog, segment: Segment) -> None:
        spec = log.spec
        with log.lock:
            if log.refusal is not None or segment not in log.segments:
                return
            # Before the file is touched, since the outcome of an earlier attempt may be unknown.
            meta = self._next_in_catalog(log, segment.meta.become_spilled())
        spilled = spill(spec, segment, kv=self._kv, layout=self._layout)
        with log.lock:
            if segment in log.segments and log.refusal is None:
                save_aborted(spec, meta, log.producers.aborted, self._kv)
                entries = dict(log.deletions.entries(meta.base_offset, meta.end_offset))
                self._state.deletions.add_entries(spec.uid, entries)
                log.state.keep_all()
                self._enter(spec, meta)
                log.replace_segment(segment, Segment(meta, spilled.bytes, spilled.index))
                if entries:
                    log.state.keep_unlogged(spec.uid)
                self._count(log)
                return
        self._backend().drop_segment(spec, spilled)

    def _enter(self, spec: ShardSpec, meta: SegmentMeta) -> None:
        """Makes a spilled segment part of the catalog's chain."""
        try:
            self._state.roll(spec.uid, meta, in_memory_after(meta))
        except STORAGE_ERRORS:
            if not is_in_chain(meta, self._state.chain(spec.uid)):
                raise

    def _next_in_catalog(self, log: MemoryLog, meta: SegmentMeta) -> SegmentMeta:
        """A segment as it comes after what is spilled: the catalog knows nothing of segments that
        were merged in memory, nor of epochs they had there."""
        uid = log.spec.uid
        (active,) = (each for each in self._state.chain(uid) if each.state is SegmentState.ACTIVE)
        if (active.seq, active.base_offset) != (meta.seq, meta.base_offset):
            begun = SegmentMeta(
                seq=meta.seq, base_offset=meta.base_offset, created_ms=meta.created_ms
            )
            active = self._state.catalog.begin_again(uid, begun)
            log.state.has_strays = True  # The catalog may have had an earlier attempt.
        return dataclasses.replace(meta, epoch=active.epoch + 1)

    def _count(self, log: ShardLog) -> None:
        """Brings the account up to date with what the log holds. The log's lock is held."""
        held = sum(map(_held_bytes, log.segments))
        with self._lock:
            if log in self._held:
                self._held_total += held - self._held[log]
                self._held[log] = held

    def _backend(self) -> MemoryBackend:
        return MemoryBackend(
            kv=self._kv,
            state=self._state,
            layout=self._layout,
            clock=self._clock,
            health=self._health,
            cold=self._cold,
            replication=self._replication,
        )


def _mine(log: ShardLog) -> MemoryLog:
    assert isinstance(log, MemoryLog)
    return log


def _oldest_in_memory(log: ShardLog) -> Segment | None:
    for segment in log.segments[:-1]:
        if segment.meta.medium is Medium.NATIVE:
            return segment
    return None


def _keep_deletion(log: MemoryLog, batch: PreparedBatch) -> None:
    """A spilled segment survives a restart, and so must what is deleted of it."""
    deletion = deletion_of(batch.data)
    if deletion is not None:
        try:
            log.state.keep_deletion(log.spec.uid, deletion)
        except StorageFailed as error:
            raise log.fail(error) from error


def _needed_bytes(request: Append) -> int:
    """At least what the request will be counted with, index entries included."""
    if request.records is None:
        assert request.batch is not None
        size_bytes = len(request.batch.data)
        terms = request.batch.terms
        keys, tags = ({}, {}) if terms is None else (terms.keys, terms.tags)
        term_count = len(keys) + len(tags)
        tagged_count = sum(map(len, tags.values()))
    else:
        size_bytes = request.size_bytes
        records = request.records
        term_count = sum(1 + len(record.tags) + len(record.headers) for record in records)
        tagged_count = term_count
    overhead = POINT_BYTES + BATCH_BYTES + HEADER_BYTES
    return size_bytes + overhead + term_count * TERM_BYTES + tagged_count * 8


def _held_bytes(segment: Segment) -> int:
    if segment.meta.medium is Medium.FILE:
        return 0
    index = segment.index
    content = segment.bytes
    assert isinstance(index, MemorySegmentIndex)
    assert isinstance(content, MemoryBytes)
    return content.held_bytes + index.size_bytes
