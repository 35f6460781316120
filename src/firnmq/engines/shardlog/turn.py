"""One worker's turns over shard logs: stage, sync and commit what has arrived, add a point."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from weakref import WeakSet

from firnmq.config import Durability
from firnmq.disk import Turn
from firnmq.engines.shardlog.append import Append
from firnmq.engines.shardlog.backend import Backend
from firnmq.engines.shardlog.log import STORAGE_ERRORS, ShardLog
from firnmq.engines.shardlog.outcomes import apart, fail_requests
from firnmq.engines.shardlog.preallocator import Preallocator
from firnmq.engines.shardlog.replica_turn import ReplicaTurns
from firnmq.engines.shardlog.rolling.state import RollState


class LogTurnHandler:
    """A TurnHandler; one per worker, called by that worker only."""

    def __init__(self, backend: Backend, want_roll: Callable[[ShardLog], None]) -> None:
        """`want_roll` has a log rolled by another thread; it is called with the log's lock held."""
        self._backend = backend
        self._want_roll = want_roll
        self._parking: set[ShardLog] = set()
        """Logs that may have parked appends."""
        self._unsynced: dict[ShardLog, float] = {}
        """Logs with acknowledged bytes that are not synced, and when their sync is due."""
        self._left_to_system: WeakSet[ShardLog] = WeakSet()
        """Those whose sync or checkpoint is never due: housekeeping sees to them, and closing does.
        The log of a shard that is deleted or reopened leaves the set, since nothing else refers to
        it."""
        self._preallocator = Preallocator()
        self._replicas = ReplicaTurns(
            backend, want_roll, self._park, self._note_unsynced, self._preallocator
        )

    @property
    def has_parked(self) -> bool:
        return any(log.parked for log in self._parking)

    def run(self, turn: Turn[Append]) -> None:
        if self._parking:
            self._unpark(turn)
        if self._replicas.has_held:
            self._replicas.take_held(turn)
        by_log: dict[ShardLog, list[Append]] = {}
        for request in turn.requests:
            by_log.setdefault(request.log, []).append(request)
        has_replicas = False
        for log in by_log:
            log.lock.acquire()
            if log.replica is not None:
                has_replicas = True
        try:
            if has_replicas:
                self._replicas.run(turn, by_log)
            self._run_locked(turn, by_log)
        except BaseException as defect:
            # How much was staged is unknown, so the logs go on from what is on disk.
            for log in by_log:
                if log.refusal is None:
                    log.fail(defect)
            raise
        finally:
            for log in by_log:
                log.lock.release()

    def tick(self) -> float | None:
        """Preallocates for the next small appends, and syncs logs whose interval has passed."""
        self._preallocator.update()
        if not self._unsynced:
            return None
        now = time.monotonic()
        for log in [log for log, due in self._unsynced.items() if due <= now]:
            del self._unsynced[log]
            with log.lock:
                self._sync_quietly(log)
        if not self._unsynced:
            return None
        return max(min(self._unsynced.values()) - now, 0)

    def close(self) -> None:
        self._replicas.close()
        for log in (*self._unsynced, *self._left_to_system):
            with log.lock:
                self._sync_quietly(log)
        self._unsynced.clear()
        self._left_to_system.clear()
        self._preallocator.release()

    def _run_locked(self, turn: Turn[Append], by_log: dict[ShardLog, list[Append]]) -> None:
        settlement = turn.settlement
        staged: list[ShardLog] = []
        for log, requests in by_log.items():
            if log.replica is not None:
                continue
            if log.refusal is not None:
                for request in requests:
                    settlement.fail(request.ticket, log.refusal)
                continue
            if log.rolling.is_frozen or log.parked:
                self._park(turn, log, requests)
                continue
            position = log.tail.position
            try:
                left = log.stage(requests)
                if left:
                    by_log[log] = requests[: len(requests) - len(left)]
                    self._park(turn, log, left)
                if log.wants_roll:
                    self._want_roll(log)
                if log.wants_sync:
                    log.sync()
                self._preallocator.note_appended(log, position)
                staged.append(log)
            except STORAGE_ERRORS as error:
                fail_requests(settlement, log, by_log[log], error)
                self._preallocator.note_failed(log)
        committed: list[ShardLog] = []
        for group in apart(staged):
            try:
                self._backend.commit(group)
                committed += group
            except STORAGE_ERRORS as error:
                for log in group:
                    fail_requests(settlement, log, by_log[log], error)
        replicated: set[ShardLog] = set()
        try:
            for log in committed:
                if log.replication is not None:
                    replicated.add(log)
                log.end_turn(by_log[log], settlement)
                self._note_unsynced(log)
        finally:
            if replicated:  # These answer their requests themselves from now on.
                turn.requests = [each for each in turn.requests if each.log not in replicated]

    def _park(self, turn: Turn[Append], log: ShardLog, requests: Sequence[Append]) -> None:
        """Takes requests out of the turn, until the log has its next segment. The lock is held."""
        log.parked.park(requests)
        self._parking.add(log)
        gone = set(requests)
        turn.requests = [each for each in turn.requests if each not in gone]

    def _unpark(self, turn: Turn[Append]) -> None:
        """Puts parked requests that can go on before the others of the turn."""
        for log in list(self._parking):
            if log.rolling.state is RollState.WANTED or log.rolling.is_frozen:
                continue
            self._parking.discard(log)
            turn.requests[:0] = log.parked.take()

    def _note_unsynced(self, log: ShardLog) -> None:
        config, has_unsynced = log.spec.config, log.has_unsynced
        if has_unsynced and config.durability is Durability.INTERVAL:
            due = time.monotonic() + config.durability_interval_ms / 1000
            self._unsynced.setdefault(log, due)
        elif not log.use.is_left_to_system and (has_unsynced or log.has_late_checkpoint):
            self._left_to_system.add(log)
            log.use.is_left_to_system = True

    def _sync_quietly(self, log: ShardLog) -> None:
        """A failed late sync closes the shard; its next writer is told."""
        if log.refusal is not None or not (log.has_unsynced or log.has_late_checkpoint):
            return  # Rolling has synced it, and the new segment may have no file yet.
        try:
            log.sync()
            log.commit_checkpoint()
        except STORAGE_ERRORS as error:
            log.fail(error)
