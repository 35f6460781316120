"""How far consumer groups have come: OffsetManager and its two strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeAlias

from firnmq.adapter.offset_rows import CommittedOffset, OffsetRows
from firnmq.clock import Clock
from firnmq.config.names import check_group_name
from firnmq.disk import Family
from firnmq.errors import InvalidArgument

IsDue: TypeAlias = Callable[[str, CommittedOffset], bool]
"""Whether the offset that is committed in a shard is to be forgotten."""


class OffsetsLeft(NamedTuple):
    """What became of a group's offsets when those that were due were deleted."""

    deleted: int
    left: int


class OffsetStore(Protocol):
    """Where committed offsets are kept."""

    def put(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None: ...

    def check(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        """Raises OffsetLimitReached if `put` would."""

    def get(self, group: str) -> dict[str, CommittedOffset]: ...

    def delete(self, group: str, shards: list[str]) -> None: ...

    def delete_due(self, group: str, is_due: IsDue) -> OffsetsLeft:
        """Deletes the offsets that are due, as one step that no commit comes between."""

    def has(self, group: str) -> bool:
        """Whether the group has committed anything."""

    def groups(self) -> list[str]: ...


class OffsetCacheManager:
    """Local RocksDB, written but not synced: fast, survives a crash of the process.

    A power cut may take back what the store has not synced yet; the group then reads those
    records again.
    """

    def __init__(self, rows: OffsetRows) -> None:
        self._rows = rows
        self._kv = rows.kv
        self.get = rows.get
        self.has = rows.has
        self.groups = rows.groups

    def put(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        with self._kv.row_lock:
            rows = self._rows.put(group, offsets)
            with self._kv.batch() as batch:
                batch.put_many(Family.STATE, rows)

    def check(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        with self._kv.row_lock:
            self._rows.check(group, offsets)

    def delete(self, group: str, shards: list[str]) -> None:
        with self._kv.row_lock:
            self._delete(group, shards)

    def delete_due(self, group: str, is_due: IsDue) -> OffsetsLeft:
        with self._kv.row_lock:
            entries = self.get(group)
            due = [shard for shard, entry in entries.items() if is_due(shard, entry)]
            if due:
                self._delete(group, due)
        return OffsetsLeft(len(due), len(entries) - len(due))

    def _delete(self, group: str, shards: list[str]) -> None:
        keys = self._rows.delete(group, shards)
        with self._kv.batch() as batch:
            for key in keys:
                batch.delete(Family.STATE, key)


class OffsetStorageManager:
    """Synced before the commit is acknowledged and before it is shown.

    Whether a commit is stored whose sync failed is for the store to say: it is reopened and read.

    A single node's meta store is its key-value store; a cluster's stands behind the same
    OffsetStore interface.
    """

    def __init__(self, rows: OffsetRows) -> None:
        self._kv = rows.kv
        self._entries = OffsetCacheManager(rows)
        self.check = self._entries.check
        self.has = self._entries.has
        self.groups = self._entries.groups

    def get(self, group: str) -> dict[str, CommittedOffset]:
        return self._kv.read_durable(lambda: self._entries.get(group))

    def put(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        self._entries.put(group, offsets)
        self._kv.sync()

    def delete(self, group: str, shards: list[str]) -> None:
        self._entries.delete(group, shards)
        self._kv.sync()

    def delete_due(self, group: str, is_due: IsDue) -> OffsetsLeft:
        outcome = self._entries.delete_due(group, is_due)
        if outcome.deleted:
            self._kv.sync()
        return outcome


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

    def check_entries(self, group: str, entries: Mapping[str, CommittedOffset]) -> None:
        """Raises OffsetLimitReached if the entries could not be committed now."""
        self._store.check(check_group_name(group), entries)

    def forget_shards(self, shards: list[str]) -> None:
        """Removes every group's offsets of shards that no longer exist."""
        gone = set(shards)
        for group in self._store.groups():
            stale = [shard for shard in self._store.get(group) if shard in gone]
            if stale:
                self._store.delete(group, stale)

    def committed(self, group: str) -> dict[str, CommittedOffset]:
        """What the group has committed, by shard; empty for an unknown group."""
        return self._store.get(check_group_name(group))

    def forget(self, group: str, shards: list[str] | None = None) -> None:
        """Removes the group's offsets, of all its shards or of some."""
        known = self._store.get(check_group_name(group))
        self._store.delete(group, list(known) if shards is None else shards)

    def forget_due(self, group: str, is_due: IsDue) -> OffsetsLeft:
        """Removes those of the group's offsets that are due; a commit of the same moment stays."""
        return self._store.delete_due(check_group_name(group), is_due)

    def has_offsets(self, group: str) -> bool:
        """Whether the group has committed anything. Costs the same however many groups there are;
        a name that no group can have is no error."""
        with suppress(InvalidArgument):
            return self._store.has(check_group_name(group))
        return False

    def groups(self) -> list[str]:
        """All groups with offsets; reads every committed offset."""
        return self._store.groups()
