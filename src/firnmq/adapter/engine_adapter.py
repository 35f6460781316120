"""EngineStorageAdapter: a StorageAdapter over one of our own engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from firnmq.adapter.api import ShardBounds
from firnmq.adapter.offsets import OffsetManager
from firnmq.config import TopicConfig
from firnmq.disk import Ticket, call_blocking
from firnmq.disk.files import Buffer
from firnmq.disk.waiting import is_blocking
from firnmq.engines import (
    AdapterOffsetStrategy,
    Appended,
    Engine,
    Page,
    RawPage,
    ShardStatus,
    StoredPage,
)
from firnmq.engines.shardlog.read import ColdNeeded
from firnmq.record import NewRecord

T = TypeVar("T")


class EngineStorageAdapter:
    """Reads run in the calling thread or, under asyncio, in the executors' threads: those that may
    have to wait for an object store in threads of their own, so that others need not."""

    def __init__(
        self,
        engine: Engine,
        offsets: OffsetManager,
        readers: Executor | None,
        cold_readers: Executor | None = None,
    ) -> None:
        self._engine = engine
        self._offsets = offsets
        self._readers = readers
        self.accept_raw = engine.accept_batch
        """An encoded batch, checked, for `hand_over`; None where it would have to wait."""
        self.hand_over = engine.hand_over
        """Stores what was accepted; each ticket is settled once that is durable."""
        self.direct_log = engine.direct.find
        """A shard's log for what is written at once by an event loop, if it is such a log."""
        self._cold_readers = readers if cold_readers is None else cold_readers

    async def create_shard(self, shard: str, config: TopicConfig) -> None:
        await call_blocking(self._readers, self._engine.create_shard, shard, config)

    async def delete_shard(self, shard: str) -> None:
        await call_blocking(self._readers, self._engine.delete_shard, shard)

    async def list_shard(self) -> list[ShardBounds]:
        return await call_blocking(self._readers, self._list_shard)

    async def write(self, shard: str, record: NewRecord) -> int:
        return (await self._engine.append(shard, (record,))).base_offset

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        return await self._engine.append(shard, records)

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
                pass  # No newer record is here; the rest is for those who may wait longer.
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

    # Beyond the thirteen: what only engines can do ------------------------------------------------

    async def create_shards(
        self, shards: Sequence[str], config: TopicConfig, topic_id: str
    ) -> None:
        """Makes a topic's shards as one change; those that are there already stay."""
        await call_blocking(self._readers, self._create_shards, shards, config, topic_id)

    async def delete_shards(self, shards: Sequence[str]) -> None:
        """Removes shards as one change; those that are not there are passed over."""
        await call_blocking(self._readers, self._engine.delete_shards, shards)

    async def delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        """Leaves topics, given by id, this many shards; others that nobody counted yet go."""
        await call_blocking(self._readers, self._delete_shards_beyond, shard_counts)

    async def batch_write_raw(self, shard: str, batches: Sequence[Buffer]) -> Appended:
        """Appends encoded batches; writable buffers are patched in place."""
        return await self._engine.append_batches(shard, batches)

    async def submit_raw(self, shard: str, batches: Sequence[Buffer]) -> Ticket[Appended]:
        """Queues encoded batches in the order of calls; the ticket waits for durability."""
        return await self._engine.submit_batches(shard, batches)

    async def append_marker(
        self, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended:
        """Ends a producer's transaction in the shard, durably."""
        return await self._engine.append_marker(shard, producer_id, epoch, is_commit=is_commit)

    async def bounds(self, shard: str) -> tuple[int, int]:
        """Start and end offset; waits only if the shard has to be opened."""
        if self._engine.is_open(shard):
            return self._engine.bounds(shard)
        return await call_blocking(self._readers, self._engine.bounds, shard)

    async def stable_offset(self, shard: str) -> int:
        """Where the earliest transaction that has not ended begins, or the end."""
        if self._engine.is_open(shard):
            return self._engine.stable_offset(shard)
        return await call_blocking(self._readers, self._engine.stable_offset, shard)

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> bool:
        """Settles the ticket once the shard grows beyond the offset; False if it has already."""
        return self._engine.watch(shard, end_offset, ticket)

    def unwatch(self, shard: str, ticket: Ticket[None]) -> None:
        self._engine.unwatch(shard, ticket)

    async def reconfigure(self, shard: str, config: TopicConfig) -> None:
        await call_blocking(self._readers, self._engine.reconfigure, shard, config)

    async def find_offset(self, shard: str, timestamp_ms: int, *, committed: bool) -> int:
        """Like get_offset_by_timestamp, the end if there is none; also among what is not certain
        unless only what is committed counts."""

        def find() -> int:
            return self._engine.get_offset_by_timestamp(
                shard, timestamp_ms, AdapterOffsetStrategy.LATEST, committed=committed
            )

        return await self._find_by_time(shard, timestamp_ms, find)

    async def read_raw(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool = False
    ) -> RawPage:
        def read() -> RawPage:
            return self._engine.read_batches(
                shard, offset, max_bytes=max_bytes, committed=committed
            )

        return await self._read_from(shard, offset, read)

    def read_stored_nowait(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage | None:
        """Batches for a client, None unless they can be had without waiting."""
        return self._engine.read_stored_nowait(
            shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
        )

    def read_stored(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage:
        """The same for a thread that may wait: see `in_reader`."""
        return self._engine.read_stored(
            shard, offset, max_bytes=max_bytes, committed=committed, ranges=ranges
        )

    async def in_reader(self, function: Callable[[], T]) -> T:
        """Calls a function that may wait, in one of the readers' threads."""
        return await call_blocking(self._readers, function)

    def is_open(self, shard: str) -> bool:
        """Whether a question about the shard needs no recovery first."""
        return self._engine.is_open(shard)

    def reads_cold(self, shard: str, offset: int) -> bool:
        """Whether a read from the offset on may have to wait for an object store."""
        return self._engine.reads_cold(shard, offset)

    def begin_cold(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Calls a function that may wait for an object store, in a thread for such; on an event
        loop."""
        return asyncio.get_running_loop().run_in_executor(self._cold_readers, function)

    async def check_change(self, shard: str, config: TopicConfig) -> None:
        """InvalidArgument if what the shard has in an object store does not allow these options."""
        await call_blocking(self._readers, self._engine.check_change, shard, config)

    async def delete_key(self, shard: str, key: bytes) -> int | None:
        """Like delete_by_key; the offset below which the key's records are deleted, None if the
        shard has none of them."""
        return await call_blocking(self._readers, self._engine.delete_by_key, shard, key)

    async def delete_offsets(self, shard: str, offsets: Sequence[int]) -> list[int]:
        """Deletes many records as one change; the offsets of those that were not deleted before."""
        return await call_blocking(self._readers, self._engine.delete_by_offset, shard, offsets)

    async def delete_records_before(self, shard: str, offset: int) -> int:
        """Moves the start of a shard up to the offset; where it was."""
        return await call_blocking(self._readers, self._engine.delete_records_before, shard, offset)

    async def truncate(self, shard: str, offset: int) -> None:
        await call_blocking(self._readers, self._engine.truncate, shard, offset)

    async def roll(self, shard: str) -> None:
        await call_blocking(self._readers, self._engine.roll, shard)

    async def status(self, shard: str) -> ShardStatus:
        return await call_blocking(self._readers, self._engine.status, shard)

    async def _read_from(self, shard: str, offset: int, read: Callable[[], T]) -> T:
        if self._engine.is_open(shard):
            is_cold = self._engine.reads_cold(shard, offset)
        else:
            is_cold = await call_blocking(self._readers, self._engine.reads_cold, shard, offset)
        return await call_blocking(self._cold_readers if is_cold else self._readers, read)

    async def finds_cold(self, shard: str, timestamp_ms: int) -> bool:
        """Whether the search of a timestamp may have to wait for an object store."""
        return await call_blocking(self._readers, self._engine.finds_cold, shard, timestamp_ms)

    async def _find_by_time(self, shard: str, timestamp_ms: int, find: Callable[[], T]) -> T:
        is_cold = await self.finds_cold(shard, timestamp_ms)
        return await call_blocking(self._cold_readers if is_cold else self._readers, find)

    def _create_shards(self, shards: Sequence[str], config: TopicConfig, topic_id: str) -> None:
        there = {spec.name for spec in self._engine.list_shard()}
        missing = [shard for shard in shards if shard not in there]
        if missing:
            self._engine.create_shards(missing, config, topic_id)

    def _delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        gone = []
        for spec in self._engine.list_shard():
            topic_id, _, seq = spec.name.rpartition("_")
            if topic_id in shard_counts and int(seq) >= shard_counts[topic_id]:
                gone.append(spec.name)
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
