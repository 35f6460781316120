"""The states of a log's roll, and every way from one to another, in one table."""

from __future__ import annotations

from enum import Enum

from firnmq.transitions import Transitions


class RollState(Enum):
    IDLE = "idle"
    """Appends are stored; no roll is due."""
    WANTED = "wanted"
    """A roll is due and a driver has been asked. Appends are stored up to a tenth over the size."""
    CATCHING_UP = "catching up"
    """Frozen: appends are parked until the roll is over. Some records of the segment are still
    above the high watermark."""
    SYNCING = "syncing"
    """Frozen. Everything of the segment is shown, and is being made durable."""
    DECIDING = "deciding"
    """Frozen. The metadata transaction is under way."""
    CLOSING = "closing"
    """The log was closed while a driver was at work, which has not come back yet."""
    CLOSED = "closed"
    """The log was closed, and nothing of a roll is under way. Opening the shard obeys the
    metadata."""


class RollStep(Enum):
    WANT = "a wish to roll"
    BEGIN = "the beginning of a roll"
    CATCH_UP = "the arrival of the high watermark"
    GIVE_UP = "the end of the time to wait, or a refusal by who must agree"
    SYNC = "a synced segment"
    DECIDE = "a metadata transaction"
    FAIL = "a failed step"
    CLOSE = "the end of the log"
    COME_BACK = "the driver's return"


_State, _Step = RollState, RollStep

ROLL_TRANSITIONS = Transitions(
    "roll of a log",
    {
        (_State.IDLE, _Step.WANT): _State.WANTED,
        (_State.IDLE, _Step.BEGIN): _State.CATCHING_UP,
        (_State.WANTED, _Step.BEGIN): _State.CATCHING_UP,
        (_State.CATCHING_UP, _Step.CATCH_UP): _State.SYNCING,
        (_State.CATCHING_UP, _Step.GIVE_UP): _State.IDLE,
        (_State.SYNCING, _Step.SYNC): _State.DECIDING,
        (_State.SYNCING, _Step.GIVE_UP): _State.IDLE,
        (_State.DECIDING, _Step.DECIDE): _State.IDLE,
        (_State.DECIDING, _Step.GIVE_UP): _State.IDLE,
        (_State.CATCHING_UP, _Step.FAIL): _State.CLOSED,
        (_State.SYNCING, _Step.FAIL): _State.CLOSED,
        (_State.DECIDING, _Step.FAIL): _State.CLOSED,
        (_State.IDLE, _Step.CLOSE): _State.CLOSED,
        (_State.WANTED, _Step.CLOSE): _State.CLOSED,
        (_State.CATCHING_UP, _Step.CLOSE): _State.CLOSING,
        (_State.SYNCING, _Step.CLOSE): _State.CLOSING,
        (_State.DECIDING, _Step.CLOSE): _State.CLOSING,
        (_State.CLOSING, _Step.COME_BACK): _State.CLOSED,
    },
)

FROZEN = frozenset({_State.CATCHING_UP, _State.SYNCING, _State.DECIDING})
"""Nothing is appended. The segment has its last record."""
UNDER_WAY = FROZEN | {_State.CLOSING}
"""A driver is at work; other changes of the log wait for it."""
