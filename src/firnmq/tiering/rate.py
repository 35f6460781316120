"""How many bytes a second go to or come from the object store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firnmq.errors import InvalidArgument

BURST_S = 0.1
"""What may go at once after a pause, as a time at full rate: short against a second, long against
the few milliseconds by which a sleep comes late."""


class RateLimiter:
    """A token bucket over bytes, for any number of threads; without a rate it lets all pass.

    A request larger than the bucket is let through once the bucket is not in debt, and puts it into
    debt: those who come next wait for it. So one call may ask for any number of bytes, threads are
    served in the order in which they came, and the rate holds over any time but the shortest.
    """

    def __init__(
        self,
        bytes_per_s: int | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`wait` sleeps for seconds; the `wait` of an Event ends the sleep when that is set."""
        if bytes_per_s is not None and bytes_per_s < 1:
            raise InvalidArgument("bytes_per_s", f"{bytes_per_s} is less than 1; None is no limit")
        self.bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._wait = wait
        self._lock = threading.Lock()
        self._paid_until = monotonic() - BURST_S
        """When all that was let through so far is paid for; owned by the lock."""

    def take(self, count: int) -> None:
        """Waits until `count` more bytes may go."""
        wait_s = self.reserve(count)
        if wait_s > 0:
            self._wait(wait_s)

    def reserve(self, count: int) -> float:
        """Books `count` bytes; the seconds after which they may go."""
        if count < 0:
            raise InvalidArgument("count", f"{count} bytes are less than none")
        if self.bytes_per_s is None:
            return 0.0
        with self._lock:
            now = self._monotonic()
            starts = max(self._paid_until, now - BURST_S)
            self._paid_until = starts + count / self.bytes_per_s
            return max(0.0, starts - now)

    def note(self, count: int, *, debt_s_max: float) -> None:
        """Counts bytes that go at once: others wait for them, but no longer than that."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            now = self._monotonic()
            starts = max(self._paid_until, now - BURST_S)
            paid_until = min(starts + count / self.bytes_per_s, now + debt_s_max)
            self._paid_until = max(starts, paid_until)
