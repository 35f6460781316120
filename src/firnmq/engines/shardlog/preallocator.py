"""Which logs of a worker are preallocated for their next appends."""

from __future__ import annotations

import time
from contextlib import suppress
from weakref import WeakSet

from firnmq.config import Durability
from firnmq.disk.preallocation import SMALL_APPEND_BYTES
from firnmq.engines.shardlog.log import ShardLog
from firnmq.errors import DiskFull, storage_failure

_FULL_PAUSE_S = 60.0
"""After a disk was full, nothing is preallocated for so long."""


class Preallocator:
    """The preallocations of one worker, which alone calls it."""

    def __init__(self) -> None:
        self._wanted: list[ShardLog] = []
        self._given: WeakSet[ShardLog] = WeakSet()
        self._is_full = False
        self._none_until = 0.0

    def note_appended(self, log: ShardLog, position: int) -> None:
        """A turn has appended to the log from this position on."""
        size = log.tail.position - position
        if not size or not log.tail.segment.bytes.is_file:
            return
        if size > SMALL_APPEND_BYTES:  # The file reserves blocks by itself.
            self._given.add(log)
        elif log.wants_sync:
            self._wanted.append(log)

    def note_failed(self, log: ShardLog) -> None:
        """A turn's append has failed."""
        self._is_full = self._is_full or isinstance(log.refusal, DiskFull)

    def update(self) -> None:
        """Preallocates where the turns since the last call want it. No caller waits for that."""
        while self._wanted:
            self._extend(self._wanted.pop())
        if self._is_full:
            self._is_full = False
            self._none_until = time.monotonic() + _FULL_PAUSE_S
            self.release()

    def release(self) -> None:
        """Truncates every preallocated file to its last batch, before the store closes or when the
        disk is full. A file for which that fails is truncated at the next opening or roll."""
        for log in list(self._given):
            with log.lock, suppress(OSError):
                if log.refusal is None:
                    log.release_preallocation()
        self._given.clear()

    def _extend(self, log: ShardLog) -> None:
        if not log.lock.acquire(blocking=False):
            return  # Best effort: skipped if the lock is held.
        try:
            # A failed log may have been reopened, and its end is elsewhere by now.
            if log.refusal is not None or time.monotonic() < self._none_until:
                return
            if log.rolling.is_frozen:
                return  # A sealed file ends with its last batch.
            if log.spec.config.durability is Durability.FSYNC:
                self._extend_locked(log)
        finally:
            log.lock.release()

    def _extend_locked(self, log: ShardLog) -> None:
        """A failure closes the shard, as a failed sync does: what the device has of the file is in
        doubt. A full disk is no such failure."""
        try:
            if log.tail.segment.bytes.preallocate(log.tail.position):
                self._given.add(log)
        except OSError as error:
            if not isinstance(storage_failure(log.spec.name, error), DiskFull):
                log.fail(error)
                return
            self._is_full = True
            try:
                log.release_preallocation()
            except OSError as refused:
                log.fail(refused)
