"""The replicas of a node: finds logs, and queues what the driver asks of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from firnmq.disk import IoPool, Settlement, Ticket
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.logs import ShardLogs
from firnmq.engines.media.durable import DurableBackend
from firnmq.engines.replicas.api import ReplicaBytes
from firnmq.engines.replicas.reading import read_sealed, read_tail
from firnmq.engines.shardlog import Append, ShardLog
from firnmq.engines.shardlog import replica_changes as changes
from firnmq.engines.shardlog.backend import open_segment
from firnmq.engines.shardlog.changes import clean_up
from firnmq.engines.shardlog.replica import (
    NOTHING,
    Checked,
    ControlWork,
    LogReplica,
    Reached,
    ReplicaEnd,
    ReplicaFailed,
    ReplicaId,
    ReplicaListener,
    ReplicaWork,
    StageWork,
    reached_by,
)
from firnmq.engines.shardlog.replica_recovery import is_complete, open_replica
from firnmq.engines.shardlog.rolling import RollMachine
from firnmq.errors import Closed, FirnError, StorageFailed
from firnmq.eventlog import EventLogger

STARTS_PER_ROUND = 50
"""Shards whose start is read from the metadata in one round of upkeep."""
_log = EventLogger("engine")


class NodeReplicas:
    """Replicas of a node, in segment files; a `Replicas`."""

    def __init__(
        self,
        backend: DurableBackend,
        state: ShardState,
        pool: IoPool[Append],
        logs: ShardLogs,
        threads: Executor,
    ) -> None:
        """`threads` make fences durable of segments that are not here."""
        self._backend = backend
        self._state = state
        self._pool = pool
        self._logs = logs
        self._threads = threads
        self._listener: ReplicaListener | None = None
        self._by_uid: dict[int, ShardLog] = {}
        self._followed_count = 0
        """Where the next round of upkeep goes on with starts."""

    def begin(self, listener: ReplicaListener) -> None:
        self._listener = listener

    # The life of a log ---------------------------------------------------------------------------

    def open(self, spec: ShardSpec, meta: SegmentMeta, *, leads: bool) -> Reached:
        assert self._listener is not None, "the driver must be named first"
        spec = dataclasses.replace(spec, epoch=meta.leader_epoch)
        refused = self._state.not_led(spec.uid)
        with self._logs.opening(spec):
            failed = self._let_go_of_failed(spec, meta.seq)
            log = open_replica(
                spec,
                self._backend,
                self._state,
                meta,
                self._listener,
                refused,
                failed,
                leads=leads,
            )
            log.parked.resume = self._pool.lane(spec.uid).resume
            self._by_uid[spec.uid] = log
            self._logs.show_replica(log)
        return _replica_of(log).reached

    def _let_go_of_failed(self, spec: ShardSpec, seq: int) -> Reached | None:
        """What was durable of the segment in a log that has failed."""
        old = self._by_uid.get(spec.uid)
        if old is None:
            return None
        with old.lock:
            if old.refusal is None:
                raise ReplicaFailed(spec.name, "is open")
            old.rolling = RollMachine()  # A roll under way finds that, and ends.
            old.change_ended.notify_all()
            while old.is_changing:
                old.change_ended.wait()
            replica = _replica_of(old)
            return replica.reached if replica.id.seq == seq else None

    def tail_of(self, spec: ShardSpec, chain: Sequence[SegmentMeta]) -> SegmentMeta | None:
        self._backend.settle_index()  # What is found complete must be so after a power cut.
        held = [each for each in chain if each.is_local and each.state is not SegmentState.DELETED]
        tail = None
        for meta in reversed(held):
            if meta.is_sealed and self.is_complete(spec, meta):
                break
            if tail is not None and open_segment(self._backend, spec, tail).bytes.length():
                # A replica that told that it has nothing of the later one would count all the same.
                raise ReplicaFailed(
                    spec.name,
                    f"has bytes of segment {tail.seq}, but segment {meta.seq} before it is not "
                    "complete: this replica is not used",
                )
            tail = meta
        return tail

    def is_complete(self, spec: ShardSpec, meta: SegmentMeta) -> bool:
        if len(meta.holders) <= 1 or meta.is_compacted:
            return True
        return is_complete(open_segment(self._backend, spec, meta))

    def close_log(self, uid: int, refusal: FirnError) -> None:
        log = self._by_uid.pop(uid, None)
        if log is None:
            return
        with self._logs.opening(log.spec):
            self._logs.hide_replica(log.spec.name, refusal)
            self._logs.replicas.pop(log.spec.name, None)
            with log.lock:
                log.rolling = RollMachine()
                log.refuse(refusal)
            with log.upkeep:  # Compaction has seen the refusal.
                pass

    def stop_leading(self, replica: ReplicaId, refusal: FirnError, ticket: Ticket[Reached]) -> None:
        log = self._find(replica, ticket)
        if log is not None:
            own = _replica_of(log)
            own.refused, own.leads = refusal, False
            self._logs.hide_replica(log.spec.name, refusal)
            self._queue(ControlWork(log, ticket, changes.stop_leading))

    def install(
        self,
        sealed: SegmentMeta,
        active: SegmentMeta,
        spec: ShardSpec,
        start_offset: int,
        ticket: Ticket[Reached],
        *,
        leads: bool,
    ) -> None:
        def perform(log: ShardLog) -> Reached:
            reached = changes.install(log, sealed, active, spec, start_offset, leads=leads)
            self._logs.show_replica(log)
            return reached

        self._control(ReplicaId(spec.uid, sealed.seq), ticket, perform)

    def seal_last(self, sealed: SegmentMeta, spec: ShardSpec, ticket: Ticket[Reached]) -> None:
        def perform(log: ShardLog) -> Reached:
            changes.finish_sealed(log, sealed, spec)
            return reached_by(log)

        self._control(ReplicaId(spec.uid, sealed.seq), ticket, perform)

    # Following -----------------------------------------------------------------------------------

    def stage(
        self, replica: ReplicaId, checked: Checked, high_watermark: int, ticket: Ticket[Reached]
    ) -> None:
        log = self._find(replica, ticket)
        if log is not None:
            self._advance(log, high_watermark)
            self._queue(StageWork(log, ticket, checked))

    def advance(self, replica: ReplicaId, high_watermark: int) -> None:
        log = self._by_uid.get(replica.uid)
        if log is not None and _replica_of(log).id == replica:
            self._advance(log, high_watermark)

    def _advance(self, log: ShardLog, high_watermark: int) -> None:
        replica = _replica_of(log)
        if high_watermark > replica.high_watermark:
            replica.high_watermark = high_watermark
            log.advance(high_watermark)
            if replica.has_held:
                replica.has_held = False
                log.parked.resume()

    def advance_quorum(self, replica: ReplicaId, mark: int) -> None:
        log = self._by_uid.get(replica.uid)
        if log is not None and _replica_of(log).id == replica:
            _replica_of(log).advance_quorum(mark)

    # Fences and truncation -----------------------------------------------------------------------

    def persist_fence(
        self,
        spec: ShardSpec,
        replica: ReplicaId,
        fence: int,
        start_offset: int,
        ticket: Ticket[Reached],
    ) -> None:
        log = self._by_uid.get(replica.uid)
        nothing = Reached(ReplicaEnd(start_offset, 0), NOTHING, fence)
        if log is not None:
            perform = partial(self._fence, replica, fence, nothing)
            self._queue(ControlWork(log, ticket, perform))
        else:
            self._threads.submit(self._fence_alone, spec, replica, fence, nothing, ticket)

    def _fence(self, replica: ReplicaId, fence: int, nothing: Reached, log: ShardLog) -> Reached:
        kept = self._keep_fence(replica, fence)
        own = _replica_of(log)
        if own.id != replica:
            return nothing._replace(fence=kept)
        own.fence = kept
        return reached_by(log)

    def _fence_alone(
        self,
        spec: ShardSpec,
        replica: ReplicaId,
        fence: int,
        nothing: Reached,
        ticket: Ticket[Reached],
    ) -> None:
        """Where the shard has no log here."""
        settlement = Settlement()
        try:
            with self._logs.opening(spec):
                if replica.uid in self._by_uid:  # Opened since.
                    self.persist_fence(spec, replica, fence, nothing.end.offset, ticket)
                    return
                kept = self._keep_fence(replica, fence)
            settlement.resolve(ticket, nothing._replace(fence=kept))
        except FirnError as error:
            settlement.fail(ticket, error)
        settlement.deliver()

    def _keep_fence(self, replica: ReplicaId, fence: int) -> int:
        """The higher one of the fence and of the one that is kept, which is durable."""
        kept = self._backend.fence_of(replica)
        if fence <= kept:
            return kept
        self._backend.keep_fence(replica, fence)
        return fence

    def fence_of(self, replica: ReplicaId) -> int:
        return self._backend.fence_of(replica)

    def truncate(self, replica: ReplicaId, end_offset: int, ticket: Ticket[Reached]) -> None:
        def perform(log: ShardLog) -> Reached:
            return changes.truncate_replica(log, self._state, end_offset)

        self._control(replica, ticket, perform)

    # Reading -------------------------------------------------------------------------------------

    def reached(self, replica: ReplicaId) -> Reached | None:
        log = self._by_uid.get(replica.uid)
        if log is None or log.refusal is not None or _replica_of(log).id != replica:
            return None
        return _replica_of(log).reached

    def read(
        self, spec: ShardSpec, replica: ReplicaId, start: int, end: int, max_bytes: int
    ) -> ReplicaBytes:
        log = self._by_uid.get(replica.uid)
        if log is not None and _replica_of(log).id == replica:
            return read_tail(log.tail.segment, _replica_of(log), start, end, max_bytes)
        meta = self._state.segment(replica.uid, replica.seq)
        if meta is None or not (meta.is_sealed and meta.is_local):
            raise ReplicaFailed(spec.name, f"has no segment {replica.seq} to read here")
        return read_sealed(open_segment(self._backend, spec, meta), start, end, max_bytes)

    def log_of(self, uid: int) -> ShardLog | None:
        return self._by_uid.get(uid)

    @property
    def has_failed(self) -> bool:
        """Whether storage failed of a log that was not opened again."""
        logs = list(self._by_uid.values())
        return any(isinstance(each.refusal, StorageFailed) for each in logs)

    # Upkeep --------------------------------------------------------------------------------------

    def housekeep(self) -> None:
        """Of logs that follow: syncs what was left to the system, and removes what retention has
        taken from the shard. Logs that lead have an engine that does."""
        followed = [log for log in list(self._by_uid.values()) if not _replica_of(log).leads]
        for log in followed:
            if log.refusal is None:
                self._logs.keeper.housekeep(log)
        at = self._followed_count % max(len(followed), 1)
        self._followed_count = at + STARTS_PER_ROUND
        for log in followed[at : at + STARTS_PER_ROUND]:
            try:
                self._follow_start(log)
            except FirnError as error:
                _log.warning("start_not_followed", shard=log.spec.name, error=str(error))

    def _follow_start(self, log: ShardLog) -> None:
        start_offset = self._state.start_offset(log.spec.uid)
        with log.lock:
            if log.refusal is None and not _replica_of(log).leads and not log.is_changing:
                changes.follow_start(log, start_offset)
                clean_up(log)

    # Queueing ------------------------------------------------------------------------------------

    def _control(
        self, replica: ReplicaId, ticket: Ticket[Reached], perform: Callable[[ShardLog], Reached]
    ) -> None:
        log = self._find(replica, ticket)
        if log is None:
            return

        def checked(log: ShardLog) -> Reached:
            if _replica_of(log).id != replica:  # A call before this one has changed it.
                raise ReplicaFailed(log.spec.name, f"is not in segment {replica.seq} any more")
            return perform(log)

        self._queue(ControlWork(log, ticket, checked))

    def _find(self, replica: ReplicaId, ticket: Ticket[Reached]) -> ShardLog | None:
        """The replica's log, or None, with the ticket failed."""
        log = self._by_uid.get(replica.uid)
        if log is not None and _replica_of(log).id.seq <= replica.seq:
            return log
        _fail(ticket, ReplicaFailed(str(replica), "is not here"))
        return None

    def _queue(self, work: ReplicaWork) -> None:
        try:
            self._pool.lane(work.log.spec.uid).queue_now(work)
        except Closed as error:
            _fail(work.outcome, error)


def _fail(ticket: Ticket[Reached], error: FirnError) -> None:
    settlement = Settlement()
    settlement.fail(ticket, error)
    settlement.deliver()


def _replica_of(log: ShardLog) -> LogReplica:
    assert log.replica is not None
    return log.replica
