"""Which logs of a worker have room for their next small durable appends, and which get some."""

from __future__ import annotations

import time
from contextlib import suppress
from weakref import WeakSet

from firnmq.config import Durability
from firnmq.engines.room import SMALL_TURN_BYTES
from firnmq.engines.shardlog.log import ShardLog
from firnmq.errors import DiskFull, storage_failure

_FULL_PAUSE_S = 60.0
"""After a disk was full, what is left of it is for records for so long."""


class Rooms:
    """Those of one worker, called by it alone."""

    def __init__(self) -> None:
        self._wanted: list[ShardLog] = []
        self._given: WeakSet[ShardLog] = WeakSet()
        self._is_full = False
        self._none_until = 0.0

    def note_synced(self, log: ShardLog, position: int) -> None:
        """A turn has appended to the log from this position on, durably."""
        if 0 < log.tail.position - position <= SMALL_TURN_BYTES and log.tail.segment.bytes.is_file:
            self._wanted.append(log)

    def note_failed(self, log: ShardLog) -> None:
        """A turn's append has failed."""
        self._is_full = self._is_full or isinstance(log.refusal, DiskFull)

    def update(self) -> None:
        """Makes room where the turns since the last call want it. Nobody waits for those now."""
        while self._wanted:
            self._make(self._wanted.pop())
        if self._is_full:
            self._is_full = False
            self._none_until = time.monotonic() + _FULL_PAUSE_S
            self.give_back()

    def give_back(self) -> None:
        """So that a file of a store at rest ends with its last batch, and that a full disk has the
        room of all. What cannot be given back now is cut off at the next opening or roll."""
        for log in list(self._given):
            with log.lock, suppress(OSError):
                if log.refusal is None:
                    log.give_back_room()
        self._given.clear()

    def _make(self, log: ShardLog) -> None:
        if not log.lock.acquire(blocking=False):
            return  # It would be nice to have; others wait for this worker too.
        try:
            # One that has failed may have been opened anew, and its end is elsewhere by now.
            if log.refusal is not None or time.monotonic() < self._none_until:
                return
            if log.spec.config.durability is Durability.FSYNC:
                self._make_locked(log)
        finally:
            log.lock.release()

    def _make_locked(self, log: ShardLog) -> None:
        """A failure closes the shard, as a failed sync does: what the device has of the file is in
        doubt. A full disk is no such failure."""
        try:
            if log.tail.segment.bytes.make_room(log.tail.position):
                self._given.add(log)
        except OSError as error:
            if not isinstance(storage_failure(log.spec.name, error), DiskFull):
                log.fail(error)
                return
            self._is_full = True
            try:
                log.give_back_room()
            except OSError as refused:
                log.fail(refused)
