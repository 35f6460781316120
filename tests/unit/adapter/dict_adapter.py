"""A storage adapter as a user might write one: plain lists, and real waiting in every call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from firnmq.adapter import ShardBounds
from firnmq.config import TopicConfig
from firnmq.disk import Ticket
from firnmq.engines import AdapterOffsetStrategy, Appended, Page
from firnmq.errors import KeyNotFound, OffsetOutOfRange, ShardNotFound
from firnmq.record import NewRecord, Record


class DictAdapter:
    """Keeps shards in a dictionary. Every operation goes through the event loop once."""

    def __init__(self) -> None:
        self.shards: dict[str, list[Record | None]] = {}
        self.groups: dict[str, dict[str, int]] = {}
        self.fails_on: str | None = None
        self.watchers: dict[str, list[tuple[int, Ticket[None]]]] = {}

    async def create_shard(self, shard: str, config: TopicConfig) -> None:
        await _wait()
        if self.fails_on is not None and shard.endswith(self.fails_on):
            raise OSError(f"cannot make {shard}")
        self.shards[shard] = []

    async def delete_shard(self, shard: str) -> None:
        await self._shard(shard)
        del self.shards[shard]

    async def list_shard(self) -> list[ShardBounds]:
        await _wait()
        return [
            ShardBounds(name=name, start_offset=0, end_offset=len(records))
            for name, records in self.shards.items()
        ]

    async def write(self, shard: str, record: NewRecord) -> int:
        return (await self.batch_write(shard, [record])).base_offset

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        stored = await self._shard(shard)
        base = len(stored)
        for record in records:
            stored.append(
                Record(
                    offset=len(stored),
                    timestamp_ms=record.timestamp_ms or 0,
                    key=record.key,
                    value=record.value,
                    headers=record.headers,
                    tags=record.tags,
                    expire_at_ms=record.expire_at_ms,
                )
            )
        for end_offset, ticket in list(self.watchers.get(shard, ())):
            if len(stored) > end_offset:
                ticket.settle_here()
        return Appended(base_offset=base, next_offset=len(stored))

    async def read_by_offset(
        self, shard: str, offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        stored = await self._shard(shard)
        if not 0 <= offset <= len(stored):
            raise OffsetOutOfRange(offset, start=0, end=len(stored), shard=shard)
        return _page([each for each in stored[offset:] if each][:max_records], len(stored))

    async def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        stored = await self._shard(shard)
        found = [each for each in stored[start_offset:] if each and tag.decode() in each.tags]
        return _page(found[:max_records], len(stored))

    async def read_by_key(self, shard: str, key: bytes) -> Page:
        stored = await self._shard(shard)
        found = [each for each in stored if each and each.key == key]
        if not found:
            raise KeyNotFound(key.decode())
        return _page(found[-1:], len(stored))

    async def delete_by_key(self, shard: str, key: bytes) -> None:
        stored = await self._shard(shard)
        stored[:] = [None if each and each.key == key else each for each in stored]

    async def delete_by_offset(self, shard: str, offset: int) -> None:
        (await self._shard(shard))[offset] = None

    async def get_offset_by_timestamp(
        self, shard: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> int:
        for each in await self._shard(shard):
            if each and each.timestamp_ms >= timestamp_ms:
                return each.offset
        return 0 if strategy is AdapterOffsetStrategy.EARLIEST else len(self.shards[shard])

    async def get_offset_by_group(self, group: str) -> dict[str, int]:
        await _wait()
        return dict(self.groups.get(group, {}))

    async def commit_offset(self, group: str, offsets: Mapping[str, int]) -> None:
        await _wait()
        self.groups.setdefault(group, {}).update(offsets)

    async def bounds(self, shard: str) -> tuple[int, int]:
        return 0, len(await self._shard(shard))

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> Callable[[], None] | None:
        if len(self.shards[shard]) > end_offset:
            return None
        watcher = (end_offset, ticket)
        watchers = self.watchers.setdefault(shard, [])
        watchers.append(watcher)
        return lambda: watchers.remove(watcher)

    async def _shard(self, shard: str) -> list[Record | None]:
        await _wait()
        if shard not in self.shards:
            raise ShardNotFound(shard)
        return self.shards[shard]


async def _wait() -> None:
    """Really gives way to the loop, which storage coroutines of our own never need."""
    ready = asyncio.Event()
    asyncio.get_running_loop().call_soon(ready.set)
    await ready.wait()


def _page(records: list[Record], end_offset: int) -> Page:
    next_offset = records[-1].offset + 1 if records else end_offset
    return Page.from_records(
        records, next_offset=next_offset, start_offset=0, end_offset=end_offset
    )
