"""Time as a dependency: code asks a Clock, tests pass their own.

A wall clock may be set back. Durations within one process are therefore measured with `steady_ms`.
Times that are stored, and compared with the wall clock later, are compared by `age_ms` alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firnmq.ids import TimestampMs

Age = Callable[[int], int]
"""Stored wall time → how long ago that was, in ms; never negative."""

FUTURE_TIMES_MAX = 100_000
"""Stored times in the future that a clock remembers: at most 20 MB. Above it a new one is not
remembered until another is dropped, and its owner waits longer."""
_UNUSED_MS = 10 * 60 * 1000
"""A time that was not used for this long may be dropped: upkeep uses each every few seconds."""


class Clock:
    """Wall-clock time in milliseconds, and what can be measured with it."""

    def __init__(self) -> None:
        self._first_seen: dict[int, tuple[int, int]] = {}
        """Stored time in the future → steady times at which it was first seen and last used; the
        least recently used is the first."""
        self._lock = threading.Lock()

    def now_ms(self) -> TimestampMs:
        """The wall clock, which may go back."""
        raise NotImplementedError

    def steady_ms(self) -> int:
        """Milliseconds of a monotonic clock. Not to be stored."""
        raise NotImplementedError

    def age_ms(self, then_ms: int, at_ms: int | None = None) -> int:
        """How old a stored wall time is, now or at `at_ms`; never negative.

        A time in the future was stored before the clock was set back. Its age is the steady time
        since this clock first saw it: nothing waits longer than it would have from then on, and
        nothing is older than it is once the wall clock is right again.
        """
        now_ms = self.now_ms()
        age_ms = now_ms - then_ms
        if age_ms < 0 or self._first_seen:
            age_ms = max(age_ms, self._known_ms(then_ms, is_future=age_ms < 0))
        return max(age_ms if at_ms is None else age_ms + at_ms - now_ms, 0)

    def _known_ms(self, then_ms: int, *, is_future: bool) -> int:
        """How long this clock has known a time that is, or was, in the future."""
        steady_ms = self.steady_ms()
        with self._lock:
            first_ms, _ = self._first_seen.pop(then_ms, (steady_ms, 0))
            if first_ms < steady_ms or (is_future and self._has_room(steady_ms)):
                self._first_seen[then_ms] = first_ms, steady_ms
            return steady_ms - first_ms

    def _has_room(self, steady_ms: int) -> bool:
        """Whether one more time can be remembered. Times in use are never dropped for another: if
        each replaced the next, none would ever age."""
        if len(self._first_seen) >= FUTURE_TIMES_MAX:
            unused, (_, asked_ms) = next(iter(self._first_seen.items()))
            if steady_ms - asked_ms < _UNUSED_MS:
                return False
            del self._first_seen[unused]
        return True


class SystemClock(Clock):
    """The machine's clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)

    def steady_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000


class SteadyClock(Clock):
    """Another clock's wall time that never goes back: while the wall clock is behind, time passes
    as fast as `steady_ms` does. For deadlines that are compared within one process."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._last_ms = int(clock.now_ms())
        self._last_steady_ms = clock.steady_ms()

    def now_ms(self) -> TimestampMs:
        with self._lock:
            steady_ms = self._clock.steady_ms()
            passed_ms = steady_ms - self._last_steady_ms
            self._last_ms = max(self._clock.now_ms(), self._last_ms + passed_ms)
            self._last_steady_ms = steady_ms
            return TimestampMs(self._last_ms)

    def steady_ms(self) -> int:
        return self._clock.steady_ms()
