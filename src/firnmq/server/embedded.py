"""The embedded use: a store in the user's own process, for threads and for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from firnmq.adapter import AdapterFactory, Driver, LogAdmin, Topic, Written
from firnmq.clock import Clock
from firnmq.config import StoreConfig, TieringConfig, TopicConfig
from firnmq.disk import call_blocking, run_blocking
from firnmq.engines import AdapterOffsetStrategy, Page, ShardStatus
from firnmq.engines.api import READ_BYTES_DEFAULT, READ_RECORDS_DEFAULT
from firnmq.errors import (
    AlreadyExists,
    FirnError,
    InvalidArgument,
    OffsetOutOfRange,
    TopicNotFound,
)
from firnmq.record import NewRecord, Record
from firnmq.server.local import LocalStore
from firnmq.tiering.move.status import TierStatus

Appendable: TypeAlias = NewRecord | bytes | str
"""What can be appended: a record, or just its value."""


def open_store(
    path: str | PathLike[str],
    *,
    config: StoreConfig | None = None,
    adapters: Mapping[str, AdapterFactory] | None = None,
    cache_offsets: bool = False,
    clock: Clock | None = None,
    tiering: TieringConfig | str | None = None,
) -> Store:
    """Opens the data directory, making it if need be, for use from threads.

    One process at a time: a second one gets DirectoryInUse. `adapters` adds storage types of
    your own; `cache_offsets` trades the sync of each group commit for latency. `tiering` is where
    sealed segments of topics with `tiering=on` go: a URL, or all settings.
    """
    local = LocalStore(
        Path(path),
        config=config,
        adapters=adapters,
        cache_offsets=cache_offsets,
        clock=clock,
        tiering=_tiering(tiering),
    )
    return Store(local)


async def open_async(
    path: str | PathLike[str],
    *,
    config: StoreConfig | None = None,
    adapters: Mapping[str, AdapterFactory] | None = None,
    cache_offsets: bool = False,
    clock: Clock | None = None,
    tiering: TieringConfig | str | None = None,
) -> AsyncStore:
    """The same for asyncio: `async with await firnmq.open_async(path) as store`."""

    def opened() -> LocalStore:
        return LocalStore(
            Path(path),
            config=config,
            adapters=adapters,
            cache_offsets=cache_offsets,
            clock=clock,
            tiering=_tiering(tiering),
        )

    return AsyncStore(await call_blocking(None, opened))


class AsyncStore:
    """A store for asyncio. Use it from one event loop at a time."""

    def __init__(self, local: LocalStore) -> None:
        self.local = local

    async def create_topic(
        self,
        name: str,
        *,
        shards: int = 1,
        options: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> AsyncTopicHandle:
        """Creates a topic; options are dotted, such as {"storage.type": "EngineMemory"}.

        A topic of this name raises AlreadyExists. With `exist_ok` it is returned as it is, whatever
        its shards and options are.
        """
        config = TopicConfig.from_options(options or {})
        try:
            topic = await self.local.manager.create_topic(name, shards, config)
        except AlreadyExists as error:
            if not exist_ok:
                raise
            try:
                return self.topic(name)
            except TopicNotFound:
                raise error from None  # Another caller is creating it at this moment.
        return AsyncTopicHandle(self.local, topic)

    def topic(self, name: str) -> AsyncTopicHandle:
        catalog = self.local.catalog
        try:
            return AsyncTopicHandle(self.local, catalog.get(name))
        except TopicNotFound as error:
            catalog.explain(error)
            raise

    def topics(self) -> list[Topic]:
        return self.local.catalog.topics()

    async def delete_topic(self, name: str) -> None:
        await self.local.manager.delete_topic(name)

    async def upload(self, topic: str | None = None, *, timeout_s: float = 600.0) -> None:
        """Copies what is sealed, of one topic or of all, to the object store now."""
        mover = self.local.mover
        await call_blocking(None, partial(mover.upload_now, topic, timeout_s=timeout_s))

    async def tier_status(self) -> TierStatus:
        """What is in the object store, what waits and why."""
        return await call_blocking(None, self.local.mover.status)

    async def close(self) -> None:
        await call_blocking(None, self.local.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class AsyncTopicHandle:
    """One topic's records, for asyncio."""

    def __init__(self, local: LocalStore, topic: Topic) -> None:
        self._local = local
        self.topic = topic

    @property
    def name(self) -> str:
        return self.topic.name

    async def append(
        self, records: Appendable | Iterable[Appendable], *, shard: int | None = None
    ) -> tuple[Written, ...]:
        """Stores records and returns where they are, once they are as durable as the topic asks.

        The records of one shard are stored all or none; LimitExceeded if they are more than a batch
        may hold (`max.batch.bytes`).
        """
        return await self._local.manager.write(self.name, _records(records), shard)

    async def read(
        self,
        offset: int | None = None,
        *,
        shard: int = 0,
        max_records: int = READ_RECORDS_DEFAULT,
        max_bytes: int = READ_BYTES_DEFAULT,
    ) -> Page:
        """Records from an offset on, or from the first there is; go on at `page.next_offset`."""
        with self._on(shard) as name:
            try:
                return await self._driver.read_by_offset(
                    name, offset or 0, max_records=max_records, max_bytes=max_bytes
                )
            except OffsetOutOfRange as error:
                if offset is not None:
                    raise
                return await self._driver.read_by_offset(
                    name, error.start, max_records=max_records, max_bytes=max_bytes
                )

    async def read_by_key(self, key: bytes | str, *, shard: int | None = None) -> Record:
        """The newest live record of a key. All shards are asked unless one is given."""
        try:
            manager = self._local.manager
            return (await manager.read_by_key(self.topic, _bytes("key", key), shard))[1]
        except FirnError as error:
            self.topic.name_shard(error)
            raise

    async def read_by_tag(
        self,
        tag: bytes | str,
        start_offset: int = 0,
        *,
        shard: int = 0,
        max_records: int = READ_RECORDS_DEFAULT,
        max_bytes: int = READ_BYTES_DEFAULT,
    ) -> Page:
        wanted = _bytes("tag", tag)
        with self._on(shard) as name:
            return await self._driver.read_by_tag(
                name, wanted, start_offset, max_records=max_records, max_bytes=max_bytes
            )

    async def offset_at(
        self,
        timestamp_ms: int,
        *,
        shard: int = 0,
        otherwise: AdapterOffsetStrategy = AdapterOffsetStrategy.LATEST,
    ) -> int:
        """First offset at least as young as the timestamp, else the start or the end."""
        with self._on(shard) as name:
            return await self._driver.get_offset_by_timestamp(name, timestamp_ms, otherwise)

    async def delete_by_key(self, key: bytes | str, *, shard: int | None = None) -> None:
        """Deletes every record the key has so far, in all shards unless one is given: Kafka
        clients, and appends that name a shard, may have put it into others than its own."""
        key = _bytes("key", key)
        chosen = range(self.topic.shard_count) if shard is None else (shard,)
        for seq in chosen:
            with self._on(seq) as name:
                await self._driver.delete_by_key(name, key)

    async def delete_by_offset(self, offset: int, *, shard: int = 0) -> None:
        with self._on(shard) as name:
            await self._driver.delete_by_offset(name, offset)

    async def delete_before(self, offset: int, *, shard: int = 0) -> None:
        """Moves the start of a shard up to the offset."""
        with self._on(shard) as name:
            await self._logs.delete_records_before(name, offset)

    async def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Notes for each shard the offset the group reads next."""
        named = {self._shard(seq): offset for seq, offset in offsets.items()}
        await self._driver.commit_offset(group, named)

    async def committed(self, group: str) -> dict[int, int]:
        """The group's committed offsets in this topic, by shard."""
        by_name = await self._driver.get_offset_by_group(group)
        names = enumerate(self.topic.shard_names())
        return {seq: by_name[name] for seq, name in names if name in by_name}

    async def status(self, shard: int = 0) -> ShardStatus:
        with self._on(shard) as name:
            return await self._logs.status(name)

    async def roll(self, shard: int = 0) -> None:
        """Seals the active segment now."""
        with self._on(shard) as name:
            await self._logs.roll(name)

    async def records(self, offset: int | None = None, *, shard: int = 0) -> AsyncIterator[Record]:
        """Every record from an offset, or from the first there is, to the present end."""
        while True:
            page = await self.read(offset, shard=shard)
            for record in page.records():
                yield record
            if page.next_offset == offset:
                return
            offset = page.next_offset

    @property
    def _driver(self) -> Driver:
        return self._local.manager.driver_of(self.name)

    @property
    def _logs(self) -> LogAdmin:
        logs = self._driver.logs
        if logs is None:
            raise InvalidArgument(
                self.name, f"is kept by {self.topic.config.storage_type}, which cannot do this"
            )
        return logs

    @contextmanager
    def _on(self, seq: int) -> Iterator[str]:
        """Gives what storage calls the shard; errors call it by what users know it by."""
        try:
            yield self._shard(seq)
        except FirnError as error:
            self.topic.name_shard(error)
            raise

    def _shard(self, seq: int) -> str:
        return self.topic.shard_name(self._local.manager.check_shard(self.topic, seq))


