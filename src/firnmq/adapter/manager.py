"""StorageDriverManager: topic → storage type → driver, and which shard a record goes to."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import threading
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import entry_points
from typing import TypeAlias

from firnmq.adapter.api import Driver, StorageAdapter
from firnmq.adapter.catalog import Topic, TopicCatalog, TopicState, shown_shard
from firnmq.adapter.foreign import ForeignAdapter
from firnmq.adapter.offsets import OffsetManager
from firnmq.adapter.under_way import SHARDS_MAX, ClusterClaim, TopicsUnderWay
from firnmq.clock import Clock
from firnmq.config import TopicConfig, check_topic_name
from firnmq.disk import call_blocking, run_blocking
from firnmq.disk.waiting import is_blocking
from firnmq.engines import Appended, check_append
from firnmq.errors import (
    AlreadyExists,
    CreationTimedOut,
    FirnError,
    InvalidArgument,
    KeyNotFound,
    ShardNotFound,
    StorageFailed,
    StorageTypeNotFound,
    TimedOut,
    TooFewNodes,
    TopicNotFound,
)
from firnmq.eventlog import EventLogger
from firnmq.meta import CacheBehind
from firnmq.record import NewRecord, Record

_LOOK_S = 0.05
"""How often a creation looks whether the removal that it waits for has ended."""
ENTRY_POINT_GROUP = "firnmq.storage_adapters"

_log = EventLogger("topics")
AdapterFactory: TypeAlias = Callable[[], StorageAdapter]
DriverFactory: TypeAlias = Callable[[], Driver]
ConfigChange: TypeAlias = Callable[[TopicConfig], TopicConfig]
"""Makes a topic's next options of its present ones; InvalidArgument if it cannot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where a request's records of one shard are: [base_offset, next_offset)."""

    shard: int
    base_offset: int
    next_offset: int


def check_alone(config: TopicConfig) -> TopicConfig:
    """The options of a new topic of a node that is alone; TooFewNodes if they ask for others."""
    if config.is_replicated:
        raise TooFewNodes(config.replication_factor or 1, 1)
    return config


class _Creation:
    """A topic's creation under way in another thread."""

    is_abandoned = False
    """The caller does not wait for it any more."""


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
        drivers: Mapping[str, DriverFactory],
        on_options: Callable[[Topic], None] = lambda topic: None,
        *,
        shard_count_max: int = SHARDS_MAX,
        shared_shard_count_max: int = SHARDS_MAX,
        cluster_claim: ClusterClaim | None = None,
        with_replicas: Callable[[TopicConfig], TopicConfig] = check_alone,
    ) -> None:
        """`on_options` is told of every topic that was made or given other options.
        `cluster_claim` keeps other nodes from changing the same topic. `with_replicas` decides how
        many replicas a new topic has; TooFewNodes if there are fewer nodes."""
        self.with_replicas = with_replicas
        self._on_options = on_options
        self._shard_count_max = shard_count_max
        self.catalog = catalog
        self.offset_manager = offsets
        self._clock = clock
        self._built_in = dict(drivers)
        self._registered: dict[str, AdapterFactory] = {}
        self._driver_list: dict[str, Driver] = {}
        self._lock = threading.Lock()
        """Guards the drivers' making."""
        self._under_way = TopicsUnderWay(
            catalog, shard_count_max, shared_shard_count_max, cluster_claim
        )
        self._is_shared = cluster_claim is not None
        self._followed: dict[str, int] = {}
        """By topic id, the revision of the record whose options the topic's shards have."""
        self._followed_count = -1
        """The catalog's `change_count` when all shards had the options of their topics."""
        self._message_seq = itertools.count()

    # Drivers ------------------------------------------------------------------------------------

    def register(self, storage_type: str, factory: AdapterFactory) -> None:
        """Makes a storage type available to topics of this store."""
        if storage_type in self._built_in or storage_type in self._registered:
            raise AlreadyExists("storage type", storage_type)
        self._registered[storage_type] = factory

    def storage_types(self) -> list[str]:
        return sorted({*self._installed, *self._built_in, *self._registered})

    @cached_property
    def _installed(self) -> frozenset[str]:
        """Storage types of installed packages, looked up once: that reads many small files."""
        return frozenset(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))

    def driver(self, storage_type: str) -> Driver:
        """The storage type's driver, made on first use."""
        driver = self._driver_list.get(storage_type)
        if driver is not None:
            return driver
        with self._lock:
            if storage_type not in self._driver_list:
                self._driver_list[storage_type] = self._make_driver(storage_type)
            return self._driver_list[storage_type]

    def driver_of(self, topic_name: str) -> Driver:
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
        config = self.with_replicas(config)
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
            made = await driver.run_to_end(lambda: self._create(topic, driver, creation))
        except asyncio.CancelledError:
            creation.is_abandoned = True
            raise
        self._on_options(made)
        return made

    async def _create(self, topic: Topic, driver: Driver, creation: _Creation) -> Topic:
        with ExitStack() as claimed:
            await self._claim_new(topic, claimed)
            await self._clear(topic.name)
            awaited = "it"
            try:
                await call_blocking(None, self.catalog.begin_creation, topic)
                awaited = "one of its shards"
                await driver.create_shards(topic.shard_names(), topic.config, topic.topic_id)
                if creation.is_abandoned:
                    raise asyncio.CancelledError
                awaited = "it"
                return await call_blocking(None, self.catalog.become_ready, topic)
            except AlreadyExists:
                raise  # The topic that is there is another one.
            except CacheBehind as error:
                if await self._remove_shards(topic, waits=False) is not None:
                    text = f"topic {topic.name!r} is made, and this node has not learnt of it yet"
                    raise TimedOut(text) from error
                raise CreationTimedOut(topic.name, awaited, error.timeout_s) from error
            except TopicNotFound as error:
                await self._remove_shards(topic)
                text = f"another node has removed topic {topic.name!r} while it was made; try again"
                raise TimedOut(text) from error
            except BaseException as error:
                made = await self._remove_shards(topic)
                if made is not None and isinstance(error, FirnError):
                    return made  # Only the answer to the last transaction was lost.
                raise

    async def _claim_new(self, topic: Topic, claimed: ExitStack) -> None:
        """Claims the name of a new topic. AlreadyExists if there is one, or one is being made; the
        removal of one is waited for."""
        exists = AlreadyExists("topic", topic.name)
        end_ms = self._clock.steady_ms() + int(self.catalog.wait_s * 1000)
        while True:
            try:
                claim = self._under_way.claim(
                    topic.name,
                    topic.shard_count,
                    shares_files=topic.config.shares_files,
                    refusal=exists,
                )
                claimed.enter_context(claim)
                return
            except AlreadyExists:
                there = await call_blocking(None, self.catalog.stored, topic.name)
                if there is not None and there.state is not TopicState.DELETING:
                    raise
                if not is_blocking() or self._clock.steady_ms() >= end_ms:
                    text = f"another change of topic {topic.name!r} is under way; try again"
                    raise TimedOut(text) from None
            self.catalog.wait_for_change(_LOOK_S)

    def check_room(
        self, name: str, shard_count: int, config: TopicConfig, planned_count: int = 0
    ) -> None:
        """TooManyShards if the node cannot have a topic of this name with so many shards beside
        `planned_count` others that are planned."""
        self._under_way.check_room(
            name, shard_count, planned_count, shares_files=config.shares_files
        )

    async def _clear(self, name: str) -> None:
        """Removes what an interrupted creation or deletion left of a topic. It is claimed."""
        left = await call_blocking(None, self.catalog.stored, name)
        if left is None or left.state is TopicState.READY:
            return
        if left.config.storage_type in self.storage_types():
            await self._remove_shards(left)

    async def delete_topic(self, name: str) -> None:
        """Hides the topic, then removes its shards; a crash in between is finished at open."""
        driver = self.driver_of(name)
        await driver.run_to_end(lambda: self._delete(name))

    async def _delete(self, name: str) -> None:
        with self._under_way.claim(name):
            going = await call_blocking(None, self.catalog.begin_deletion, name)
            try:
                await self._remove_shards(going)
            except StorageFailed as error:
                # It is deleted: no caller can see it any more, and it is not coming back.
                self._under_way.note_unfinished(name, going.shard_count)
                _log.warning("deletion_unfinished", topic=name, error=str(error))

    async def grow_topic(self, name: str, shard_count: int) -> Topic:
        """Adds shards; existing ones keep their records."""
        driver = self.driver_of(name)
        return await driver.run_to_end(lambda: self._grow(name, shard_count, driver))

    async def _grow(self, name: str, shard_count: int, driver: Driver) -> Topic:
        shares_files = self.catalog.get(name).config.shares_files
        with self._under_way.claim(name, shard_count, shares_files=shares_files):
            topic = await call_blocking(None, self.catalog.stored_ready, name)
            if not topic.shard_count < shard_count <= SHARDS_MAX:
                least = topic.shard_count + 1
                raise InvalidArgument(
                    "shards", f"must be {least:,} to {SHARDS_MAX:,}, not {shard_count}"
                )
            new = [topic.shard_name(seq) for seq in range(topic.shard_count, shard_count)]
            await self._make_more_shards(topic, driver, new)
            while True:
                after = dataclasses.replace(topic, shard_count=shard_count)
                grown = await call_blocking(None, self.catalog.swap, topic, after)
                if grown is not None:
                    break
                # Another call has changed the topic's options: the new shards follow.
                topic = await call_blocking(None, self.catalog.stored_ready, name)
                if driver.logs is not None:
                    await driver.logs.reconfigure(new, topic.config, topic.revision)
            await call_blocking(None, self.catalog.wait_for, grown)
            return grown

    async def _make_more_shards(self, topic: Topic, driver: Driver, new: Sequence[str]) -> None:
        """Makes shards that the topic does not count yet; leaves none if one fails."""
        try:
            await driver.create_shards(new, topic.config, topic.topic_id)
        except FirnError as error:
            await driver.delete_shards(new)
            if not isinstance(error, AlreadyExists):
                raise
            # An attempt that failed had left them.
            await driver.create_shards(new, topic.config, topic.topic_id)

    async def reconfigure_topic(self, name: str, change: TopicConfig | ConfigChange) -> Topic:
        """Gives a topic other options: one change, which its shards follow.

        `change` makes the new options of the stored ones, again whenever another change of the
        topic came first: no change that was acknowledged is lost.
        """
        driver = self.driver_of(name)
        changed = await driver.run_to_end(lambda: self._reconfigure(name, change))
        self._on_options(changed)
        return changed

    async def _reconfigure(self, name: str, change: TopicConfig | ConfigChange) -> Topic:
        while True:
            topic = await call_blocking(None, self.catalog.stored_ready, name)
            config = await self._checked_change(topic, change)
            after = dataclasses.replace(topic, config=config)
            changed = await call_blocking(None, self.catalog.swap, topic, after)
            if changed is not None:
                break
        await self._follow(changed)
        await call_blocking(None, self.catalog.wait_for, changed)
        return changed

    async def _follow(self, topic: Topic, *, only_here: bool = False) -> None:
        """Gives a topic's shards the options of its record; `only_here`: those that this node
        leads."""
        logs = self.driver(topic.config.storage_type).logs
        assert logs is not None, "checked before the change"
        shards = topic.shard_names()
        if only_here:
            shards = [shard for shard in shards if logs.leads(shard)]
        try:
            await logs.reconfigure(shards, topic.config, topic.revision)
        except ShardNotFound:
            raise TopicNotFound(topic.name) from None  # Deleted since.
        self._followed[topic.topic_id] = topic.revision

    def follow_topics(self) -> None:
        """Gives shards the options of their topics where a change was interrupted, or where a
        failed commit left open whether the change was made."""
        change_count = self.catalog.change_count
        if change_count == self._followed_count:
            return
        topics = self.catalog.topics()
        for topic in topics:
            has_engine = topic.config.storage_type in self._built_in
            if has_engine and self._followed.get(topic.topic_id) != topic.revision:
                with suppress(TopicNotFound):
                    run_blocking(self._follow(topic, only_here=self._is_shared))
        ids = {topic.topic_id for topic in topics}
        for topic_id in self._followed.keys() - ids:
            self._followed.pop(topic_id, None)
        self._followed_count = change_count

    async def check_change(self, name: str, change: TopicConfig | ConfigChange) -> None:
        """InvalidArgument if a topic cannot have these options instead of its own."""
        await self._checked_change(self.catalog.get(name), change)

    async def _checked_change(
        self, topic: Topic, change: TopicConfig | ConfigChange
    ) -> TopicConfig:
        before = topic.config
        config = change if isinstance(change, TopicConfig) else change(before)
        logs = self.driver(before.storage_type).logs
        if logs is None:
            kept_by = f"is kept by {config.storage_type}, which cannot change it"
            raise InvalidArgument(topic.name, kept_by)
        if config.expire_header != before.expire_header:
            raise InvalidArgument("expire.header", "is fixed when a topic is made")
        if config.replication_factor is None:  # Left as it is by a change of all options.
            config = dataclasses.replace(config, replication_factor=before.replication_factor)
        if config.replication_factor != before.replication_factor:
            raise InvalidArgument("replication.factor", "is fixed when a topic is made")
        config.check_new()
        if config.shares_files is not before.shares_files:
            self.check_room(topic.name, topic.shard_count, config)
        if config.is_tiered < before.is_tiered or config.compacts > before.compacts:
            for shard in topic.shard_names():
                await logs.check_change(shard, config)
        return config

    async def finish_interrupted(self) -> list[str]:
        """Removes what a crash left of topics that were being made, deleted or given shards."""
        names = []
        for topic in self.catalog.unfinished():
            if topic.config.storage_type in self.storage_types():
                await self._remove_shards(topic)
                names.append(topic.name)
        shard_counts = {topic.topic_id: topic.shard_count for topic in self.catalog.topics()}
        for storage_type in self._built_in:
            await self.driver(storage_type).delete_shards_beyond(shard_counts)
        return names

    async def clean_up(self) -> None:
        """Removes what failed changes of topics have left behind. A topic's record decides: what it
        does not count is removed, and all of a topic that is not ready."""
        unfinished = self._under_way.unfinished
        if self._is_shared:  # What other nodes have left behind: a topic in work is claimed.
            for topic in self.catalog.unfinished():
                unfinished.setdefault(topic.name, 0)
        for name, shard_count in list(unfinished.items()):
            try:
                with self._under_way.claim(name, refusal=AlreadyExists("topic", name)):
                    await self._clear(name)
                    await self._remove_uncounted(name, shard_count)
                    unfinished.pop(name, None)
            except AlreadyExists:
                continue  # Another change of it is under way.
            except FirnError as error:
                _log.warning("cleanup_unfinished", topic=name, error=str(error))

    async def _remove_uncounted(self, name: str, shard_count: int) -> None:
        """Removes shards of a growth that failed before the topic counted them."""
        topic = await call_blocking(None, self.catalog.stored, name)
        if topic is not None and shard_count > topic.shard_count:
            driver = self.driver(topic.config.storage_type)
            seqs = range(topic.shard_count, shard_count)
            await driver.delete_shards([topic.shard_name(seq) for seq in seqs])

    async def _remove_shards(self, topic: Topic, *, waits: bool = True) -> Topic | None:
        """What a crash or an error in here leaves behind is a topic that is being deleted.

        A topic that is ready after all stays, and is returned, where other nodes share it: they
        may have stored records in it.
        """
        if topic.state is not TopicState.DELETING:
            begin = partial(self.catalog.begin_removal, topic, unless_ready=self._is_shared)
            ready = await call_blocking(None, begin)
            if ready is not None:
                return ready
        driver = self.driver(topic.config.storage_type)
        await driver.delete_shards_beyond({topic.topic_id: topic.shard_count})
        await driver.delete_shards(topic.shard_names())
        await call_blocking(None, self.offset_manager.forget_shards, topic.shard_names())
        await call_blocking(None, partial(self.catalog.forget, topic, waits=waits))
        return None

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
        if len(by_shard) > 1 and topic.config.storage_type in self._built_in:
            for part in by_shard.values():  # A refused request has stored nothing in any shard.
                check_append(part, topic.config, self._clock.now_ms())
        written = []
        for seq, part in by_shard.items():
            written.append(_written(seq, await driver.batch_write(topic.shard_name(seq), part)))
        return tuple(written)

    def check_shard(self, topic: Topic, seq: int) -> int:
        if isinstance(seq, bool) or not isinstance(seq, int) or not 0 <= seq < topic.shard_count:
            raise ShardNotFound(str(seq), within=f"topic {topic.name!r}")
        return seq

    async def bounds(self, topic: Topic, seq: int) -> tuple[int, int]:
        """Start and end offset of a shard, whatever keeps it."""
        shard = topic.shard_name(self.check_shard(topic, seq))
        return await self.driver(topic.config.storage_type).bounds(shard)

    # Reading ------------------------------------------------------------------------------------

    async def read_by_key(
        self, topic: Topic, key: bytes, shard: int | None = None
    ) -> tuple[int, Record]:
        """The newest live record of a key, and its shard.

        All shards are asked unless one is named: each client has its own way to choose a key's
        shard. If several shards have records of the key, the greatest timestamp is the newest.
        """
        chosen = range(topic.shard_count) if shard is None else (self.check_shard(topic, shard),)
        seqs = {topic.shard_name(seq): seq for seq in chosen}
        driver = self.driver(topic.config.storage_type)
        pages = await driver.read_by_key_among(list(seqs), key)
        found = [(seqs[name], page.records()[0]) for name, page in pages.items() if len(page)]
        if not found:
            where = f"topic {topic.name!r}" if shard is None else shown_shard(topic.name, shard)
            raise KeyNotFound(key.decode("utf-8", "backslashreplace"), within=where)
        return max(found, key=lambda each: (each[1].timestamp_ms, each[1].offset, -each[0]))

    def close(self) -> None:
        for driver in self._driver_list.values():
            if isinstance(driver, ForeignAdapter):
                driver.close()

    def _make_driver(self, storage_type: str) -> Driver:
        if storage_type in self._built_in:
            return self._built_in[storage_type]()
        factory = self._registered.get(storage_type)
        if factory is None:
            for entry in entry_points(group=ENTRY_POINT_GROUP, name=storage_type):
                factory = entry.load()
                break
        if factory is None:
            known = ", ".join(self.storage_types())
            raise StorageTypeNotFound(storage_type, within=f"this store, which has {known}")
        return ForeignAdapter(storage_type, factory())


def shard_of_key(key: bytes, shard_count: int) -> int:
    """The shard of a key: its CRC-32, as librdkafka's consistent partitioner does it."""
    return zlib.crc32(key) % shard_count


def _written(seq: int, appended: Appended) -> Written:
    return Written(shard=seq, base_offset=appended.base_offset, next_offset=appended.next_offset)
