"""Waits until shards of other nodes grow: one question at a time per shard and offset, however many
clients wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from firnmq.disk import Ticket
from firnmq.errors import FirnError

_WAIT_S = 1.0
"""After so long the leader answers. A client that waits longer reads, and then watches again."""
_RETRY_S = 0.2
"""After an error: the next read says what is wrong."""

WaitGrown = Callable[[str, int, float], Awaitable[None]]


class _Watch:
    """Clients that wait for one shard to grow beyond one offset."""

    def __init__(self) -> None:
        self.tickets: set[Ticket[None]] = set()
        self.task: asyncio.Task[None] | None = None


class RemoteWatches:
    """Owned by one event loop."""

    def __init__(self, wait_grown: WaitGrown) -> None:
        self._wait_grown = wait_grown
        self._watches: dict[tuple[str, int], _Watch] = {}

    def add(self, shard: str, end_offset: int, ticket: Ticket[None]) -> Callable[[], None]:
        """Completes the ticket, on its event loop, once the shard may have grown."""
        key = (shard, end_offset)
        watch = self._watches.get(key)
        if watch is None:
            watch = self._watches[key] = _Watch()
            watch.task = asyncio.get_running_loop().create_task(self._ask(key, watch))
        watch.tickets.add(ticket)
        return partial(watch.tickets.discard, ticket)

    async def _ask(self, key: tuple[str, int], watch: _Watch) -> None:
        try:
            await self._wait_grown(*key, _WAIT_S)
        except FirnError:
            await asyncio.sleep(_RETRY_S)
        finally:
            del self._watches[key]
            for ticket in watch.tickets:
                ticket.settle_here()
