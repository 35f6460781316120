"""A limit on concurrent work, shared fairly between the addresses of clients.

One address takes at most half of the places, and waiting addresses take turns. So a client with
many slow requests delays its own, and another client waits for at most one piece of work.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SharedPlaces:
    """A number of places. Owned by the event loop."""

    def __init__(self, count: int) -> None:
        self._free_count = count
        self._address_max = max(count // 2, 1)
        self._busy: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """By address; the first that has a free place is next."""

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Waits for a place and holds it inside the block."""
        await self.enter(address)
        try:
            yield
        finally:
            self.leave(address)

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    async def enter(self, address: str) -> None:
        """Waits for a place; `leave` gives it back."""
        if self._may_enter(address):
            self._enter(address)
        else:
            await self._wait(address)

    def _may_enter(self, address: str) -> bool:
        # Waiting addresses have used up their share, or no place is free.
        return self._free_count > 0 and self._busy[address] < self._address_max

    def _enter(self, address: str) -> None:
        self._free_count -= 1
        self._busy[address] += 1

    async def _wait(self, address: str) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(address)
            else:
                self._forget(address, turn)
            raise

    def leave(self, address: str) -> None:
        self._free_count += 1
        self._busy[address] -= 1
        if not self._busy[address]:
            del self._busy[address]
        while (next_address := self._next()) is not None:
            turn = self._waiting[next_address].popleft()
            self._enter(next_address)
            turn.set_result(None)
            self._waiting.move_to_end(next_address)
            if not self._waiting[next_address]:
                del self._waiting[next_address]

    def _next(self) -> str | None:
        return next((each for each in self._waiting if self._may_enter(each)), None)

    def _forget(self, address: str, turn: asyncio.Future[None]) -> None:
        self._waiting[address].remove(turn)
        if not self._waiting[address]:
            del self._waiting[address]


class StreamTurn:
    """The places of one stream of pages. A stream holds a place from when it reads a page until its
    client has taken it, and another one while the page is made. It holds none while it waits for
    new records."""

    def __init__(self, held: SharedPlaces, made: SharedPlaces, address: str) -> None:
        self._places = (held, made)
        self._address = address
        self._count = 0
        """How many of the places are taken."""

    async def enter(self) -> None:
        """Waits until the next page may be made."""
        for places in self._places[self._count :]:
            await places.enter(self._address)
            self._count += 1

    def made(self) -> None:
        """The page is there; its client has yet to take it."""
        self._leave(1)

    def leave(self) -> None:
        """The client has taken the page, or is gone."""
        self._leave(0)

    def _leave(self, count: int) -> None:
        while self._count > count:
            self._count -= 1
            self._places[self._count].leave(self._address)
