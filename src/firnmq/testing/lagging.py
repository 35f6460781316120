"""Slow replicas: they delay the high watermarks of a store's logs."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from firnmq.engines.shardlog import ShardLog

_WAIT_S_MAX = 60.0


class LaggingReplication:
    """A Replication whose replicas have what a log has a moment later. Close it after the store."""

    def __init__(self, lag_s: float = 0.0002) -> None:
        self._lag_s = lag_s
        self._moved: queue.SimpleQueue[tuple[ShardLog, int, int] | None] = queue.SimpleQueue()
        """Logs with their durable end and the number of holds before it."""
        self._hold_count = 0
        self._advancing = threading.Lock()
        """Held while a log advances, and while `_hold_count` changes."""
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._is_closing = threading.Event()
        self._has_moved = threading.Condition()
        self._durable_ends: WeakKeyDictionary[ShardLog, int] = WeakKeyDictionary()
        self._thread = threading.Thread(target=self._work, name="firn-lag", daemon=True)
        self._thread.start()

    def durable_end_moved(self, log: ShardLog, durable_end: int) -> None:
        with self._has_moved:
            self._durable_ends[log] = durable_end
            self._has_moved.notify_all()
        self._moved.put((log, durable_end, self._hold_count))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing advances by itself until the end of the block. Begin with nothing pending."""
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """Also forgets earlier durable ends: the log may have been truncated since."""
        self._may_go_on.clear()
        with self._advancing:
            self._hold_count += 1
        with self._has_moved:
            self._durable_ends.clear()

    def release(self) -> None:
        self._may_go_on.set()

    def wait_until_durable(self, log: ShardLog, end_offset: int) -> None:
        """Returns once a turn has brought the log's durable end to the offset."""
        with self._has_moved:
            reached = self._has_moved.wait_for(
                lambda: self._durable_ends.get(log, -1) >= end_offset, _WAIT_S_MAX
            )
        assert reached, f"nothing was appended up to {end_offset}"

    def close(self) -> None:
        self._is_closing.set()
        self._may_go_on.set()
        self._moved.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (moved := self._moved.get()) is not None:
            log, durable_end, hold_count = moved
            self._advance(log, durable_end - 1, hold_count)  # Shows what is before the last batch.
            self._is_closing.wait(self._lag_s)
            self._advance(log, durable_end, hold_count)

    def _advance(self, log: ShardLog, high_watermark: int, hold_count: int) -> None:
        self._may_go_on.wait()
        with self._advancing:
            if hold_count == self._hold_count:
                log.advance(high_watermark)
