"""Appends that wait for their log's next segment, in order and within a budget.

They have left their worker's queue, so that it goes on with other shards. Only the worker parks and
takes; deadlines and a log that closes remove.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from firnmq.disk import Settlement, Ticket
from firnmq.engines.shardlog.append import Append
from firnmq.errors import FirnError


class ParkingBudget:
    """What all parked appends of a store may take. Safe with threads.

    An append to a log with parked appends waits while the budget is used up. Beyond twice the
    budget every append waits. What has been queued before is parked in any case, so the bound is
    twice the budget and what the queues hold.
    """

    def __init__(self, max_bytes: int, max_requests: int) -> None:
        self._max_bytes = max_bytes
        self._max_requests = max_requests
        self.lock = threading.Lock()
        """Guards the fields below, and the appends of every log. Never held while anything is
        waited for."""
        self.bytes = 0
        self.count = 0
        self.is_full = False
        """Whether anyone has to wait. May be read without the lock."""
        self._waiters: list[Ticket[None]] = []

    def has_room(self, parked: ParkedAppends) -> bool:
        """Whether an append may be queued for the log."""
        with self.lock:
            return self._has_room(parked)

    def room(self, parked: ParkedAppends) -> Ticket[None] | None:
        """None if there is room, else a ticket to wait for before the next attempt."""
        with self.lock:
            if self._has_room(parked):
                return None
            ticket: Ticket[None] = Ticket()
            self._waiters.append(ticket)
            return ticket

    def _has_room(self, parked: ParkedAppends) -> bool:
        if not self.is_full:
            return True
        is_over = self.bytes >= 2 * self._max_bytes or self.count >= 2 * self._max_requests
        return not (is_over or parked)

    def add(self, size_bytes: int, count: int) -> Settlement:
        """Counts appends that were parked, or were taken. Deliver what it returns without the
        lock, which is held here."""
        self.bytes += size_bytes
        self.count += count
        self.is_full = self.bytes >= self._max_bytes or self.count >= self._max_requests
        woken = Settlement()
        if size_bytes < 0:
            for ticket in self._waiters:
                woken.resolve(ticket, None)
            self._waiters = []
        return woken


class ParkedAppends:
    """Those of one log. False if there are none, which may be asked without a lock."""

    __slots__ = ("_budget", "_requests", "resume")

    def __init__(self, budget: ParkingBudget) -> None:
        self._budget = budget
        self._requests: deque[Append] = deque()
        self.resume: Callable[[], None] = _nothing_to_resume
        """Has the worker run a turn with what is parked; set when the log is opened."""

    def __bool__(self) -> bool:
        return bool(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def park(self, requests: Sequence[Append]) -> None:
        """Adds requests behind those that are there."""
        with self._budget.lock:
            self._requests.extend(requests)
            self._budget.add(_size(requests), len(requests))

    def take(self) -> list[Append]:
        """All that are parked, in order, except that those whose deadline has passed are
        refused."""
        with self._budget.lock:
            requests, self._requests = self._requests, deque()
            settlement = self._budget.add(-_size(requests), -len(requests))
        now_s = monotonic()
        kept = []
        for request in requests:
            if request.deadline_s is not None and request.deadline_s <= now_s:
                settlement.fail(request.ticket, request.overdue())
            else:
                kept.append(request)
        settlement.deliver()
        return kept

    def withdraw(self, request: Append) -> bool:
        """Removes a request; False if it is not parked."""
        with self._budget.lock:
            if request not in self._requests:
                return False
            self._requests.remove(request)
            settlement = self._budget.add(-request.size_bytes, -1)
        settlement.deliver()
        self.resume()  # A worker that is closing waits for what is parked.
        return True

    def fail(self, error: FirnError) -> None:
        """Refuses all: nothing of them was stored."""
        if not self._requests:
            return
        with self._budget.lock:
            requests, self._requests = self._requests, deque()
            settlement = self._budget.add(-_size(requests), -len(requests))
        for request in requests:
            settlement.fail(request.ticket, error)
        settlement.deliver()
        self.resume()


def _size(requests: Sequence[Append] | deque[Append]) -> int:
    return sum(request.size_bytes for request in requests)


def _nothing_to_resume() -> None:
    """Where the caller itself stores what did not fit."""
