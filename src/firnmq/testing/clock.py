"""A clock that moves only when a test moves it."""

from __future__ import annotations

from firnmq.clock import Clock
from firnmq.ids import TimestampMs


class FakeClock(Clock):
    """A Clock for tests: time moves only by `advance`, `set_back` and `set_forward`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        super().__init__()
        self._now_ms = now_ms
        self._steady_ms = 0

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def steady_ms(self) -> int:
        return self._steady_ms

    def advance(self, ms: int) -> None:
        """Time passes."""
        assert ms >= 0, "time does not go back; set_back is what an operator does to a clock"
        self._now_ms += ms
        self._steady_ms += ms

    def set_forward(self, ms: int) -> None:
        """Sets the wall clock forward; no time passes."""
        assert ms >= 0, "by how much the clock is set forward"
        self._now_ms += ms

    def set_back(self, ms: int) -> None:
        """Sets the wall clock back; no time passes."""
        assert ms >= 0, "by how much the clock is set back"
        self._now_ms -= ms
