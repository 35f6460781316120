"""Tickets of readers that wait for a log to grow."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from firnmq.disk import Notice, Settlement, Ticket
from firnmq.engines.shardlog.view import View

if TYPE_CHECKING:
    from firnmq.engines.shardlog.append import Append


class ShownBatch(NamedTuple):
    """A batch that was appended alone, and the view that ends with it."""

    base_offset: int
    batch: memoryview
    view: View


class BatchWatcher(Notice[None]):
    """Waits for a log to grow; may be given the batch that made it grow."""

    __slots__ = ("shown",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.shown: ShownBatch | None = None
        """Set before `settled` is called, if a worker's turn has appended one batch alone."""

    def appended(self, shown: ShownBatch) -> None:
        """Called on the event loop in place of `settled`, if the loop itself has appended."""
        raise NotImplementedError


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

    @property
    def has_any(self) -> bool:
        return bool(self._tickets)

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

    def wake(self, settlement: Settlement, shown: ShownBatch | None = None) -> None:
        for ticket in self.take():
            if isinstance(ticket, BatchWatcher):
                ticket.shown = shown
            settlement.resolve(ticket, None)


def shown_alone(requests: list[Append], before_offset: int, view: View) -> ShownBatch | None:
    """The batch that a turn has shown, if it was one alone: the log ended at an offset before it,
    and ends with the view now."""
    if len(requests) != 1 or requests[0].batch is None:
        return None
    batch, appended = requests[0].batch, requests[0].appended
    if appended is None or appended[:2] != (before_offset, view.end_offset):
        return None  # It was refused, or stored before.
    return ShownBatch(before_offset, memoryview(batch.data), view)
