"""Topics and partitions as Kafka clients name them, on top of the storage adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable

from firnmq.adapter import EngineStorageAdapter, StorageDriverManager, Topic
from firnmq.disk.files import Buffer
from firnmq.engines import AdapterOffsetStrategy, Appended, RawPage, ShardStatus
from firnmq.errors import FirnError, InvalidArgument, ShardNotFound, TopicNotFound


class KafkaStorage:
    """What the handlers do with storage. "Partition" is a word of this package only."""

    def __init__(self, manager: StorageDriverManager) -> None:
        self.manager = manager
        self.catalog = manager.catalog

    def topic(self, name: str) -> Topic:
        return self.catalog.get(name)

    def find(self, name: str) -> Topic | None:
        try:
            return self.catalog.get(name)
        except TopicNotFound:
            return None

    def shard(self, name: str, partition: int) -> str:
        """The shard of a partition; TopicNotFound or ShardNotFound."""
        topic = self.catalog.get(name)
        if not 0 <= partition < topic.shard_count:
            raise ShardNotFound(str(partition), within=f"topic {name!r}")
        return topic.shard_name(partition)

    async def submit(self, name: str, partition: int, batches: list[Buffer]) -> Awaitable[Appended]:
        """Queues batches with their shard; the result waits until they are durable."""
        shard = self.shard(name, partition)
        return await self._driver(name).submit_raw(shard, batches)

    async def read(self, name: str, partition: int, offset: int, max_bytes: int) -> RawPage:
        shard = self.shard(name, partition)
        return await self._driver(name).read_raw(shard, offset, max_bytes=max_bytes)

    async def bounds(self, name: str, partition: int) -> tuple[int, int]:
        return await self._driver(name).bounds(self.shard(name, partition))

    async def status(self, name: str, partition: int) -> ShardStatus:
        return await self._driver(name).status(self.shard(name, partition))

    async def offset_at(self, name: str, partition: int, timestamp_ms: int) -> int | None:
        """First offset at least as young as the timestamp; None if there is none."""
        driver, shard = self._driver(name), self.shard(name, partition)
        found = await driver.get_offset_by_timestamp(
            shard, timestamp_ms, AdapterOffsetStrategy.LATEST
        )
        _, end = await driver.bounds(shard)
        return None if found >= end else found

    async def timestamp_of(self, name: str, partition: int, offset: int) -> int:
        page = await self._driver(name).read_by_offset(
            self.shard(name, partition), offset, max_records=1, max_bytes=1
        )
        return int(page.columns[0].timestamps[0]) if len(page) else -1

    async def delete_before(self, name: str, partition: int, offset: int) -> int:
        """Moves the start of a partition and returns it."""
        driver, shard = self._driver(name), self.shard(name, partition)
        await driver.delete_records_before(shard, offset)
        return (await driver.bounds(shard))[0]

    async def wait_for_append(
        self, partitions: Iterable[tuple[str, int, int]], timeout_s: float
    ) -> None:
        """Returns when one of (topic, partition, end offset) has grown beyond it, or in time."""
        watches = []
        for name, partition, end_offset in partitions:
            try:
                shard = self.shard(name, partition)
                watches.append(self._driver(name).watch(shard, end_offset))
            except FirnError:
                continue  # It is gone, which the next read will say.
        if not watches:
            await asyncio.sleep(timeout_s)
            return
        try:
            waits = [asyncio.ensure_future(watch.wait()) for watch in watches]
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
        finally:
            for watch in watches:
                watch.close()

    def _driver(self, name: str) -> EngineStorageAdapter:
        driver = self.manager.driver_of(name)
        if not isinstance(driver, EngineStorageAdapter):
            raise InvalidArgument(
                name, "is kept by an adapter that has no batches; Kafka clients cannot use it"
            )
        return driver
