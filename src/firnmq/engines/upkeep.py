"""What an engine does for its shards every few seconds: rolls by age, retention, compaction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from firnmq.clock import Clock
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.compaction.compactor import Compactor
from firnmq.engines.due import DueTimes, seals_idle
from firnmq.engines.keeper import LogKeeper
from firnmq.engines.logs import ShardLogs
from firnmq.engines.retention import expired_end, has_expired
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling.steps import is_old, unchanging
from firnmq.errors import Corruption, FirnError, NotLeader, ShardNotFound, StorageFailed
from firnmq.eventlog import EventLogger

_log = EventLogger("engine")


class Upkeep:
    """The upkeep of one engine's shards."""

    def __init__(
        self,
        logs: ShardLogs,
        keeper: LogKeeper,
        state: ShardState,
        clock: Clock,
        *,
        producer_expiration_ms: int,
        compaction_bytes: int,
        due: DueTimes | None = None,
    ) -> None:
        """`due` tells which shards of ranges have something due."""
        self._due = due
        self._logs = logs
        self._keeper = keeper
        self._state = state
        self._clock = clock
        self._producer_expiration_ms = producer_expiration_ms
        self.compactor = Compactor(
            self._shards_to_compact,
            logs.writable,
            keeper.recount,
            logs.troubles,
            clock,
            memory_bytes=compaction_bytes,
        )

    def work(self, is_stopping: Callable[[], bool]) -> None:
        """Rolls by age, drops what retention allows and producers that have long been silent,
        and whatever else the keeper has to do; then compacts for a while.

        One shard's trouble is logged and does not keep others from their turn; if it is a defect,
        it is raised in the end.
        """
        defects: list[Exception] = []
        troubles = self._logs.troubles
        for spec in self._logs.shards.singles():
            if self._needs_work(spec):
                self._visit(spec.name, self._keep, defects)
        self._visit_ranges(is_stopping, defects)
        troubles.recheck(self._logs.writable)
        self.compactor.work(is_stopping)
        if defects:
            raise defects[0]

    def _visit(self, name: str, keep: Callable[[ShardLog], None], defects: list[Exception]) -> None:
        try:
            keep(self._logs.writable(name))
        except (NotLeader, ShardNotFound):
            return  # Moved or deleted since.
        except (Corruption, StorageFailed) as error:
            self._logs.troubles.upkeep_failed(name, error)
        except (FirnError, OSError) as error:
            _log.error("housekeeping_failed", shard=name, error=str(error))
        except Exception as defect:  # Supervisor: other shards have their turn first.
            _log.error("housekeeping_failed", shard=name, error=repr(defect))
            defects.append(defect)

    def _visit_ranges(self, is_stopping: Callable[[], bool], defects: list[Exception]) -> None:
        """Visits shards of ranges: those that have changed, and those with something due."""
        due = self._due
        if due is None:
            return

        def keep(log: ShardLog, due_ms: int | None = None) -> None:
            log.use.is_changed = False
            try:
                self._keep(log)
            finally:
                with log.lock:
                    log.use.due_ms = log.use.due_ms if due_ms is None else due_ms
                    due.visited(log, self._clock.now_ms())

        for log in self._logs.opened():
            name = log.spec.name
            # One that was closed since has a row, and would only be opened again.
            if log.spec.is_ranged and log.use.is_changed and self._logs.get(name) is log:
                self._visit(name, keep, defects)
        for uid, due_ms in due.due(self._clock.now_ms()):
            if is_stopping():
                return
            spec = self._logs.shards.with_uid(uid)
            if spec is None or not spec.is_ranged:
                due.forget(uid, due_ms)
            else:
                self._visit(spec.name, partial(keep, due_ms=due_ms), defects)

    def _needs_work(self, spec: ShardSpec) -> bool:
        """False of a shard that is not open and whose options ask for nothing."""
        config = spec.config
        limits = (config.retention_ms, config.retention_bytes, config.ttl_ms)
        return spec.name in self._logs or limits != (None,) * 3 or config.compacts

    def _keep(self, log: ShardLog) -> None:
        if self._is_to_be_rolled(log):
            self._keeper.roll(log)
        with unchanging(log):
            if log.refusal is not None:
                raise log.refusal
            self._retain(log)
            self._forget_producers(log)
        self._keeper.housekeep(log)
        if log.refusal is None:
            self._logs.troubles.opened(log.spec.name)

    def _shards_to_compact(self) -> list[str]:
        """Not those with other replicas, which would have other bytes then. Of those of ranges the
        open ones: the others are opened from time to time for this."""
        singles, replicas = self._logs.shards.singles(), self._logs.replicas
        of_ranges = (log for log in self._logs.opened() if log.spec.is_ranged)
        return [
            *(spec.name for spec in singles if spec.config.compacts and spec.name not in replicas),
            *(
                log.spec.name
                for log in of_ranges
                if log.spec.config.compacts and len(log.segments) > 1
            ),
        ]

    def _is_to_be_rolled(self, log: ShardLog) -> bool:
        """Whether the active segment is old enough to be sealed, or all of it to be dropped."""
        tail, clock = log.tail, self._clock
        written_ms = tail.first_append_ms or clock.now_ms()
        newest_ms = tail.builder.max_timestamp
        if is_old(log) and seals_idle(log.spec):
            return True
        return has_expired(newest_ms, written_ms, log.spec.config, clock)

    def _retain(self, log: ShardLog) -> None:
        config, clock = log.spec.config, self._clock
        metas = [segment.meta for segment in log.segments]
        lake_end = self._state.lake_end(log.spec.uid) if config.lake_required else None
        end = expired_end(metas, config, log.tail.position, clock, lake_end)
        # Sealed segments below the start go too: they were active when it was moved past them.
        log.move_start(log.view.start_offset if end is None else end)

    def _forget_producers(self, log: ShardLog) -> None:
        """Drops those that have stored nothing for so long. The lock is held."""
        idle = log.producers.forget_idle(self._producer_expiration_ms, self._clock.now_ms())
        if idle:
            log.backend.forget_producers(log.spec, idle)
            _log.info("producers_forgotten", shard=log.spec.name, count=len(idle))
