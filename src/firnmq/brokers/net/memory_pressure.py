"""Memory is short: connections that hold it without need are closed for clients that wait.

Connections whose clients stall are closed first, the largest before the smaller. If none stalls,
half-sent frames are given up of clients that hold more than the waiting client, the slowest frame
first. So a client of moderate size waits for a fraction of a second, whatever others do. Memory of
requests that are being carried out is never taken: it comes back by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from firnmq.brokers.net.byte_budget import ByteBudget, ByteShare, FrameRoom

WAIT_S = 0.1
"""Seconds that a client waits for memory before another connection is closed for it."""
AGE_S = 0.5
"""Seconds that a half-sent frame has, at least, while it makes progress."""
_LOOK_S = 0.1
"""Time between two looks while anything waits."""
_LATE_S = 0.5
"""A look that is so late is left out: what clients have sent has not been read yet."""


class Holder(Protocol):
    """A connection, as far as memory is concerned."""

    @property
    def share(self) -> ByteBudget | ByteShare:
        """Where its bytes are counted."""

    @property
    def reclaimable_bytes(self) -> int:
        """Bytes that are held because the client has not done its part."""

    def shrink(self) -> None:
        """Gives back memory in which nothing is."""

    def is_stalled(self, now_s: float) -> bool:
        """Whether the client makes no progress with its part."""

    def frame_age_s(self, now_s: float) -> float:
        """How long ago the half-sent frame began; 0 if there is none."""

    def frame_bytes_per_s(self, now_s: float) -> float:
        """How fast it has come on average."""

    def evict(self) -> int:
        """Closes the connection. Returns how many bytes come back later; a half-sent frame gives
        its bytes back at once."""


class MemoryPressure:
    """Looks after one budget and its shares. Owned by the event loop."""

    def __init__(
        self,
        budget: ByteBudget,
        shares: Callable[[], Iterable[ByteShare]],
        holders: Callable[[], Iterable[Holder]],
    ) -> None:
        self._budget = budget
        self._shares = shares
        self._holders = holders
        self._timer: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """A frame waits for memory: looks from time to time until none does."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        now_s = asyncio.get_running_loop().time()
        assert self._timer is not None
        is_late = now_s - self._timer.when() > _LATE_S
        self._timer = None
        if not is_late:  # Else the node itself was busy, and the clients are not to blame.
            self.relieve(now_s)
        if self._budget.waiting_count or any(share.next_owner for share in self._shares()):
            self.wake()

    def relieve(self, now_s: float) -> None:
        """Makes room for frames that have waited too long: one pass over all connections."""
        connections = list(self._holders())
        for each in connections:
            each.shrink()
        holders = [each for each in connections if each.reclaimable_bytes]
        stalled = [each for each in holders if each.is_stalled(now_s)]
        stalled.sort(key=lambda each: each.reclaimable_bytes, reverse=True)
        evicted: set[Holder] = set()
        for share in [each for each in self._shares() if each.next_owner is not None]:
            theirs = (each for each in stalled if each.share is share)
            evicted |= _evict_for(share, theirs, now_s)
        if _waiter(self._budget, now_s) is None:
            return
        aged = [each for each in holders if each.frame_age_s(now_s) >= AGE_S]
        aged.sort(key=lambda each: each.frame_bytes_per_s(now_s))
        evicted |= _evict_for(
            self._budget, (each for each in stalled if each not in evicted), now_s
        )
        larger = (
            each
            for each in aged
            if each not in evicted and _holds_more(each, _waiter(self._budget, now_s))
        )
        _evict_for(self._budget, larger, now_s)


def _waiter(budget: ByteBudget | ByteShare, now_s: float) -> FrameRoom | None:
    """The frame that is next in a line, if it has waited too long."""
    owner = budget.next_owner
    if isinstance(owner, FrameRoom) and now_s - owner.waits_since_s >= WAIT_S:
        return owner
    return None


def _holds_more(holder: Holder, waiter: FrameRoom | None) -> bool:
    if waiter is None or holder.share is waiter.share:
        return False
    return holder.share.used_bytes > waiter.share.used_bytes


def _evict_for(
    budget: ByteBudget | ByteShare, victims: Iterable[Holder], now_s: float
) -> set[Holder]:
    """Evicts until no frame that waits in this budget has waited too long."""
    evicted: set[Holder] = set()
    coming_bytes = 0
    for victim in victims:
        if _waiter(budget, now_s) is None or budget.missing_bytes <= coming_bytes:
            break
        coming_bytes += victim.evict()
        evicted.add(victim)
    return evicted
