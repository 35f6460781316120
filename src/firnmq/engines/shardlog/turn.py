"""One worker's turns over shard logs: stage, sync, commit and publish what has arrived."""

from __future__ import annotations

import time
from weakref import WeakSet

from firnmq.config import Durability
from firnmq.disk import Settlement, Turn
from firnmq.engines.shardlog.append import Append
from firnmq.engines.shardlog.backend import Backend
from firnmq.engines.shardlog.log import STORAGE_ERRORS, ShardLog
from firnmq.engines.shardlog.rooms import Rooms


class LogTurnHandler:
    """A TurnHandler; one per worker, called by that worker only."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._unsynced: dict[ShardLog, float] = {}
        """Logs with acknowledged bytes that are not synced, and when their sync is due."""
        self._left_to_system: WeakSet[ShardLog] = WeakSet()
        """Those whose sync is never due: housekeeping syncs them, and closing does. One that is
        deleted or opened anew is nobody's any more, and goes."""
        self._rooms = Rooms()

    def run(self, turn: Turn[Append]) -> None:
        by_log: dict[ShardLog, list[Append]] = {}
        for request in turn.requests:
            by_log.setdefault(request.log, []).append(request)
        for log in by_log:
            log.lock.acquire()
        try:
            self._run_locked(turn, by_log)
        except BaseException as defect:
            # Nobody knows how much was staged, so the logs go on from what is on disk.
            for log in by_log:
                if log.refusal is None:
                    log.fail(defect)
            raise
        finally:
            for log in by_log:
                log.lock.release()

    def tick(self) -> float | None:
        """Makes room for the next small appends, and syncs logs whose interval has passed."""
        self._rooms.update()
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
        for log in (*self._unsynced, *self._left_to_system):
            with log.lock:
                self._sync_quietly(log)
        self._unsynced.clear()
        self._left_to_system.clear()
        self._rooms.give_back()

    def _run_locked(self, turn: Turn[Append], by_log: dict[ShardLog, list[Append]]) -> None:
        settlement = turn.settlement
        staged: list[ShardLog] = []
        for log, requests in by_log.items():
            if log.refusal is not None:
                for request in requests:
                    settlement.fail(request.ticket, log.refusal)
                continue
            position = log.tail.position
            try:
                log.stage(requests)
                if log.wants_sync:
                    log.sync()
                    self._rooms.note_synced(log, position)
                staged.append(log)
            except STORAGE_ERRORS as error:
                _fail(settlement, log, requests, error)
                self._rooms.note_failed(log)
        try:
            self._backend.commit(staged)
        except STORAGE_ERRORS as error:
            for log in staged:
                _fail(settlement, log, by_log[log], error)
            return
        for log in staged:
            log.publish()
            self._note_unsynced(log)
            for request in by_log[log]:
                if request.refusal is not None:
                    settlement.fail(request.ticket, request.refusal)
                    continue
                assert request.appended is not None
                settlement.resolve(request.ticket, request.appended)
            log.watchers.wake(settlement)  # Last: whoever appended need not wait for readers.

    def _note_unsynced(self, log: ShardLog) -> None:
        config = log.spec.config
        if not log.has_unsynced:
            return
        if config.durability is Durability.INTERVAL:
            due = time.monotonic() + config.durability_interval_ms / 1000
            self._unsynced.setdefault(log, due)
        else:
            self._left_to_system.add(log)
            log.is_left_to_system = True

    def _sync_quietly(self, log: ShardLog) -> None:
        """A failed late sync closes the shard; its next writer is told."""
        if log.refusal is not None or not log.has_unsynced:
            return  # Rolling has synced it, and the new segment may have no file yet.
        try:
            log.sync()
            self._backend.commit([log])
            log.publish()
        except STORAGE_ERRORS as error:
            log.fail(error)


def _fail(
    settlement: Settlement, log: ShardLog, requests: list[Append], error: BaseException
) -> None:
    """Closes the log and fails its requests, except those a roll in mid-turn has made durable."""
    failure = log.fail(error)
    kept_end = log.publish_sealed()
    log.watchers.wake(settlement)
    for request in requests:
        appended = request.appended
        if appended is not None and appended.next_offset <= kept_end:
            settlement.resolve(request.ticket, appended)
        else:
            settlement.fail(request.ticket, failure)
