"""StorageDriverManager: topic → storage type → driver, and which shard a record goes to."""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
import zlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from typing import Any, TypeAlias, TypeVar

from firnmq.adapter.api import StorageAdapter
from firnmq.adapter.catalog import Topic, TopicCatalog, TopicState
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.adapter.foreign import ForeignAdapter
from firnmq.adapter.offsets import OffsetManager
from firnmq.clock import Clock
from firnmq.config import TopicConfig, check_topic_name
from firnmq.disk import call_blocking, run_blocking
from firnmq.engines import Appended
from firnmq.engines.api import READ_BYTES_DEFAULT
from firnmq.errors import (
    AlreadyExists,
    CreationTimedOut,
    FirnError,
    InvalidArgument,
    OffsetOutOfRange,
    ShardNotFound,
    StorageTypeNotFound,
    TopicNotFound,
)
from firnmq.meta import CacheBehind
from firnmq.record import NewRecord

SHARDS_MAX = 100_000
ENTRY_POINT_GROUP = "firnmq.storage_adapters"

T = TypeVar("T")
AdapterFactory: TypeAlias = Callable[[], StorageAdapter]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where a request's records of one shard are: [base_offset, next_offset)."""

    shard: int
    base_offset: int
    next_offset: int


class _Creation:
    """A topic's creation under way in another thread."""

    is_abandoned = False
    """Whoever wanted it does not wait any more."""


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
        on_options: Callable[[Topic], None] = lambda topic: None,
    ) -> None:
        """`on_options` is told of every topic that was made or given other options."""
        self._on_options = on_options
        self.catalog = catalog
        self.offset_manager = offsets
        self._clock = clock
        self._factories = dict(drivers)
        self._built_in = frozenset(drivers)
        self._driver_list: dict[str, StorageAdapter] = {}
        self._lock = threading.Lock()
        """Guards the drivers' making and the set below."""
        self._under_way: set[str] = set()
        """Topics that are being made or deleted."""
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
        """Registers the topic, makes its shards, then shows it: a listed topic has them all.

        Each step must come up in the node's cache in time, else CreationTimedOut, and whatever was
        made is removed. So is a creation that was cancelled, unless it was through already.
        """
        check_topic_name(name)
        if not isinstance(shard_count, int) or not 1 <= shard_count <= SHARDS_MAX:
            raise InvalidArgument("shards", f"must be 1 to {SHARDS_MAX:,}, not {shard_count!r}")
        config.check_new()
        driver = self.driver(config.storage_type)
        topic = Topic(
            name=name,
            topic_id=uuid.uuid4().hex,
            shard_count=shard_count,
            config=config,
            created_ms=self._clock.now_ms(),
        )
        creation = _Creation()
        try:
            made = await _to_its_end(driver, lambda: self._create(topic, driver, creation))
        except asyncio.CancelledError:
            creation.is_abandoned = True
            raise
        self._on_options(made)
        return made

    async def _create(self, topic: Topic, driver: StorageAdapter, creation: _Creation) -> Topic:
        with self._working_on(topic.name, AlreadyExists("topic", topic.name)):
            await self._clear(topic.name)
            awaited = "it"
            try:
                await call_blocking(None, self.catalog.begin_creation, topic)
                awaited = "one of its shards"
                await self._make_shards(topic, driver, topic.shard_names())
                if creation.is_abandoned:
                    raise asyncio.CancelledError
                awaited = "it"
                return await call_blocking(None, self.catalog.become_ready, topic)
            except AlreadyExists:
                raise  # The topic that is there is another one.
            except CacheBehind as error:
                await self._remove_shards(topic, waits=False)
                raise CreationTimedOut(topic.name, awaited, error.timeout_s) from error
            except BaseException:
                await self._remove_shards(topic)
                raise

    async def _make_shards(
        self, topic: Topic, driver: StorageAdapter, names: Sequence[str]
    ) -> None:
        if isinstance(driver, EngineStorageAdapter):
            await driver.create_shards(names, topic.config, topic.topic_id)
            return
        for shard in names:
            try:
                await driver.create_shard(shard, topic.config)
            except AlreadyExists:
                continue  # Made before a crash that kept the topic from being updated.

    async def _clear(self, name: str) -> None:
        """Removes what is left of a topic of this name if nobody is at work on it any more."""
        left = await call_blocking(None, self.catalog.stored, name)
        if left is None or left.state is TopicState.READY:
            return
        if left.config.storage_type in self.storage_types():
            await self._remove_shards(left)

    @contextmanager
    def _working_on(self, name: str, refusal: FirnError) -> Iterator[None]:
        """Keeps others from making, deleting or growing a topic of this name meanwhile."""
        with self._lock:
            if name in self._under_way:
                raise refusal
            self._under_way.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._under_way.discard(name)

    async def delete_topic(self, name: str) -> None:
        """Hides the topic, then removes its shards; a crash in between is finished at open."""
        driver = self.driver_of(name)
        await _to_its_end(driver, lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        with self._working_on(name, TopicNotFound(name)):
            going = await call_blocking(None, self.catalog.begin_deletion, name)
            await self._remove_shards(going)

    async def grow_topic(self, name: str, shard_count: int) -> Topic:
        """Adds shards; existing ones keep their records."""
        driver = self.driver_of(name)
        return await _to_its_end(driver, lambda: self._grow(name, shard_count, driver))

    async def _grow(self, name: str, shard_count: int, driver: StorageAdapter) -> Topic:
        with self._working_on(name, TopicNotFound(name)):
            topic = self.catalog.get(name)
            if not topic.shard_count < shard_count <= SHARDS_MAX:
                least = topic.shard_count + 1
                raise InvalidArgument(
                    "shards", f"must be {least:,} to {SHARDS_MAX:,}, not {shard_count}"
                )
            new = [topic.shard_name(seq) for seq in range(topic.shard_count, shard_count)]
            await self._make_more_shards(topic, driver, new)
            return await call_blocking(
                None, partial(self.catalog.update, name, shard_count=shard_count)
            )

    async def _make_more_shards(
        self, topic: Topic, driver: StorageAdapter, new: Sequence[str]
    ) -> None:
        """Makes shards that the topic does not count yet; leaves none if one fails."""
        try:
            await self._make_shards(topic, driver, new)
        except FirnError as error:
            if isinstance(driver, EngineStorageAdapter):
                await driver.delete_shards(new)
            if not isinstance(error, AlreadyExists):
                raise
            await self._make_shards(topic, driver, new)  # An attempt that failed had left them.

    async def reconfigure_topic(self, name: str, config: TopicConfig) -> Topic:
        """Gives a topic other options: one change, which its shards follow."""
        await self.check_change(name, config)
        topic = self.catalog.get(name)
        driver = self.driver(topic.config.storage_type)
        assert isinstance(driver, EngineStorageAdapter)
        changed = await call_blocking(None, partial(self.catalog.update, name, config=config))
        for shard in changed.shard_names():
            await driver.reconfigure(shard, config)
        self._on_options(changed)
        return changed

    async def check_change(self, name: str, config: TopicConfig) -> None:
        """InvalidArgument if a topic cannot have these options instead of its own."""
        topic = self.catalog.get(name)
        driver = self.driver(topic.config.storage_type)
        if not isinstance(driver, EngineStorageAdapter):
            raise InvalidArgument(name, f"is kept by {config.storage_type}, which cannot change it")
        if config.expire_header != topic.config.expire_header:
            raise InvalidArgument("expire.header", "is fixed when a topic is made")
        config.check_new()
        before = topic.config
        if config.is_tiered < before.is_tiered or config.compacts > before.compacts:
            for shard in topic.shard_names():
                await driver.check_change(shard, config)

    async def finish_interrupted(self) -> list[str]:
        """Removes what a crash left of topics that were being made, deleted or given shards."""
        names = []
        for topic in self.catalog.unfinished():
            if topic.config.storage_type in self.storage_types():
                await self._remove_shards(topic)
                names.append(topic.name)
        shard_counts = {topic.topic_id: topic.shard_count for topic in self.catalog.topics()}
        for storage_type in self._built_in:
            driver = self.driver(storage_type)
            if isinstance(driver, EngineStorageAdapter):
                await driver.delete_shards_beyond(shard_counts)
        return names

    async def _remove_shards(self, topic: Topic, *, waits: bool = True) -> None:
        """What a crash or an error in here leaves behind is a topic that is being deleted."""
        if topic.state is not TopicState.DELETING:
            await call_blocking(None, self.catalog.begin_removal, topic)
        driver = self.driver(topic.config.storage_type)
        if isinstance(driver, EngineStorageAdapter):
            await driver.delete_shards_beyond({topic.topic_id: topic.shard_count})
            await driver.delete_shards(topic.shard_names())
        else:
            for shard in topic.shard_names():
                try:
                    await driver.delete_shard(shard)
                except ShardNotFound:
                    continue  # Never made, or removed before a crash.
        await call_blocking(None, self.offset_manager.forget_shards, topic.shard_names())
        await call_blocking(None, partial(self.catalog.forget, topic, waits=waits))

    # Writing ------------------------------------------------------------------------------------

    async def write(
        self, topic_name: str, records: Sequence[NewRecord], shard: int | None = None
    ) -> tuple[Written, ...]:
        """Stores records and says where they went.

        Without a shard given, records with a key go to the shard of their key, so that a key's
        records keep their order, and those without one all go to the next shard in turn.
        """
        topic = self.catalog.get(topic_name)
        try:
            return await self._write(topic, records, shard)
        except FirnError as error:
            topic.name_shard(error)
            raise

    async def _write(
        self, topic: Topic, records: Sequence[NewRecord], shard: int | None
    ) -> tuple[Written, ...]:
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

    async def bounds(self, topic: Topic, seq: int) -> tuple[int, int]:
        """Start and end offset of a shard, whatever keeps it."""
        shard = topic.shard_name(self.check_shard(topic, seq))
        driver = self.driver(topic.config.storage_type)
        if isinstance(driver, EngineStorageAdapter):
            return await driver.bounds(shard)
        try:
            page = await driver.read_by_offset(
                shard, 0, max_records=1, max_bytes=READ_BYTES_DEFAULT
            )
            return page.start_offset, page.end_offset
        except OffsetOutOfRange as error:  # It starts later, and says where.
            return error.start, error.end

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


async def _to_its_end(driver: StorageAdapter, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs what makes or removes shards of an engine in one thread, to its end even if the caller
    is cancelled: then nothing is under way behind the back of whoever comes next."""
    if isinstance(driver, EngineStorageAdapter):
        return await call_blocking(None, lambda: run_blocking(work()))
    return await work()


def shard_of_key(key: bytes, shard_count: int) -> int:
    """The shard of a key: its CRC-32, as librdkafka's consistent partitioner does it."""
    return zlib.crc32(key) % shard_count


def _written(seq: int, appended: Appended) -> Written:
    return Written(shard=seq, base_offset=appended.base_offset, next_offset=appended.next_offset)
