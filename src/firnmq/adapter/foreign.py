"""Lets an adapter that a user wrote for asyncio serve threads too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from firnmq.adapter.api import BatchStorage, LogAdmin, StorageAdapter
from firnmq.config import TopicConfig
from firnmq.disk import Ticket
from firnmq.disk.waiting import is_blocking
from firnmq.engines import Page
from firnmq.errors import (
    AlreadyExists,
    Closed,
    InvalidArgument,
    KeyNotFound,
    ShardNotFound,
)

P = ParamSpec("P")
T = TypeVar("T")


def _forwarded(
    operation: Callable[Concatenate[StorageAdapter, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ForeignAdapter, P], Coroutine[Any, Any, T]]:
    """The user's operation of this name, wherever the caller waits for it."""
    name = operation.__name__

    async def call(self: ForeignAdapter, /, *args: P.args, **kwargs: P.kwargs) -> T:
        forwarded: Coroutine[Any, Any, T] = getattr(self._adapter, name)(*args, **kwargs)
        return await self._run(forwarded)

    return call


class ForeignAdapter:
    """The driver around a user's own StorageAdapter.

    Our engines' coroutines can be driven without an event loop; a user's may await anything, so
    for synchronous callers they run on a loop in a thread of their own, started on first use.
    Kafka's broker has an event loop, and uses the adapter itself if it offers batches.
    """

    def __init__(self, storage_type: str, adapter: StorageAdapter) -> None:
        missing = [name for name in _OPERATIONS if not hasattr(adapter, name)]
        if missing:
            raise InvalidArgument(storage_type, f"its adapter lacks {', '.join(missing)}")
        self._adapter = adapter
        self.batches: BatchStorage | None = adapter if isinstance(adapter, BatchStorage) else None
        self.logs: LogAdmin | None = None
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False

    create_shard = _forwarded(StorageAdapter.create_shard)
    delete_shard = _forwarded(StorageAdapter.delete_shard)
    list_shard = _forwarded(StorageAdapter.list_shard)
    write = _forwarded(StorageAdapter.write)
    batch_write = _forwarded(StorageAdapter.batch_write)
    read_by_offset = _forwarded(StorageAdapter.read_by_offset)
    read_by_tag = _forwarded(StorageAdapter.read_by_tag)
    read_by_key = _forwarded(StorageAdapter.read_by_key)
    delete_by_key = _forwarded(StorageAdapter.delete_by_key)
    delete_by_offset = _forwarded(StorageAdapter.delete_by_offset)
    get_offset_by_timestamp = _forwarded(StorageAdapter.get_offset_by_timestamp)
    get_offset_by_group = _forwarded(StorageAdapter.get_offset_by_group)
    commit_offset = _forwarded(StorageAdapter.commit_offset)
    bounds = _forwarded(StorageAdapter.bounds)

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> Callable[[], None] | None:
        return self._adapter.watch(shard, end_offset, ticket)

    # Many shards, one after the other -----------------------------------------------------------

    async def create_shards(
        self, shards: Sequence[str], config: TopicConfig, topic_id: str
    ) -> None:
        for shard in shards:
            try:
                await self.create_shard(shard, config)
            except AlreadyExists:
                continue  # Made before a crash that kept the topic from being updated.

    async def delete_shards(self, shards: Sequence[str]) -> None:
        for shard in shards:
            try:
                await self.delete_shard(shard)
            except ShardNotFound:
                continue  # Never made, or removed before a crash.

    async def delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        """Nothing: only the adapter knows which of its shards are ours."""

    async def read_by_key_among(self, shards: Sequence[str], key: bytes) -> dict[str, Page]:
        async def page_of(shard: str) -> Page | None:
            try:
                return await self.read_by_key(shard, key)
            except KeyNotFound:
                return None

        if is_blocking():
            pages = [await page_of(shard) for shard in shards]
        else:
            pages = await asyncio.gather(*map(page_of, shards))
        return {shard: page for shard, page in zip(shards, pages, strict=True) if page is not None}

    async def run_to_end(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await work()

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


_OPERATIONS = sorted(name for name in vars(StorageAdapter) if not name.startswith("_"))
