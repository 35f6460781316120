"""Tickets of readers that wait for a log to grow."""

from __future__ import annotations

import threading
from collections.abc import Callable

from firnmq.disk import Settlement, Ticket


class Watchers:
    """Of one log. Safe with threads."""

    __slots__ = ("_lock", "_tickets")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: list[Ticket[None]] = []

    def add(self, ticket: Ticket[None], has_ended: Callable[[], bool]) -> bool:
        """Lets one more wait, unless what it waits for has come already.

        It comes before the call of `take`, so no ticket is left behind.
        """
        with self._lock:
            if has_ended():
                return False
            self._tickets.append(ticket)
            return True

    def remove(self, ticket: Ticket[None]) -> None:
        with self._lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def take(self) -> list[Ticket[None]]:
        """All of them; the caller wakes them."""
        if not self._tickets:
            return []
        with self._lock:
            woken, self._tickets = self._tickets, []
        return woken

    def wake(self, settlement: Settlement) -> None:
        for ticket in self.take():
            settlement.resolve(ticket, None)
