"""EngineStorageAdapter: a StorageAdapter over one of our own engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from firnmq.adapter.api import BatchStorage, LogAdmin, ShardBounds
from firnmq.adapter.offsets import OffsetManager
from firnmq.config import TopicConfig
from firnmq.disk import Ticket, call_blocking, run_blocking
from firnmq.disk.waiting import is_blocking
from firnmq.engines import AdapterOffsetStrategy, Page
from firnmq.engines.api import ShardEngine
from firnmq.engines.shardlog.reading.records import ColdNeeded
from firnmq.errors import KeyNotFound
from firnmq.record import NewRecord

P = ParamSpec("P")
T = TypeVar("T")

_SHARDS_PER_CALL = 64
"""Shards in which one thread looks for a key, one after the other."""


def _in_reader(
    operation: Callable[Concatenate[ShardEngine, P], T],
) -> Callable[Concatenate[EngineStorageAdapter, P], Coroutine[Any, Any, T]]:
    """The engine's operation of this name, called where waiting is allowed."""
    name = operation.__name__

    async def call(self: EngineStorageAdapter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        function: Callable[..., T] = getattr(self._engine, name)
        return await call_blocking(self._readers, partial(function, *args, **kwargs))

    return call


class EngineStorageAdapter:
    """A driver that offers everything: batches for Kafka clients, and its logs.

    Reads run in the calling thread or, under asyncio, in the executors' threads: those that may
    have to wait for an object store in threads of their own, so that others need not.
    """

    def __init__(
        self,
        engine: ShardEngine,
        offsets: OffsetManager,
        readers: Executor | None,
        cold_readers: Executor | None = None,
    ) -> None:
        self._engine = engine
        self._offsets = offsets
        self._readers = readers
        self._cold_readers = readers if cold_readers is None else cold_readers
        # What an engine does without a thread is its own operation, not another call.
        self.batch_write = engine.append
        self.submit = engine.submit
        self.append_marker = engine.append_marker
        self.open_log = engine.open_log
        self.leads = engine.has_shard
        self.read_stored_nowait = engine.read_stored_nowait
        self.read_stored = engine.read_stored

    @property
    def batches(self) -> BatchStorage:
        return self

    @property
    def logs(self) -> LogAdmin:
        return self

    async def create_shard(self, shard: str, config: TopicConfig) -> None:
        await call_blocking(self._readers, self._engine.create_shard, shard, config)

    delete_shard = _in_reader(ShardEngine.delete_shard)

    async def list_shard(self) -> list[ShardBounds]:
        return await call_blocking(self._readers, self._list_shard)

    async def write(self, shard: str, record: NewRecord) -> int:
        return (await self._engine.append(shard, (record,))).base_offset

    async def read_by_offset(
        self, shard: str, offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        def read() -> Page:
            return self._engine.read_by_offset(
                shard, offset, max_records=max_records, max_bytes=max_bytes
            )

        return await self._read_from(shard, offset, read)

    async def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        def read() -> Page:
            return self._engine.read_by_tag(
                shard, tag, start_offset, max_records=max_records, max_bytes=max_bytes
            )

        return await self._read_from(shard, start_offset, read)

    async def read_by_key(self, shard: str, key: bytes) -> Page:
        read = self._engine.read_by_key
        if not is_blocking():
            try:
                return await call_blocking(self._readers, lambda: read(shard, key, hot_only=True))
            except ColdNeeded:
                pass  # No newer record is local; the cold readers may wait for the store.
        return await call_blocking(self._cold_readers, read, shard, key)

    async def delete_by_key(self, shard: str, key: bytes) -> None:
        await call_blocking(self._readers, self._engine.delete_by_key, shard, key)

    async def delete_by_offset(self, shard: str, offset: int) -> None:
        await call_blocking(self._readers, self._engine.delete_by_offset, shard, (offset,))

    async def get_offset_by_timestamp(
        self, shard: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> int:
        def find() -> int:
            return self._engine.get_offset_by_timestamp(shard, timestamp_ms, strategy)

        return await self._find_by_time(shard, timestamp_ms, find)

    async def get_offset_by_group(self, group: str) -> dict[str, int]:
        committed = await call_blocking(self._readers, self._offsets.committed, group)
        return {shard: entry.offset for shard, entry in committed.items()}

    async def commit_offset(self, group: str, offsets: Mapping[str, int]) -> None:
        await call_blocking(self._readers, self._offsets.commit, group, dict(offsets))

    # What only engines can do -------------------------------------------------------------------

    async def read_by_key_among(self, shards: Sequence[str], key: bytes) -> dict[str, Page]:
        """The newest record of a key in each of the shards that has one. What is here is looked
        up in turn; object stores are asked about the other shards in parallel."""
        groups = [
            shards[at : at + _SHARDS_PER_CALL] for at in range(0, len(shards), _SHARDS_PER_CALL)
        ]
        found: dict[str, Page] = {}
        cold: list[str] = []
        for pages, rest in await self._calls(
            self._readers, [partial(self._read_hot, group, key) for group in groups]
        ):
            found |= pages
            cold += rest
        reads = [partial(self._read_by_key, shard, key) for shard in cold]
        pages_of = zip(cold, await self._calls(self._cold_readers, reads), strict=True)
        return found | {shard: page for shard, page in pages_of if page is not None}

    async def _calls(self, executor: Executor | None, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Makes calls that may wait, in parallel where there are threads for that."""
        if not is_blocking():
            return list(await asyncio.gather(*(call_blocking(executor, call) for call in calls)))
        if executor is None or len(calls) < 2:
            return [call() for call in calls]
        return [future.result() for future in [executor.submit(call) for call in calls]]

    def _read_hot(self, shards: Sequence[str], key: bytes) -> tuple[dict[str, Page], list[str]]:
        """What is found here, and the shards whose object store has to be asked."""
        found, cold = {}, []
        for shard in shards:
            try:
                found[shard] = self._engine.read_by_key(shard, key, hot_only=True)
            except KeyNotFound:
                continue
            except ColdNeeded:
                cold.append(shard)
        return found, cold

    def _read_by_key(self, shard: str, key: bytes) -> Page | None:
        try:
            return self._engine.read_by_key(shard, key)
        except KeyNotFound:
            return None

    async def read_key_history(
        self, shard: str, key: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        """All records of a key from an offset on."""

        def read() -> Page:
            return self._engine.read_key_history(
                shard, key, start_offset, max_records=max_records, max_bytes=max_bytes
            )

        return await self._read_from(shard, start_offset, read)

    async def create_shards(
        self, shards: Sequence[str], config: TopicConfig, topic_id: str
    ) -> None:
        """Makes a topic's shards as one change; those that are there already stay."""
        await call_blocking(self._readers, self._create_shards, shards, config, topic_id)

    delete_shards = _in_reader(ShardEngine.delete_shards)

    async def delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        """Leaves topics, given by id, this many shards; removes those with higher numbers."""
        await call_blocking(self._readers, self._delete_shards_beyond, shard_counts)

    async def run_to_end(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs it in one thread, which a cancelled caller does not interrupt."""
        return await call_blocking(None, lambda: run_blocking(work()))

    async def bounds(self, shard: str) -> tuple[int, int]:
        """Start and end offset; waits only if the shard has to be opened."""
        if self._engine.is_open(shard):
            return self._engine.bounds(shard)
        return await call_blocking(self._readers, self._engine.bounds, shard)

    async def stable_offset(self, shard: str) -> int:
        if self._engine.is_open(shard):
            return self._engine.stable_offset(shard)
        return await call_blocking(self._readers, self._engine.stable_offset, shard)

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> Callable[[], None] | None:
        if not self._engine.watch(shard, end_offset, ticket):
            return None
        return partial(self._engine.unwatch, shard, ticket)

    async def reconfigure(self, shards: Sequence[str], config: TopicConfig, revision: int) -> None:
        def reconfigure() -> None:
            for shard in self._engine.apart(shards):
                self._engine.reconfigure(shard, config, revision)

        await call_blocking(self._readers, reconfigure)

    async def find_offset(self, shard: str, timestamp_ms: int, *, committed: bool) -> int:
        def find() -> int:
            return self._engine.get_offset_by_timestamp(
                shard, timestamp_ms, AdapterOffsetStrategy.LATEST, committed=committed
            )

        return await self._find_by_time(shard, timestamp_ms, find)

    async def find_newest(self, shard: str, *, committed: bool) -> tuple[int, int] | None:
        def find() -> tuple[int, int] | None:
            return self._engine.newest_record(shard, committed=committed)

        start_offset, _ = await self.bounds(shard)
        return await self._read_from(shard, start_offset, find)

    def in_reader(self, function: Callable[[], T], *, cold: bool = False) -> asyncio.Future[T]:
        readers = self._cold_readers if cold else self._readers
        return asyncio.get_running_loop().run_in_executor(readers, function)

    def is_cold(
        self, shard: str, *, offset: int | None = None, timestamp_ms: int | None = None
    ) -> bool:
        if offset is not None and self._engine.reads_cold(shard, offset):
            return True
        return timestamp_ms is not None and self._engine.finds_cold(shard, timestamp_ms)

    check_change = _in_reader(ShardEngine.check_change)
    delete_key = _in_reader(ShardEngine.delete_by_key)
    delete_offsets = _in_reader(ShardEngine.delete_by_offset)
    delete_records_before = _in_reader(ShardEngine.delete_records_before)
    truncate = _in_reader(ShardEngine.truncate)
    roll = _in_reader(ShardEngine.roll)
    status = _in_reader(ShardEngine.status)
    producers = _in_reader(ShardEngine.producers)

    async def _read_from(self, shard: str, offset: int, read: Callable[[], T]) -> T:
        if self._engine.is_open(shard):
            is_cold = self._engine.reads_cold(shard, offset)
        else:
            is_cold = await call_blocking(self._readers, self._engine.reads_cold, shard, offset)
        return await call_blocking(self._cold_readers if is_cold else self._readers, read)

    async def _find_by_time(self, shard: str, timestamp_ms: int, find: Callable[[], T]) -> T:
        is_cold = await call_blocking(self._readers, self._engine.finds_cold, shard, timestamp_ms)
        return await call_blocking(self._cold_readers if is_cold else self._readers, find)

    def _create_shards(self, shards: Sequence[str], config: TopicConfig, topic_id: str) -> None:
        missing = [shard for shard in shards if not self._engine.has_shard(shard)]
        if missing:
            self._engine.create_shards(missing, config, topic_id)

    def _delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        gone = self._engine.shards_beyond(shard_counts)
        if gone:
            self._engine.delete_shards(gone)

    def _list_shard(self) -> list[ShardBounds]:
        bounds = []
        for spec in self._engine.list_shard():
            status = self._engine.status(spec.name)
            bounds.append(
                ShardBounds(
                    name=spec.name, start_offset=status.start_offset, end_offset=status.end_offset
                )
            )
        return bounds
