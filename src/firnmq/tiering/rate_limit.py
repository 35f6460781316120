"""A rate limit on the bytes to or from the object store."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from firnmq.errors import InvalidArgument

BURST_S = 0.1
"""The burst after a pause, as a time at full rate: short against a second, long against the few
milliseconds by which a sleep wakes late."""


class RateLimiter:
    """A token bucket over bytes, for any number of threads; without a rate it never waits.

    A request larger than the bucket passes once the bucket is not in debt, and puts it into debt,
    for which the next requests wait. So a call may request any number of bytes, threads are served
    first come, first served, and the rate holds over any time longer than the burst.
    """

    def __init__(
        self,
        bytes_per_s: int | None,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        """`wait` sleeps for seconds; with an Event's `wait`, setting the event ends the sleep."""
        if bytes_per_s is not None and bytes_per_s < 1:
            raise InvalidArgument("bytes_per_s", f"{bytes_per_s} is less than 1; None is no limit")
        self.bytes_per_s = bytes_per_s
        self._monotonic = monotonic
        self._wait = wait
        self._lock = threading.Lock()
        self._paid_until = monotonic() - BURST_S
        """When all bytes granted so far are paid for. Guarded by the lock."""

    def take(self, count: int) -> None:
        """Waits until `count` more bytes may be sent."""
        wait_s = self.reserve(count)
        if wait_s > 0:
            self._wait(wait_s)

    def reserve(self, count: int) -> float:
        """Reserves `count` bytes and returns the seconds to wait before sending them."""
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
        """Charges bytes that do not wait; later requests wait for them, at most `debt_s_max`."""
        if self.bytes_per_s is None:
            return
        with self._lock:
            now = self._monotonic()
            starts = max(self._paid_until, now - BURST_S)
            paid_until = min(starts + count / self.bytes_per_s, now + debt_s_max)
            self._paid_until = max(starts, paid_until)
