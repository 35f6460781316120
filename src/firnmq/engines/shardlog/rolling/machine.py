"""When a log rolls, and in which order: a synchronous state machine without I/O.

    want → begin (freeze) → catch up → sync → decide → install

The segment is sealed only when the high watermark has reached its end. So a sealed segment holds
nothing that was not acknowledged, and a transaction whose outcome is unknown needs no guess: the
log closes, and opening it finds the segment sealed or active, with the same records.
"""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.engines.shardlog.rolling.state import (
    FROZEN,
    ROLL_TRANSITIONS,
    UNDER_WAY,
    RollState,
    RollStep,
)

FREEZE_S_MAX = 5.0
"""How long a frozen log waits for its high watermark before it takes appends again."""


# Events. ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The segment is full or old."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A driver begins; nothing is staged."""

    end_offset: int
    shown_offset: int
    """The high watermark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The high watermark has moved, or the driver has waited for it in vain."""

    shown_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Bytes and index entries of the frozen segment are durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """The node that shall lead the next segment is not ready for it, or the replicas are not.
    Nothing has been decided."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The metadata has the segment sealed and the next one active."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The driver could not do what it was told, or cannot know whether it did."""

    error: Exception


@dataclass(frozen=True, slots=True, kw_only=True)
class LogClosed:
    """The log failed, its shard was deleted, or the store closes."""


Event = Wanted | Begun | Shown | Synced | Refused | Decided | Failed | LogClosed


# Actions. The driver performs one at a time and reports its event. --------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDriver:
    """Have a driver begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitShown:
    """Wait until the high watermark is at the offset, at most until the deadline: Shown."""

    offset: int
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    """Make the segment durable: Synced or Failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide:
    """Seal the segment and open the next one in the metadata: Decided or Failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """Show the sealed segment and the new one, and take appends again, parked ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Thaw:
    """Take appends again without a roll, parked ones first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseLog:
    """Close the log, which fails its parked appends."""

    error: Exception


Action = AskDriver | AwaitShown | Sync | Decide | Install | Thaw | CloseLog


class RollMachine:
    """The roll of one log. The log's lock is held around every call.

    `is_frozen` and `is_under_way` may be read without it; the answer may then be out of date.
    """

    __slots__ = ("_deadline_s", "_end_offset", "is_frozen", "is_under_way", "state")

    def __init__(self) -> None:
        self.state = RollState.IDLE
        self.is_frozen = False
        self.is_under_way = False
        self._end_offset = 0
        """Where the frozen segment ends."""
        self._deadline_s = 0.0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """What to do about an event. A driver that comes back to a closed log is told nothing."""
        if isinstance(event, LogClosed):
            if ROLL_TRANSITIONS.allows(self.state, RollStep.CLOSE):
                self._take(RollStep.CLOSE)
            return []
        if self.state is RollState.CLOSING:
            self._take(RollStep.COME_BACK)
            return []
        match event:
            case Wanted():
                if self.state is not RollState.IDLE:
                    return []
                self._take(RollStep.WANT)
                return [AskDriver()]
            case Begun():
                self._take(RollStep.BEGIN)
                self._end_offset = event.end_offset
                self._deadline_s = now_s + FREEZE_S_MAX
                return self._shown(event.shown_offset, is_late=False)
            case Shown():
                return self._shown(event.shown_offset, is_late=now_s >= self._deadline_s)
            case Synced():
                self._take(RollStep.SYNC)
                return [Decide()]
            case Refused():
                self._take(RollStep.GIVE_UP)
                return [Thaw()]
            case Decided():
                self._take(RollStep.DECIDE)
                return [Install()]
            case Failed():
                self._take(RollStep.FAIL)
                return [CloseLog(error=event.error)]

    def _shown(self, shown_offset: int, *, is_late: bool) -> list[Action]:
        if shown_offset >= self._end_offset:
            self._take(RollStep.CATCH_UP)
            return [Sync()]
        if is_late:
            self._take(RollStep.GIVE_UP)
            return [Thaw()]
        return [AwaitShown(offset=self._end_offset, deadline_s=self._deadline_s)]

    def _take(self, step: RollStep) -> None:
        self.state = ROLL_TRANSITIONS.next(self.state, step)
        self.is_frozen = self.state in FROZEN
        self.is_under_way = self.state in UNDER_WAY
