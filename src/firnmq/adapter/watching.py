"""Waits until one of many shards grows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from firnmq.adapter.api import StorageAdapter
from firnmq.disk import Ticket
from firnmq.errors import FirnError

_WATCHED_AT_ONCE = 1_000
"""Shards that are watched before other work on the event loop goes on."""


async def wait_for_append(
    places: Iterable[tuple[StorageAdapter, str, int]], timeout_s: float
) -> None:
    """Returns when one of (storage, shard, end offset) has grown beyond the offset, or in time.
    A shard that is gone is passed over."""
    ticket: Ticket[None] = Ticket()
    unwatch: list[Callable[[], None]] = []
    timer = asyncio.get_running_loop().call_later(timeout_s, ticket.settle_here)
    try:
        for number, (storage, shard, end_offset) in enumerate(places, 1):
            if number % _WATCHED_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                end = storage.watch(shard, end_offset, ticket)
            except FirnError:
                continue  # It is gone, which the next read will say.
            if end is None:
                return
            unwatch.append(end)
        await ticket
    finally:
        timer.cancel()
        for end in unwatch:
            end()