class Store:
    """A store for threads: every method may be called from any of them."""

    def __init__(self, local: LocalStore) -> None:
        self.local = local
        self._store = AsyncStore(local)

    def create_topic(
        self,
        name: str,
        *,
        shards: int = 1,
        options: Mapping[str, object] | None = None,
        exist_ok: bool = False,
    ) -> TopicHandle:
        """Creates a topic; options are dotted, such as {"storage.type": "EngineMemory"}.

        A topic of this name raises AlreadyExists. With `exist_ok` it is returned as it is, whatever
        its shards and options are.
        """
        created = self._store.create_topic(name, shards=shards, options=options, exist_ok=exist_ok)
        return TopicHandle(run_blocking(created))

    def topic(self, name: str) -> TopicHandle:
        return TopicHandle(self._store.topic(name))

    def topics(self) -> list[Topic]:
        return self._store.topics()

    def delete_topic(self, name: str) -> None:
        run_blocking(self._store.delete_topic(name))

    def upload(self, topic: str | None = None, *, timeout_s: float = 600.0) -> None:
        """Copies what is sealed, of one topic or of all, to the object store now.

        That happens by itself too, `tiering.upload.delay.ms` after a segment is sealed.
        """
        self.local.mover.upload_now(topic, timeout_s=timeout_s)

    def tier_status(self) -> TierStatus:
        """What is in the object store, what waits and why."""
        return self.local.mover.status()

    def close(self) -> None:
        self.local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class TopicHandle:
    """One topic's records, for threads. Methods do what AsyncTopicHandle's do."""

    def __init__(self, handle: AsyncTopicHandle) -> None:
        self._handle = handle

    @property
    def name(self) -> str:
        return self._handle.name

    @property
    def topic(self) -> Topic:
        return self._handle.topic

    def append(
        self, records: Appendable | Iterable[Appendable], *, shard: int | None = None
    ) -> tuple[Written, ...]:
        """Stores records and returns where they are, once they are as durable as the topic asks.

        The records of one shard are stored all or none; LimitExceeded if they are more than a batch
        may hold (`max.batch.bytes`).
        """
        return run_blocking(self._handle.append(records, shard=shard))

    def read(
        self,
        offset: int | None = None,
        *,
        shard: int = 0,
        max_records: int = READ_RECORDS_DEFAULT,
        max_bytes: int = READ_BYTES_DEFAULT,
    ) -> Page:
        """Records from an offset on, or from the first there is; go on at `page.next_offset`."""
        return run_blocking(
            self._handle.read(offset, shard=shard, max_records=max_records, max_bytes=max_bytes)
        )

    def read_by_key(self, key: bytes | str, *, shard: int | None = None) -> Record:
        """The newest live record of a key. All shards are asked unless one is given."""
        return run_blocking(self._handle.read_by_key(key, shard=shard))

    def read_by_tag(
        self,
        tag: bytes | str,
        start_offset: int = 0,
        *,
        shard: int = 0,
        max_records: int = READ_RECORDS_DEFAULT,
        max_bytes: int = READ_BYTES_DEFAULT,
    ) -> Page:
        return run_blocking(
            self._handle.read_by_tag(
                tag, start_offset, shard=shard, max_records=max_records, max_bytes=max_bytes
            )
        )

    def offset_at(
        self,
        timestamp_ms: int,
        *,
        shard: int = 0,
        otherwise: AdapterOffsetStrategy = AdapterOffsetStrategy.LATEST,
    ) -> int:
        """First offset at least as young as the timestamp, else the start or the end."""
        return run_blocking(self._handle.offset_at(timestamp_ms, shard=shard, otherwise=otherwise))

    def delete_by_key(self, key: bytes | str, *, shard: int | None = None) -> None:
        """Deletes every record the key has so far, in all shards unless one is given."""
        run_blocking(self._handle.delete_by_key(key, shard=shard))

    def delete_by_offset(self, offset: int, *, shard: int = 0) -> None:
        run_blocking(self._handle.delete_by_offset(offset, shard=shard))

    def delete_before(self, offset: int, *, shard: int = 0) -> None:
        """Moves the start of a shard up to the offset."""
        run_blocking(self._handle.delete_before(offset, shard=shard))

    def commit(self, group: str, offsets: Mapping[int, int]) -> None:
        """Notes for each shard the offset the group reads next."""
        run_blocking(self._handle.commit(group, offsets))

    def committed(self, group: str) -> dict[int, int]:
        """The group's committed offsets in this topic, by shard."""
        return run_blocking(self._handle.committed(group))

    def status(self, shard: int = 0) -> ShardStatus:
        return run_blocking(self._handle.status(shard))

    def roll(self, shard: int = 0) -> None:
        """Seals the active segment now."""
        run_blocking(self._handle.roll(shard))

    def records(self, offset: int | None = None, *, shard: int = 0) -> Iterator[Record]:
        """Every record from an offset, or from the first there is, to the present end."""
        while True:
            page = self.read(offset, shard=shard)
            yield from page.records()
            if page.next_offset == offset:
                return
            offset = page.next_offset


def _tiering(given: TieringConfig | str | None) -> TieringConfig | None:
    return TieringConfig(url=given) if isinstance(given, str) else given


def _records(given: Appendable | Iterable[Appendable]) -> list[NewRecord]:
    if isinstance(given, (NewRecord, bytes, str)):
        given = (given,)
    return [
        record if isinstance(record, NewRecord) else NewRecord(value=_bytes("value", record))
        for record in given
    ]


def _bytes(what: str, given: bytes | str) -> bytes:
    if isinstance(given, str):
        return given.encode()
    if not isinstance(given, bytes):
        raise InvalidArgument(what, f"must be bytes or text, not {type(given).__name__}")
    return given
