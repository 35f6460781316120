"""How long requests share the event loop with all others.

A request that works through many elements gives way after a few milliseconds. Requests that have
given way go on one at a time, one in each turn of the event loop, in the order they gave way. So
another client waits for one such piece of work at most, however many long requests there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from time import perf_counter
from typing import TypeVar

WORK_S_MAX = 0.003
"""Seconds of work before a request gives way."""

ItemT = TypeVar("ItemT")


class Turns:
    """The line of requests that have given way. Owned by the event loop."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self.clock = clock
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def over(self, items: Iterable[ItemT]) -> AsyncIterator[ItemT]:
        """The items, giving way between two of them whenever the work took long enough.

        Every loop over elements that a client sent, or over what they refer to, goes through here.
        """
        stint = Stint(self)
        for item in items:
            yield item
            if stint.is_over:
                await stint.give_way()

    async def distinct(self, items: Iterable[ItemT]) -> AsyncIterator[ItemT]:
        """The same, with each item once, however often it is there."""
        seen: set[ItemT] = set()
        async for item in self.over(items):
            if item not in seen:
                seen.add(item)
                yield item

    async def give_way(self) -> None:
        """Returns in one of the next turns of the event loop."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting.append(turn)
        if len(self._waiting) == 1:
            loop.call_soon(self._serve, loop)
        await turn

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        turn = self._waiting.popleft()
        if not turn.done():  # Else its request was given up.
            turn.set_result(None)
        if self._waiting:
            loop.call_soon(self._serve, loop)


class Stint:
    """Work since it last gave way, which ends after a few milliseconds."""

    __slots__ = ("_ends_s", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self.begin()

    def begin(self) -> None:
        """Work begins now, after it had nothing to do."""
        self._ends_s = self._turns.clock() + WORK_S_MAX

    @property
    def is_over(self) -> bool:
        return self._turns.clock() >= self._ends_s

    async def give_way(self) -> None:
        await self._turns.give_way()
        self.begin()
