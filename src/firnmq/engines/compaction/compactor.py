"""Compacts the shards of one engine, one after the other, a bounded amount of work at a time."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Generator

from firnmq.clock import Clock
from firnmq.engines.api import CompactionCounts
from firnmq.engines.compaction.rewrite import CompactionPass
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.troubles import ShardTroubles
from firnmq.errors import (
    Corruption,
    FirnError,
    NodeUnavailable,
    NotLeader,
    ShardNotFound,
    StorageFailed,
    TimedOut,
)
from firnmq.eventlog import EventLogger

_ROUND_BYTES = 256 * 1024 * 1024
"""Read in one round, so that retention and other upkeep are never long in coming."""
_log = EventLogger("compaction")


class Compactor:
    """At most one pass is under way; it goes on where it was when the next round comes."""

    def __init__(
        self,
        shards: Callable[[], list[str]],
        open_log: Callable[[str], ShardLog],
        recount: Callable[[ShardLog], None],
        troubles: ShardTroubles,
        clock: Clock,
        *,
        memory_bytes: int,
    ) -> None:
        """`recount` is called with a log's lock held when its segments may have changed."""
        self._shards = shards
        self._open_log = open_log
        self._recount = recount
        self._troubles = troubles
        self._clock = clock
        self._memory_bytes = memory_bytes
        self._working = threading.Lock()
        """Held by the one thread that compacts; guards all that follows."""
        self._waiting: list[str] = []
        """Shards that have not had their turn since all had one."""
        self._waiting_for_nodes: set[str] = set()
        """Shards that cannot be compacted because a node is away, which was logged."""
        self._log: ShardLog | None = None
        self._steps: Generator[int, None, None] | None = None
        """The pass under way over that log."""
        self.counts = CompactionCounts()
        self._counts_before = CompactionCounts()

    def work(self, is_stopping: Callable[[], bool]) -> None:
        """Compacts for one round. A second caller at the same time has nothing to do."""
        if not self._working.acquire(blocking=False):
            return
        try:
            left = _ROUND_BYTES
            if self._log is None and not self._waiting:
                self._waiting = self._shards()[::-1]
            while left > 0 and not is_stopping():
                if self._log is not None:
                    left -= self._step(self._log)
                elif self._waiting:
                    self._begin(self._waiting.pop())
                else:
                    return
        finally:
            self._working.release()

    def close(self) -> None:
        """Gives up what is under way; it starts again after the next opening of the store."""
        with self._working:
            self._waiting = []
            self._end()

    def _begin(self, shard: str) -> None:
        try:
            log = self._open_log(shard)
        except (NotLeader, ShardNotFound):
            return  # Moved or deleted since.
        except (Corruption, StorageFailed):
            return  # Reported by the opening.
        except (FirnError, OSError) as error:
            _log.error("compaction_failed", shard=shard, error=str(error))
            return
        self._log = log
        self._counts_before = dataclasses.replace(self.counts)
        self._steps = CompactionPass(
            log, self._clock.now_ms(), memory_bytes=self._memory_bytes, counts=self.counts
        ).steps()

    def _step(self, log: ShardLog) -> int:
        """One step of the pass under way; returns the bytes it has read."""
        assert self._steps is not None
        try:
            with log.upkeep:
                size = next(self._steps, None)
        except (Corruption, StorageFailed) as error:
            self._troubles.upkeep_failed(log.spec.name, error)
            size = None
        except (NodeUnavailable, TimedOut) as error:
            if log.spec.name not in self._waiting_for_nodes:
                _log.warning("compaction_waits", shard=log.spec.name, error=str(error))
            self._waiting_for_nodes.add(log.spec.name)
            size = None
        except (FirnError, OSError) as error:
            _log.error("compaction_failed", shard=log.spec.name, error=str(error))
            size = None
        else:
            if size is None:
                self._troubles.compacted(log.spec.name)
                self._waiting_for_nodes.discard(log.spec.name)
        if size is not None:
            return size
        with log.lock:
            self._recount(log)
        self._tell(log)
        self._end()
        return 0

    def _tell(self, log: ShardLog) -> None:
        """Logs what the pass has done, if it had anything to do."""
        now, before = self.counts, self._counts_before
        if now.bytes_in > before.bytes_in:
            _log.info(
                "compacted",
                shard=log.spec.name,
                records_in=now.records_in - before.records_in,
                records_out=now.records_out - before.records_out,
                bytes_in=now.bytes_in - before.bytes_in,
                bytes_out=now.bytes_out - before.bytes_out,
            )

    def _end(self) -> None:
        """Ends the pass, with whatever it was writing removed."""
        steps, self._steps = self._steps, None
        log, self._log = self._log, None
        if log is None or steps is None:
            return
        try:
            with log.upkeep:
                steps.close()
        except (FirnError, OSError) as error:
            _log.warning("leftovers_stay", shard=log.spec.name, error=str(error))
