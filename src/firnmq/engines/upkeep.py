"""What an engine does for its shards every few seconds: rolls by age, retention, compaction."""

from __future__ import annotations

from collections.abc import Callable

from firnmq.clock import Clock
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.engines.compaction.compactor import Compactor
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
    ) -> None:
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
        for name, spec in list(self._logs.specs.items()):
            if not self._needs_work(spec):
                continue
            try:
                self._keep(self._logs.writable(name))
            except (NotLeader, ShardNotFound):
                continue  # Moved or deleted since.
            except (Corruption, StorageFailed) as error:
                troubles.upkeep_failed(name, error)
            except (FirnError, OSError) as error:
                _log.error("housekeeping_failed", shard=name, error=str(error))
            except Exception as defect:  # Supervisor: other shards have their turn first.
                _log.error("housekeeping_failed", shard=name, error=repr(defect))
                defects.append(defect)
        troubles.recheck(self._logs.writable)
        self.compactor.work(is_stopping)
        if defects:
            raise defects[0]

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
        """Not those with other replicas, which would have other bytes then."""
        specs, replicas = list(self._logs.specs.items()), self._logs.replicas
        return [name for name, spec in specs if spec.config.compacts and name not in replicas]

    def _is_to_be_rolled(self, log: ShardLog) -> bool:
        """Whether the active segment is old enough to be sealed, or all of it to be dropped."""
        tail, clock = log.tail, self._clock
        written_ms = tail.first_append_ms or clock.now_ms()
        newest_ms = tail.builder.max_timestamp
        return is_old(log) or has_expired(newest_ms, written_ms, log.spec.config, clock)

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
