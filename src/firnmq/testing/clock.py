"""A clock that stands still until told otherwise."""

from __future__ import annotations

from firnmq.ids import TimestampMs


class FakeClock:
    """A Clock for tests: time moves only by `advance`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms

    def now_ms(self) -> TimestampMs:
        return TimestampMs(self._now_ms)

    def advance(self, ms: int) -> None:
        assert ms >= 0, "time does not go back"
        self._now_ms += ms
