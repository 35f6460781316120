"""Topics and partitions as Kafka clients name them, on top of the storage adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import NamedTuple

from firnmq.adapter import EngineStorageAdapter, StorageDriverManager, Topic
from firnmq.brokers.kafka.transactions import TransactionPartition
from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines import Appended, RawPage, ShardStatus
from firnmq.errors import FirnError, InvalidArgument, ShardNotFound, TopicNotFound
from firnmq.record import Selection, decode

_PARTITIONS_CACHED_MAX = 20_000


class StoredPartition(NamedTuple):
    """Where a partition is kept."""

    topic: Topic
    driver: EngineStorageAdapter
    shard: str


class KafkaStorage:
    """What the handlers do with storage. "Partition" is a word of this package only."""

    def __init__(self, manager: StorageDriverManager) -> None:
        self.manager = manager
        self.catalog = manager.catalog
        self._partitions: dict[tuple[str, int], StoredPartition] = {}
        """What was looked up before: a client asks for the same partitions again and again."""

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

    def transaction_partition(self, name: str, partition: int) -> TransactionPartition:
        """A partition that can be part of a transaction."""
        self._driver(name)
        return TransactionPartition(topic=name, shard=self.shard(name, partition))

    async def write_marker(
        self, partition: TransactionPartition, producer_id: int, epoch: int, *, is_commit: bool
    ) -> None:
        """Ends a transaction in a partition. The topic may have been made anew since it began."""
        if partition.shard not in self.topic(partition.topic).shard_names():
            raise ShardNotFound(partition.shard, within=f"topic {partition.topic!r}")
        await self._driver(partition.topic).append_marker(
            partition.shard, producer_id, epoch, is_commit=is_commit
        )

    async def read(
        self, name: str, partition: int, offset: int, max_bytes: int, *, committed: bool = False
    ) -> RawPage:
        shard = self.shard(name, partition)
        return await self._driver(name).read_raw(
            shard, offset, max_bytes=max_bytes, committed=committed
        )

    async def bounds(self, name: str, partition: int) -> tuple[int, int]:
        return await self._driver(name).bounds(self.shard(name, partition))

    async def stable_offset(self, name: str, partition: int) -> int:
        """Where the earliest transaction that has not ended begins, or the end."""
        return await self._driver(name).stable_offset(self.shard(name, partition))

    async def status(self, name: str, partition: int) -> ShardStatus:
        return await self._driver(name).status(self.shard(name, partition))

    async def offset_at(
        self, name: str, partition: int, timestamp_ms: int, *, committed: bool = False
    ) -> int | None:
        """First offset at least as young as the timestamp; None if there is none."""
        driver, shard = self._driver(name), self.shard(name, partition)
        # The end first: a record that comes between the two must not look like a find.
        _, end = await driver.bounds(shard)
        found = await driver.find_offset(shard, timestamp_ms, committed=committed)
        end = min(end, await driver.stable_offset(shard)) if committed else end
        return None if found >= end else found

    async def finds_cold(self, name: str, partition: int, timestamp_ms: int) -> bool:
        """Whether `offset_at` may have to wait for an object store."""
        return await self._driver(name).finds_cold(self.shard(name, partition), timestamp_ms)

    async def timestamp_of(self, name: str, partition: int, offset: int) -> int:
        """The record's timestamp, committed or not; -1 if it is gone."""
        page = await self.read(name, partition, offset, 1)
        columns = decode(page.batches, Selection(start_offset=offset, max_records=1))
        return int(columns.timestamps[0]) if len(columns) else -1

    async def delete_before(self, name: str, partition: int, offset: int) -> int:
        """Moves the start of a partition and returns it."""
        driver, shard = self._driver(name), self.shard(name, partition)
        await driver.delete_records_before(shard, offset)
        return (await driver.bounds(shard))[0]

    async def wait_for_append(
        self, partitions: Iterable[tuple[str, int, int]], timeout_s: float
    ) -> None:
        """Returns when one of (topic, partition, end offset) has grown beyond it, or in time."""
        loop = asyncio.get_running_loop()
        ticket: Ticket[None] = Ticket()
        watched: list[StoredPartition] = []
        timer = loop.call_later(timeout_s, ticket.settle_here)
        try:
            for name, index, end_offset in partitions:
                try:
                    stored = self.partition(name, index)
                    if not stored.driver.watch(stored.shard, end_offset, ticket):
                        return
                except FirnError:
                    continue  # It is gone, which the next read will say.
                watched.append(stored)
            await ticket
        finally:
            timer.cancel()
            for stored in watched:
                stored.driver.unwatch(stored.shard, ticket)

    def partition(self, name: str, index: int) -> StoredPartition:
        """Where a partition is kept; TopicNotFound or ShardNotFound."""
        topic = self.catalog.get(name)
        found = self._partitions.get((name, index))
        # A topic that was changed or made anew is another object.
        if found is None or found.topic is not topic:
            if len(self._partitions) >= _PARTITIONS_CACHED_MAX:
                self._partitions.clear()
            found = StoredPartition(topic, self._driver(name), self.shard(name, index))
            self._partitions[name, index] = found
        return found

    def _driver(self, name: str) -> EngineStorageAdapter:
        driver = self.manager.driver_of(name)
        if not isinstance(driver, EngineStorageAdapter):
            raise InvalidArgument(
                name, "is kept by an adapter that has no batches; Kafka clients cannot use it"
            )
        return driver
