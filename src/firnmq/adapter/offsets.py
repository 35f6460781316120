"""How far consumer groups have come: OffsetManager and its two strategies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from firnmq.clock import Clock
from firnmq.config.names import check_group_name
from firnmq.disk import Family, KeyValueStore
from firnmq.disk.kv import KvBatch
from firnmq.errors import Corruption, InvalidArgument

_GROUP = b"G"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The offset a group reads next in a shard, and what it noted beside it."""

    offset: int
    metadata: str | None = None
    committed_ms: int
    leader_epoch: int = -1


class OffsetStore(Protocol):
    """Where committed offsets are kept."""

    def put(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None: ...

    def get(self, group: str) -> dict[str, CommittedOffset]: ...

    def delete(self, group: str, shards: list[str]) -> None: ...

    def groups(self) -> list[str]: ...


class OffsetCacheManager:
    """Local RocksDB, written but not synced: fast, survives a crash of the process.

    A power cut may take back what the store has not synced yet; the group then reads those
    records again.
    """

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def put(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        with self._kv.batch() as batch:
            put_offsets(batch, group, offsets)

    def get(self, group: str) -> dict[str, CommittedOffset]:
        prefix = _group_prefix(group)
        return {
            key[len(prefix) :].decode(): _decoded(value, group)
            for key, value in self._kv.items(Family.STATE, prefix, _after_prefix(prefix))
        }

    def delete(self, group: str, shards: list[str]) -> None:
        with self._kv.batch() as batch:
            for shard in shards:
                batch.delete(Family.STATE, _group_prefix(group) + shard.encode())

    def groups(self) -> list[str]:
        names = set()
        for key, _ in self._kv.items(Family.STATE, _GROUP, _after_prefix(_GROUP)):
            length = int.from_bytes(key[1:3], "big")
            names.add(key[3 : 3 + length].decode())
        return sorted(names)


class OffsetStorageManager:
    """Synced before the commit is acknowledged.

    A single node's meta store is its key-value store; a cluster's stands behind the same
    OffsetStore interface.
    """

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv
        self._entries = OffsetCacheManager(kv)
        self.get = self._entries.get
        self.groups = self._entries.groups

    def put(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        self._entries.put(group, offsets)
        self._kv.sync()

    def delete(self, group: str, shards: list[str]) -> None:
        self._entries.delete(group, shards)
        self._kv.sync()


class OffsetManager:
    """Commits and finds group offsets by the strategy the store was opened with."""

    def __init__(self, store: OffsetStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def commit(self, group: str, offsets: Mapping[str, int], metadata: str | None = None) -> None:
        """Notes for each shard the offset the group reads next."""
        check_group_name(group)
        for shard, offset in offsets.items():
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise InvalidArgument(f"offset of {shard}", f"must be 0 or more, not {offset!r}")
        now_ms = self._clock.now_ms()
        entries = {
            shard: CommittedOffset(offset=offset, metadata=metadata, committed_ms=now_ms)
            for shard, offset in offsets.items()
        }
        self._store.put(group, entries)

    def commit_entries(self, group: str, entries: Mapping[str, CommittedOffset]) -> None:
        """The same with what the committer noted beside each offset."""
        check_group_name(group)
        for shard, entry in entries.items():
            if entry.offset < 0:
                raise InvalidArgument(f"offset of {shard}", f"must be 0 or more: {entry.offset}")
        self._store.put(group, entries)

    def forget_shards(self, shards: list[str]) -> None:
        """Removes every group's offsets of shards that no longer exist."""
        gone = set(shards)
        for group in self._store.groups():
            stale = [shard for shard in self._store.get(group) if shard in gone]
            if stale:
                self._store.delete(group, stale)

    def committed(self, group: str) -> dict[str, CommittedOffset]:
        """What the group has committed, by shard; empty for a group nobody has heard of."""
        return self._store.get(check_group_name(group))

    def forget(self, group: str, shards: list[str] | None = None) -> None:
        """Removes the group's offsets, of all its shards or of some."""
        known = self._store.get(check_group_name(group))
        self._store.delete(group, list(known) if shards is None else shards)

    def groups(self) -> list[str]:
        return self._store.groups()


def put_offsets(batch: KvBatch, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
    """Adds a group's offsets to a write that makes them one with something else."""
    for shard, committed in offsets.items():
        key = _group_prefix(group) + shard.encode()
        batch.put(Family.STATE, key, msgspec.msgpack.encode(committed))


def _group_prefix(group: str) -> bytes:
    name = group.encode()
    return _GROUP + len(name).to_bytes(2, "big") + name


def _after_prefix(prefix: bytes) -> bytes:
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _decoded(value: bytes, group: str) -> CommittedOffset:
    try:
        return msgspec.msgpack.decode(value, type=CommittedOffset)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=f"offsets of group {group!r}") from error
