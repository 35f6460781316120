"""Lets an adapter that a user wrote for asyncio serve threads too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from firnmq.adapter.api import ShardBounds, StorageAdapter
from firnmq.config import TopicConfig
from firnmq.disk.waiting import is_blocking
from firnmq.engines import AdapterOffsetStrategy, Appended, Page
from firnmq.errors import Closed
from firnmq.record import NewRecord

T = TypeVar("T")


class ForeignAdapter:
    """A StorageAdapter around a user's own one.

    Our engines' coroutines can be driven without an event loop; a user's may await anything, so
    for synchronous callers they run on a loop in a thread of their own, started on first use.
    """

    def __init__(self, adapter: StorageAdapter) -> None:
        self._adapter = adapter
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    async def create_shard(self, shard: str, config: TopicConfig) -> None:
        await self._run(self._adapter.create_shard(shard, config))

    async def delete_shard(self, shard: str) -> None:
        await self._run(self._adapter.delete_shard(shard))

    async def list_shard(self) -> list[ShardBounds]:
        return await self._run(self._adapter.list_shard())

    async def write(self, shard: str, record: NewRecord) -> int:
        return await self._run(self._adapter.write(shard, record))

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        return await self._run(self._adapter.batch_write(shard, records))

    async def read_by_offset(
        self, shard: str, offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return await self._run(
            self._adapter.read_by_offset(
                shard, offset, max_records=max_records, max_bytes=max_bytes
            )
        )

    async def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        return await self._run(
            self._adapter.read_by_tag(
                shard, tag, start_offset, max_records=max_records, max_bytes=max_bytes
            )
        )

    async def read_by_key(self, shard: str, key: bytes) -> Page:
        return await self._run(self._adapter.read_by_key(shard, key))

    async def delete_by_key(self, shard: str, key: bytes) -> None:
        await self._run(self._adapter.delete_by_key(shard, key))

    async def delete_by_offset(self, shard: str, offset: int) -> None:
        await self._run(self._adapter.delete_by_offset(shard, offset))

    async def get_offset_by_timestamp(
        self, shard: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> int:
        return await self._run(self._adapter.get_offset_by_timestamp(shard, timestamp_ms, strategy))

    async def get_offset_by_group(self, group: str) -> dict[str, int]:
        return await self._run(self._adapter.get_offset_by_group(group))

    async def commit_offset(self, group: str, offsets: Mapping[str, int]) -> None:
        await self._run(self._adapter.commit_offset(group, offsets))

    def close(self) -> None:
        """Stops the private loop, if one was started."""
        with self._lock:
            self._is_closed = True
            if self._loop is not None and self._thread is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
                self._loop = self._thread = None

    async def _run(self, operation: Coroutine[Any, Any, T]) -> T:
        try:
            if not is_blocking():
                return await operation
            return asyncio.run_coroutine_threadsafe(operation, self._private_loop()).result()
        finally:
            operation.close()  # It was not started if the store is closed.

    def _private_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise Closed("the store is closed")
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=self._loop.run_forever, name="firn-adapter", daemon=True
                )
                self._thread.start()
            return self._loop
