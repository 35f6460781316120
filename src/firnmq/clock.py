"""Time as a dependency: code asks a Clock, tests hand in their own."""

from __future__ import annotations

import time
from typing import Protocol

from firnmq.ids import TimestampMs


class Clock(Protocol):
    """Wall-clock time in milliseconds."""

    def now_ms(self) -> TimestampMs: ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> TimestampMs:
        return TimestampMs(time.time_ns() // 1_000_000)
