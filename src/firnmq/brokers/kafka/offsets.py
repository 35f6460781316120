"""Group offsets as Kafka clients name them, and the store of group snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Executor

from firnmq.adapter import CommittedOffset, OffsetManager
from firnmq.brokers.kafka.groups import GroupSnapshot, decode_snapshot, encode_snapshot
from firnmq.disk import Family, KeyValueStore

_SNAPSHOT = b"g"
_AFTER_SNAPSHOTS = b"h"


class GroupOffsets:
    """The offset manager for asyncio: commits are synced in a thread."""

    def __init__(self, offsets: OffsetManager, executor: Executor | None = None) -> None:
        self._offsets = offsets
        self._executor = executor

    async def commit(self, group: str, entries: Mapping[str, CommittedOffset]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._offsets.commit_entries, group, entries)

    def committed(self, group: str) -> dict[str, CommittedOffset]:
        return self._offsets.committed(group)

    def groups(self) -> list[str]:
        return self._offsets.groups()

    async def forget(self, group: str, shards: list[str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._offsets.forget, group, shards)


class KvGroupStore:
    """A GroupStore in the node's key-value store, synced."""

    def __init__(self, kv: KeyValueStore, executor: Executor | None = None) -> None:
        self._kv = kv
        self._executor = executor

    async def save(self, group_id: str, snapshot: GroupSnapshot) -> None:
        def write() -> None:
            with self._kv.batch() as batch:
                batch.put(Family.STATE, _SNAPSHOT + group_id.encode(), encode_snapshot(snapshot))
            self._kv.sync()

        await asyncio.get_running_loop().run_in_executor(self._executor, write)

    async def load_all(self) -> dict[str, GroupSnapshot]:
        def read() -> dict[str, GroupSnapshot]:
            rows = self._kv.items(Family.STATE, _SNAPSHOT, _AFTER_SNAPSHOTS)
            return {key[1:].decode(): decode_snapshot(value) for key, value in rows}

        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    async def delete(self, group_id: str) -> None:
        def erase() -> None:
            with self._kv.batch() as batch:
                batch.delete(Family.STATE, _SNAPSHOT + group_id.encode())
            self._kv.sync()

        await asyncio.get_running_loop().run_in_executor(self._executor, erase)
