"""Group offsets as Kafka clients name them, and the store of group snapshots."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from firnmq.adapter import (
    CommittedOffset,
    OffsetManager,
    OffsetRows,
    OffsetsLeft,
)
from firnmq.adapter.offsets import IsDue
from firnmq.brokers.kafka.groups import AnySnapshot, decode_snapshot, encode_snapshot
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import FirnError

_SNAPSHOT = b"g"
_AFTER_SNAPSHOTS = b"h"
_LOADED_AT_ONCE = 10_000
"""Offsets of several groups that are in memory together, unless one group has more."""


class GroupOffsets:
    """The offset manager for asyncio: commits are synced in a thread."""

    def __init__(self, offsets: OffsetManager, executor: Executor | None = None) -> None:
        self._offsets = offsets
        self._executor = executor

    async def commit(self, group: str, entries: Mapping[str, CommittedOffset]) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._offsets.commit_entries, group, entries)

    async def check(self, group: str, entries: Mapping[str, CommittedOffset]) -> None:
        """Raises OffsetLimitReached if the entries could not be committed now."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._offsets.check_entries, group, entries)

    async def load_committed(self, group: str) -> dict[str, CommittedOffset]:
        """What the group has committed, by shard. Read in a thread: a group may have an offset in
        every shard, and a commit that is not synced yet is waited for."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._offsets.committed, group)

    async def load_committed_of(
        self, groups: Sequence[str]
    ) -> list[dict[str, CommittedOffset] | FirnError]:
        """The same of several groups, with one change of thread. Returns those of the first groups,
        at least of one, if all of them have very many."""

        def load() -> list[dict[str, CommittedOffset] | FirnError]:
            found: list[dict[str, CommittedOffset] | FirnError] = []
            count = 0
            for group in groups:
                try:
                    committed = self._offsets.committed(group)
                    found.append(committed)
                except FirnError as error:
                    found.append(error)
                else:
                    count += len(committed)
                if count >= _LOADED_AT_ONCE:
                    break
            return found

        return await asyncio.get_running_loop().run_in_executor(self._executor, load)

    def has_offsets(self, group: str) -> bool:
        return self._offsets.has_offsets(group)

    async def groups(self) -> list[str]:
        """All groups with offsets, read in a thread: that takes long where there are many."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._offsets.groups)

    async def forget_due(self, group: str, is_due: IsDue) -> OffsetsLeft:
        """Removes offsets that are due; `is_due` is called in a thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._offsets.forget_due, group, is_due)

    async def forget(self, group: str, shards: list[str] | None = None) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._offsets.forget, group, shards)


class KvGroupStore:
    """A GroupStore in the node's key-value store, synced."""

    def __init__(self, rows: OffsetRows, executor: Executor | None = None) -> None:
        self._rows = rows
        self._kv = rows.kv
        self._executor = executor

    async def save(self, group_id: str, snapshot: AnySnapshot) -> None:
        def write() -> None:
            with self._kv.batch() as batch:
                batch.put(Family.STATE, _SNAPSHOT + group_id.encode(), encode_snapshot(snapshot))
            self._kv.sync()

        await asyncio.get_running_loop().run_in_executor(self._executor, write)

    async def load_all(self) -> dict[str, AnySnapshot]:
        def read() -> dict[str, AnySnapshot]:
            rows = self._kv.items(Family.STATE, _SNAPSHOT, _AFTER_SNAPSHOTS)
            return {key[1:].decode(): decode_snapshot(value) for key, value in rows}

        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    async def delete(self, group_id: str, empty_since_ms: int | None = None) -> None:
        def erase() -> None:
            with self._kv.row_lock:
                rows = []
                if empty_since_ms is not None:
                    rows = self._rows.age(group_id, empty_since_ms)
                with self._kv.batch() as batch:
                    batch.delete(Family.STATE, _SNAPSHOT + group_id.encode())
                    batch.put_many(Family.STATE, rows)
            self._kv.sync()

        await asyncio.get_running_loop().run_in_executor(self._executor, erase)


def saved_groups(kv: KeyValueStore) -> set[str]:
    """Groups of which the store has members or offsets."""
    rows = kv.items(Family.STATE, _SNAPSHOT, _AFTER_SNAPSHOTS)
    return {key[1:].decode() for key, _ in rows} | set(OffsetRows(kv).groups())
