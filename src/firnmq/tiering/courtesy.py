"""Work of cold reads lets appends go first, without ever waiting long for them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

from firnmq.tiering.rate import RateLimiter

_LOOK_S = 0.0003
"""Between two looks whether appends are done: one alone takes about twice as long."""
_LATELY_S = 1.0
"""So long after an append another one is expected."""
_DEBT_S_MAX = 0.5
"""So long do scans wait for single reads, however many those are."""
_PROCESSOR_BYTES_PER_S = 64_000_000
"""A sixth of what a processor can fetch, check and cache: most appends find one that is free."""
_PROCESSORS_MAX = 4
"""More do not help: whatever is done with what was fetched shares the interpreter's lock."""


def usual_pace() -> int:
    """Bytes a second that may be scanned beside appends, by the processors that there are."""
    if hasattr(os, "sched_getaffinity"):
        processor_count = len(os.sched_getaffinity(0))
    else:
        processor_count = os.cpu_count() or 1
    return min(processor_count, _PROCESSORS_MAX) * _PROCESSOR_BYTES_PER_S


class Courtesy:
    """Says when work may be done that would take a processor or the disk from appends.

    Safe with threads.
    """

    def __init__(
        self,
        is_appending: Callable[[], bool] = lambda: False,
        *,
        append_count: Callable[[], int] = lambda: 0,
        bytes_per_s: int | None = None,
    ) -> None:
        """`is_appending` says whether appends are under way just now; `append_count` changes with
        every one, or with several at a time. `bytes_per_s` is the pace of cold scans beside
        appends; None: the usual one."""
        self._is_appending = is_appending
        self._append_count = append_count
        self._pace = RateLimiter(bytes_per_s or usual_pace(), monotonic=time.perf_counter)
        self._lock = threading.Lock()
        self._last_count = 0
        self._last_append_s: float | None = None
        """When the count was last seen to have changed; both are owned by the lock."""

    def give_way(self, patience_s: float) -> float:
        """Returns when no append is under way, or after a while: appends may come without end.

        One that has just ended has yet to wake those who wait for it, so it counts a little longer.
        What is returned is how many seconds it took.
        """
        if patience_s <= 0 or not self._is_appending():
            return 0.0
        began = time.perf_counter()
        is_over = False
        while not is_over and time.perf_counter() < began + patience_s:
            is_over = not self._is_appending()
            time.sleep(_LOOK_S)
        return time.perf_counter() - began

    def reserve(self, count: int) -> float:
        """Books bytes of a scan; the seconds after which they may be read.

        Where nothing was appended lately that is at once, however many they are.
        """
        return self._pace.reserve(count) if self.is_beside_appends() else 0.0

    def note(self, count: int) -> None:
        """Counts bytes that are read at once: scans wait for them, a little."""
        if self.is_beside_appends():
            self._pace.note(count, debt_s_max=_DEBT_S_MAX)

    def bytes_within(self, seconds: float) -> int | None:
        """How much may be scanned in so long; None: there is no limit now."""
        rate = self._pace.bytes_per_s
        return int(rate * seconds) if rate is not None and self.is_beside_appends() else None

    def is_beside_appends(self) -> bool:
        """Whether there are appends now and then."""
        with self._lock:
            count, now_s = self._append_count(), time.perf_counter()
            if count != self._last_count:
                self._last_count, self._last_append_s = count, now_s
            return self._last_append_s is not None and now_s - self._last_append_s < _LATELY_S
