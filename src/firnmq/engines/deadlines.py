"""Deadlines of appends: one sweep per event loop, no timer per request.

A worker refuses what is still queued at its deadline when it gets to it. The sweep is for requests
whose worker does not get there, because the device does not answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from firnmq.disk import Ticket
from firnmq.engines.api import Appended
from firnmq.engines.shardlog import Append
from firnmq.errors import AppendTimedOut

SWEEP_S = 0.25
"""How much later than its deadline a request may be told."""


class Deadlines:
    """Of an engine's appends. Each event loop has its own; a thread waits with a time-out."""

    def __init__(self, withdraw: Callable[[Append], bool]) -> None:
        """`withdraw` takes back what is still queued, and says whether it was."""
        self._withdraw = withdraw
        self._by_loop: dict[asyncio.AbstractEventLoop, dict[Ticket[Appended], Append]] = {}
        """What loops wait for. A loop that is not here has no timer."""

    def watch(self, request: Append) -> None:
        """Fails the request's ticket if it is still open at the deadline. On the ticket's loop."""
        ticket = request.ticket
        loop = ticket.loop
        if request.deadline_s is None or loop is None:
            return
        waiting = self._by_loop.get(loop)
        if waiting is None:
            for closed in [each for each in list(self._by_loop) if each.is_closed()]:
                self._by_loop.pop(closed, None)
            waiting = self._by_loop[loop] = {}
            loop.call_later(SWEEP_S, self._sweep, loop)
        ticket.keep_in(waiting, request)

    def expired(self, request: Append) -> AppendTimedOut:
        """What to tell of a request at its deadline; it is taken back if it is still queued."""
        return AppendTimedOut(is_unknown=not self._withdraw(request))

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._by_loop[loop]
        now_s = monotonic()
        overdue = [
            (ticket, request)
            for ticket, request in waiting.items()
            if request.deadline_s is not None and request.deadline_s <= now_s
        ]
        for ticket, request in overdue:
            ticket.expire(self.expired(request))
        if waiting:
            loop.call_later(SWEEP_S, self._sweep, loop)
        else:
            del self._by_loop[loop]
