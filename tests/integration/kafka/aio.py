"""Running aiokafka so that nothing of it stays open.

A client that is stopped while it makes a connection forgets that connection. Nobody closes it then,
and it is complained of whenever it is collected, in some other test.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Like asyncio.run, for what uses aiokafka."""

    async def whole() -> T:
        try:
            return await work
        finally:
            await close_forgotten()

    return asyncio.run(whole())


async def close_forgotten() -> None:
    """Ends all other tasks of the running loop, and the connections that they leave open."""
    loop = asyncio.get_running_loop()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    for transport in list(getattr(loop, "_transports", {}).values()):
        transport.abort()
    await asyncio.sleep(0)
