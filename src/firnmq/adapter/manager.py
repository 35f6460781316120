"""StorageDriverManager: topic → storage type → driver, and which shard a record goes to."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TypeAlias

from firnmq.adapter.api import StorageAdapter
from firnmq.adapter.catalog import Topic, TopicCatalog
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.adapter.foreign import ForeignAdapter
from firnmq.adapter.offsets import OffsetManager
from firnmq.clock import Clock
from firnmq.config import TopicConfig, check_topic_name
from firnmq.engines import Appended
from firnmq.errors import (
    AlreadyExists,
    InvalidArgument,
    ShardNotFound,
    StorageTypeNotFound,
)
from firnmq.record import NewRecord

SHARDS_MAX = 100_000
ENTRY_POINT_GROUP = "firnmq.storage_adapters"

AdapterFactory: TypeAlias = Callable[[], StorageAdapter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where a request's records of one shard are: [base_offset, next_offset)."""

    shard: int
    base_offset: int
    next_offset: int


class StorageDriverManager:
    """What brokers and embedded users call with a topic's name. Safe with threads.

    Drivers are made when a topic first needs them. A storage type that is not built in is looked
    up among the registered adapters, then among the entry points of installed packages.
    """

    def __init__(
        self,
        catalog: TopicCatalog,
        offsets: OffsetManager,
        clock: Clock,
        drivers: Mapping[str, AdapterFactory],
    ) -> None:
        self.catalog = catalog
        self.offset_manager = offsets
        self._clock = clock
        self._factories = dict(drivers)
        self._built_in = frozenset(drivers)
        self._driver_list: dict[str, StorageAdapter] = {}
        self._lock = threading.Lock()
        self._message_seq = itertools.count()

    # Drivers ------------------------------------------------------------------------------------

    def register(self, storage_type: str, factory: AdapterFactory) -> None:
        """Makes a storage type available to topics of this store."""
        if storage_type in self._factories:
            raise AlreadyExists("storage type", storage_type)
        self._factories[storage_type] = factory

    def storage_types(self) -> list[str]:
        installed = {entry.name for entry in entry_points(group=ENTRY_POINT_GROUP)}
        return sorted(installed | set(self._factories))

    def driver(self, storage_type: str) -> StorageAdapter:
        """The storage type's driver, made on first use."""
        driver = self._driver_list.get(storage_type)
        if driver is not None:
            return driver
        with self._lock:
            if storage_type not in self._driver_list:
                self._driver_list[storage_type] = self._make_driver(storage_type)
            return self._driver_list[storage_type]

    def driver_of(self, topic_name: str) -> StorageAdapter:
        return self.driver(self.catalog.get(topic_name).config.storage_type)

    # Topics -------------------------------------------------------------------------------------

    async def create_topic(self, name: str, shard_count: int, config: TopicConfig) -> Topic:
        """Registers the topic, makes its shards, then shows it: a listed topic has them all."""
        check_topic_name(name)
        if not isinstance(shard_count, int) or not 1 <= shard_count <= SHARDS_MAX:
            raise InvalidArgument("shards", f"must be 1 to {SHARDS_MAX:,}, not {shard_count!r}")
        driver = self.driver(config.storage_type)
        topic = Topic(
            name=name,
            topic_id=uuid.uuid4().hex,
            shard_count=shard_count,
            config=config,
            created_ms=self._clock.now_ms(),
        )
        self.catalog.begin_creation(topic)
        try:
            for shard in topic.shard_names():
                await driver.create_shard(shard, config)
        except Exception:
            await self._remove_shards(topic)
            raise  # A cancelled creation is cleaned up at the next open: a shard may be under way.
        return self.catalog.become_ready(topic)

    async def delete_topic(self, name: str) -> None:
        """Hides the topic, then removes its shards; a crash in between is finished at open."""
        await self._remove_shards(self.catalog.begin_deletion(name))

    async def grow_topic(self, name: str, shard_count: int) -> Topic:
        """Adds shards; existing ones keep their records."""
        topic = self.catalog.get(name)
        if not topic.shard_count < shard_count <= SHARDS_MAX:
            raise InvalidArgument(
                "shards", f"must be {topic.shard_count + 1:,} to {SHARDS_MAX:,}, not {shard_count}"
            )
        driver = self.driver(topic.config.storage_type)
        for seq in range(topic.shard_count, shard_count):
            try:
                await driver.create_shard(topic.shard_name(seq), topic.config)
            except AlreadyExists:
                continue  # Made before a crash that kept the topic from being updated.
        grown = dataclasses.replace(topic, shard_count=shard_count)
        self.catalog.update(grown)
        return grown

    async def reconfigure_topic(self, name: str, config: TopicConfig) -> Topic:
        """Gives a topic other options; a crash in mid-change leaves some shards with the old."""
        topic = self.catalog.get(name)
        driver = self.driver(topic.config.storage_type)
        if not isinstance(driver, EngineStorageAdapter):
            raise InvalidArgument(name, f"is kept by {config.storage_type}, which cannot change it")
        changed = dataclasses.replace(topic, config=config)
        self.catalog.update(changed)
        for shard in topic.shard_names():
            await driver.reconfigure(shard, config)
        return changed

    async def finish_interrupted(self) -> list[str]:
        """Removes what a crash left of topics that were being made or deleted."""
        names = []
        for topic in self.catalog.unfinished():
            if topic.config.storage_type in self.storage_types():
                await self._remove_shards(topic)
                names.append(topic.name)
        return names

    async def _remove_shards(self, topic: Topic) -> None:
        driver = self.driver(topic.config.storage_type)
        for shard in topic.shard_names():
            try:
                await driver.delete_shard(shard)
            except ShardNotFound:
                continue  # Never made, or removed before a crash.
        self.offset_manager.forget_shards(topic.shard_names())
        self.catalog.forget(topic)

    # Writing ------------------------------------------------------------------------------------

    async def write(
        self, topic_name: str, records: Sequence[NewRecord], shard: int | None = None
    ) -> tuple[Written, ...]:
        """Stores records and says where they went.

        Without a shard given, records with a key go to the shard of their key, so that a key's
        records keep their order, and those without one all go to the next shard in turn.
        """
        topic = self.catalog.get(topic_name)
        driver = self.driver(topic.config.storage_type)
        if shard is not None or topic.shard_count == 1:
            seq = self.check_shard(topic, shard or 0)
            return (_written(seq, await driver.batch_write(topic.shard_name(seq), records)),)
        by_shard: dict[int, list[NewRecord]] = {}
        turn = next(self._message_seq) % topic.shard_count
        for record in records:
            key = record.key
            seq = turn if key is None else shard_of_key(key, topic.shard_count)
            by_shard.setdefault(seq, []).append(record)
        written = []
        for seq, part in by_shard.items():
            written.append(_written(seq, await driver.batch_write(topic.shard_name(seq), part)))
        return tuple(written)

    def shard_of_key(self, topic: Topic, key: bytes) -> int:
        return shard_of_key(key, topic.shard_count)

    def check_shard(self, topic: Topic, seq: int) -> int:
        if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < topic.shard_count:
            raise ShardNotFound(str(seq), within=f"topic {topic.name!r}")
        return seq

    def close(self) -> None:
        for driver in self._driver_list.values():
            if isinstance(driver, ForeignAdapter):
                driver.close()

    def _make_driver(self, storage_type: str) -> StorageAdapter:
        factory = self._factories.get(storage_type)
        if factory is None:
            for entry in entry_points(group=ENTRY_POINT_GROUP, name=storage_type):
                factory = entry.load()
                break
        if factory is None:
            known = ", ".join(self.storage_types())
            raise StorageTypeNotFound(storage_type, within=f"this store, which has {known}")
        driver = factory()
        return driver if storage_type in self._built_in else ForeignAdapter(driver)


def shard_of_key(key: bytes, shard_count: int) -> int:
    """The shard of a key: its CRC-32, as librdkafka's consistent partitioner does it."""
    return zlib.crc32(key) % shard_count


def _written(seq: int, appended: Appended) -> Written:
    return Written(shard=seq, base_offset=appended.base_offset, next_offset=appended.next_offset)
