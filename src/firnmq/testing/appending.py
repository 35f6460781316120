"""Appending one encoded batch and waiting for it, which only tests and benchmarks do at once."""

from __future__ import annotations

from typing import Protocol

from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines import Appended


class Submitter(Protocol):
    """An engine, or an adapter over one."""

    async def submit(self, shard: str, batch: Buffer) -> Ticket[Appended]: ...


async def append_batch(to: Submitter, shard: str, batch: Buffer) -> Appended:
    """Appends a batch and returns when it is acknowledged. A writable buffer is patched."""
    return await (await to.submit(shard, batch))
