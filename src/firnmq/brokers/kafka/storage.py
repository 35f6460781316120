"""Topics and partitions as Kafka clients name them, on top of the storage adapter."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from firnmq.adapter import BatchStorage, LogAdmin, StorageDriverManager, Topic, wait_for_append
from firnmq.adapter.forwarding import ClusterDriver
from firnmq.brokers.kafka.protocol import ZERO_UUID, ErrorCode, TopicIdNotFound
from firnmq.brokers.kafka.transaction_gate import TransactionGate
from firnmq.brokers.kafka.transactions import TransactionPartition
from firnmq.disk import FileRange
from firnmq.disk.files import Buffer
from firnmq.engines import Acks, Appended, ProducerStatus, ShardStatus, StoredPage
from firnmq.errors import FirnError, InvalidArgument, ShardNotFound, TopicNotFound
from firnmq.record import Selection, decode

_UNKNOWN = "?"
"""Before an id, in place of a name. Names of topics have no such character."""
_PARTITIONS_CACHED_MAX = 20_000


class StoredPartition(NamedTuple):
    """Where a partition is kept."""

    topic: Topic
    driver: BatchStorage
    shard: str


class KafkaStorage:
    """What the handlers do with storage. "Partition" is a word of this package only."""

    def __init__(self, manager: StorageDriverManager) -> None:
        self.manager = manager
        self.catalog = manager.catalog
        self._partitions: dict[tuple[str, int], StoredPartition] = {}
        """What was looked up before: a client asks for the same partitions again and again."""
        self.gate: TransactionGate | None = None
        """How transactions reach shards, in a cluster."""

    def topic(self, name: str) -> Topic:
        try:
            return self.catalog.get(name)
        except TopicNotFound:
            if name.startswith(_UNKNOWN):
                raise TopicIdNotFound(name.removeprefix(_UNKNOWN)) from None
            raise

    def named(self, name: str, topic_id: UUID) -> str:
        """The name of the topic that a request gives by name or by id. Of an id that no topic has,
        a name that none can have: later its use raises TopicIdNotFound."""
        if name or topic_id == ZERO_UUID:
            return name
        topic = self.catalog.with_id(topic_id.hex)
        return f"{_UNKNOWN}{topic_id.hex}" if topic is None else topic.name

    def id_of(self, name: str) -> UUID:
        """The id of a topic; zeros if there is no topic of this name, or if it has none."""
        topic = self.find(name)
        return UUID(topic.topic_id) if topic is not None and topic.topic_id else ZERO_UUID

    def find(self, name: str) -> Topic | None:
        try:
            return self.catalog.get(name)
        except TopicNotFound:
            return None

    def shard(self, name: str, partition: int) -> str:
        """The shard of a partition; TopicNotFound or ShardNotFound."""
        topic = self.topic(name)
        if not 0 <= partition < topic.shard_count:
            raise ShardNotFound(str(partition), within=f"topic {name!r}")
        return topic.shard_name(partition)

    def leader_epoch(self, name: str, partition: int) -> int:
        """Of the partition's present leader; TopicNotFound or ShardNotFound."""
        stored = self.partition(name, partition)
        return leader_epoch(stored.driver, stored.shard)

    async def submit(
        self, name: str, partition: int, batch: Buffer, acks: Acks, deadline_s: float
    ) -> Awaitable[Appended]:
        """Queues a batch with its shard; the result waits until it is acknowledged."""
        shard = self.shard(name, partition)
        return await self._driver(name).submit(shard, batch, acks, deadline_s)

    async def submit_transactional(
        self,
        name: str,
        partition: int,
        batch: Buffer,
        acks: Acks,
        deadline_s: float,
        transactional_id: str | None,
        *,
        adds: bool,
    ) -> Awaitable[Appended | ErrorCode] | ErrorCode:
        """Queues a batch of a transaction with its shard's leader, in a cluster; `adds`: the
        partition may become part of the transaction by it."""
        assert self.gate is not None, "a node that is alone judges by itself"
        driver, shard = self._driver(name), self.shard(name, partition)
        if not isinstance(driver, ClusterDriver):
            raise InvalidArgument(name, "is kept by an adapter, which takes no transactions")
        return await self.gate.submit(
            driver, shard, batch, acks, deadline_s, transactional_id, name if adds else ""
        )

    def led_driver(self, shard: str) -> ClusterDriver | None:
        """The driver of a shard in a cluster; None if its topic is not known."""
        topic = self.catalog.registered(shard.rpartition("_")[0])
        driver = None if topic is None else self.manager.driver(topic.config.storage_type)
        return driver if isinstance(driver, ClusterDriver) else None

    def transaction_partition(self, name: str, partition: int) -> TransactionPartition:
        """A partition that can be part of a transaction."""
        self._driver(name)
        return TransactionPartition(topic=name, shard=self.shard(name, partition))

    async def write_marker(
        self, partition: TransactionPartition, producer_id: int, epoch: int, *, is_commit: bool
    ) -> None:
        """Ends a transaction in a partition. The topic may have been recreated since it began."""
        if partition.shard not in self.topic(partition.topic).shard_names():
            raise ShardNotFound(partition.shard, within=f"topic {partition.topic!r}")
        driver = self._driver(partition.topic)
        if self.gate is not None and isinstance(driver, ClusterDriver):
            await self.gate.write_marker(
                driver, partition.shard, producer_id, epoch, is_commit=is_commit
            )
            return
        await driver.append_marker(partition.shard, producer_id, epoch, is_commit=is_commit)

    async def bounds(self, name: str, partition: int) -> tuple[int, int]:
        return await self._driver(name).bounds(self.shard(name, partition))

    async def log_start(self, name: str, partition: int) -> int:
        """The start offset for the answer to an append; -1, unknown, if another node has it."""
        shard, driver = self.shard(name, partition), self._driver(name)
        if isinstance(driver, ClusterDriver) and not driver.leads(shard):
            return -1
        return (await driver.bounds(shard))[0]

    async def stable_offset(self, name: str, partition: int) -> int:
        """Where the earliest transaction that has not ended begins, or the end."""
        return await self._driver(name).stable_offset(self.shard(name, partition))

    async def status(self, name: str, partition: int) -> ShardStatus:
        """What the partition's log holds; InvalidArgument if another system keeps it."""
        return await self._logs(name).status(self.shard(name, partition))

    async def producers(self, name: str, partition: int) -> list[ProducerStatus]:
        """The producers that the partition remembers."""
        return await self._logs(name).producers(self.shard(name, partition))

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

    async def newest(self, name: str, partition: int, *, committed: bool) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the highest timestamp; None without records."""
        return await self._driver(name).find_newest(
            self.shard(name, partition), committed=committed
        )

    async def finds_cold(self, name: str, partition: int, timestamp_ms: int) -> bool:
        """Whether `offset_at` may have to wait for an object store."""
        driver, shard = self._driver(name), self.shard(name, partition)
        return await driver.in_reader(lambda: driver.is_cold(shard, timestamp_ms=timestamp_ms))

    async def timestamp_of(self, name: str, partition: int, offset: int) -> int:
        """The record's timestamp, committed or not; -1 if it is gone."""
        driver, shard = self._driver(name), self.shard(name, partition)

        def read() -> StoredPage:
            return driver.read_stored(shard, offset, max_bytes=1, committed=False, ranges=False)

        is_cold = await driver.in_reader(lambda: driver.is_cold(shard, offset=offset))
        page = await driver.in_reader(read, cold=is_cold)
        batches = [each for each in page.contents if not isinstance(each, FileRange)]
        columns = decode(batches, Selection(start_offset=offset, max_records=1))
        return int(columns.timestamps[0]) if len(columns) else -1

    async def delete_before(self, name: str, partition: int, offset: int) -> int:
        """Moves the start of a partition and returns it."""
        shard = self.shard(name, partition)
        await self._logs(name).delete_records_before(shard, offset)
        return (await self._driver(name).bounds(shard))[0]

    async def wait_for_append(
        self, partitions: Iterable[tuple[str, int, int]], timeout_s: float
    ) -> None:
        """Returns when one of (topic, partition, end offset) has grown beyond it, or in time."""
        await wait_for_append(self._places(partitions), timeout_s)

    def _places(
        self, partitions: Iterable[tuple[str, int, int]]
    ) -> Iterator[tuple[BatchStorage, str, int]]:
        for name, index, end_offset in partitions:
            try:
                stored = self.partition(name, index)
            except FirnError:
                continue  # It is gone, which the next read will say.
            yield stored.driver, stored.shard, end_offset

    def partition(self, name: str, index: int) -> StoredPartition:
        """Where a partition is kept; TopicNotFound or ShardNotFound."""
        topic = self.topic(name)
        found = self._partitions.get((name, index))
        # A topic that was changed or recreated is another object.
        if found is None or found.topic is not topic:
            if len(self._partitions) >= _PARTITIONS_CACHED_MAX:
                self._partitions.clear()
            found = StoredPartition(topic, self._driver(name), self.shard(name, index))
            self._partitions[name, index] = found
        return found

    def _driver(self, name: str) -> BatchStorage:
        batches = self.manager.driver_of(name).batches
        if batches is None:
            raise InvalidArgument(
                name, "is kept by an adapter that has no batches; Kafka clients cannot use it"
            )
        return batches

    def _logs(self, name: str) -> LogAdmin:
        logs = self.manager.driver_of(name).logs
        if logs is None:
            raise InvalidArgument(name, "is kept by an adapter of your own, which cannot do this")
        return logs


def leader_epoch(driver: BatchStorage, shard: str) -> int:
    """Of a shard's present leader, as this node knows it. A node that is alone leads for ever."""
    return driver.leader_epoch(shard) if isinstance(driver, ClusterDriver) else 0
