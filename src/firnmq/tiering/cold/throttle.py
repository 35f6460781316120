"""The one throttle of cold reads, with a bound on every wait.

`fetch_limiter` bounds the bytes from the store, always. While there are appends, `reserve` bounds
the bytes that scans read, from the store or the disk cache. The files of the cache are read,
written and truncated in slices; before each slice `wait_for_appends` lets running appends finish.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from firnmq.tiering.rate_limit import RateLimiter

_CHECK_S = 0.0003
"""Between two checks whether appends are done: one append takes about twice as long."""
_RECENT_S = 1.0
"""For this long after an append, another one is expected."""
_DEBT_S_MAX = 0.5
"""The most that scans wait for foreground reads, however many there are."""
_PROCESSOR_BYTES_PER_S = 64_000_000
"""A sixth of what a processor can fetch, check and cache: most appends find a free processor."""
_PROCESSORS_MAX = 4
"""More do not help: all work on fetched bytes shares the interpreter's lock."""


def default_rate() -> int:
    """Bytes per second that scans may read while there are appends, by processor count."""
    if hasattr(os, "sched_getaffinity"):
        processor_count = len(os.sched_getaffinity(0))
    else:
        processor_count = os.cpu_count() or 1
    return min(processor_count, _PROCESSORS_MAX) * _PROCESSOR_BYTES_PER_S


class ColdThrottle:
    """Decides when cold reads may use the disk and the processors. Safe with threads."""

    def __init__(
        self,
        is_appending: Callable[[], bool] = lambda: False,
        *,
        append_count: Callable[[], int] = lambda: 0,
        bytes_per_s: int | None = None,
        fetch_limiter: RateLimiter | None = None,
    ) -> None:
        """`is_appending` says whether an append is running now. `append_count` changes with every
        append or group of appends. `bytes_per_s` limits scans while there are appends; None is the
        default rate. `fetch_limiter` limits all fetches from the store; None is no limit."""
        self.fetch_limiter = fetch_limiter or RateLimiter(None)
        self._is_appending = is_appending
        self._append_count = append_count
        self._limiter = RateLimiter(bytes_per_s or default_rate(), monotonic=time.perf_counter)
        self._lock = threading.Lock()
        self._last_count = 0
        self._last_append_s: float | None = None
        """When the count was last seen to change. Both fields are guarded by the lock."""

    def wait_for_appends(self, wait_s_max: float) -> float:
        """Waits until no append is running, at most `wait_s_max`; returns the seconds waited.

        An append that has just ended still has to wake its callers, so it counts a little longer.
        """
        if wait_s_max <= 0 or not self._is_appending():
            return 0.0
        began = time.perf_counter()
        is_over = False
        while not is_over and time.perf_counter() < began + wait_s_max:
            is_over = not self._is_appending()
            time.sleep(_CHECK_S)
        return time.perf_counter() - began

    def reserve(self, count: int) -> float:
        """Reserves bytes of a scan and returns the seconds to wait before reading them.

        Without recent appends that is 0, however many bytes there are.
        """
        return self._limiter.reserve(count) if self.has_recent_appends() else 0.0

    def note(self, count: int) -> None:
        """Charges bytes of a foreground read, which does not wait, to the scans that follow."""
        if self.has_recent_appends():
            self._limiter.note(count, debt_s_max=_DEBT_S_MAX)

    def bytes_within(self, seconds: float) -> int | None:
        """Bytes that scans may read in this time; None if there is no limit now."""
        rate = self._limiter.bytes_per_s
        return int(rate * seconds) if rate is not None and self.has_recent_appends() else None

    def has_recent_appends(self) -> bool:
        """Whether there was an append within the last second."""
        with self._lock:
            count, now_s = self._append_count(), time.perf_counter()
            if count != self._last_count:
                self._last_count, self._last_append_s = count, now_s
            return self._last_append_s is not None and now_s - self._last_append_s < _RECENT_S
