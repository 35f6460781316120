"""The rows of committed offsets in the key-value store, and how much of it each client takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption, OffsetLimitReached

_GROUP = b"G"
_ROWS_PER_READ = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The offset a group reads next in a shard, and what it noted beside it."""

    offset: int
    metadata: str | None = None
    committed_ms: int
    leader_epoch: int = -1
    owner: str = ""
    """The client that committed it, for limits per client; empty if it was the node's operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLimits:
    """What clients may commit. Offsets without an owner count, and are never refused."""

    group_count_max: int
    client_group_count_max: int
    bytes_max: int
    client_bytes_max: int


class _Usage:
    """Groups and bytes by client."""

    def __init__(self) -> None:
        self._groups: dict[str, tuple[str, int]] = {}
        """Group → the client that committed its first offset, how many offsets it has."""
        self._group_count: Counter[str] = Counter()
        self._bytes: Counter[str] = Counter()
        self._total_bytes = 0

    def add(self, group: str, owner: str, size: int) -> None:
        first_owner, count = self._groups.get(group, (owner, 0))
        if not count:
            self._group_count[owner] += 1
        self._groups[group] = first_owner, count + 1
        self._bytes[owner] += size
        self._total_bytes += size

    def remove(self, group: str, owner: str, size: int) -> None:
        first_owner, count = self._groups.pop(group)
        if count > 1:
            self._groups[group] = first_owner, count - 1
        else:
            _subtract(self._group_count, first_owner, 1)
        _subtract(self._bytes, owner, size)
        self._total_bytes -= size

    def check(self, group: str, owner: str, more_bytes: int, limits: OffsetLimits) -> None:
        """Raises OffsetLimitReached if the client may not commit so many bytes for the group."""
        if group not in self._groups:
            of_owner, of_all = self._group_count[owner] + 1, len(self._groups) + 1
            if of_owner > limits.client_group_count_max:
                raise OffsetLimitReached("groups", limits.client_group_count_max, owner)
            if of_all > limits.group_count_max:
                raise OffsetLimitReached("groups", limits.group_count_max)
        if more_bytes > 0 and self._bytes[owner] + more_bytes > limits.client_bytes_max:
            raise OffsetLimitReached("bytes", limits.client_bytes_max, owner)
        if more_bytes > 0 and self._total_bytes + more_bytes > limits.bytes_max:
            raise OffsetLimitReached("bytes", limits.bytes_max)


class OffsetRows:
    """What is in the rows. The caller holds `kv.row_lock` from a call of `put`, `delete` or `age`
    until what it gives is written. If that fails, the database is reopened and all is counted
    again."""

    def __init__(self, kv: KeyValueStore) -> None:
        self.kv = kv
        self.limits: OffsetLimits | None = None
        self._usage: _Usage | None = None
        self._usage_opened_count = 0

    def put(
        self, group: str, offsets: Mapping[str, CommittedOffset], *, is_decided: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """The rows of a group's offsets, which the caller writes now.

        Raises OffsetLimitReached, unless it is decided already that they are committed.
        """
        usage = self._counted()
        new = _rows(group, offsets)
        old = self._found(group, new)
        if not is_decided:
            self._check(usage, group, new, old)
        for size, owner in old.values():
            usage.remove(group, owner, size)
        for key, (value, owner) in new.items():
            usage.add(group, owner, len(key) + len(value))
        return [(key, value) for key, (value, _) in new.items()]

    def check(self, group: str, offsets: Mapping[str, CommittedOffset]) -> None:
        """Raises OffsetLimitReached if the offsets cannot be committed now."""
        new = _rows(group, offsets)
        self._check(self._counted(), group, new, self._found(group, new))

    def delete(self, group: str, shards: Iterable[str]) -> list[bytes]:
        """The keys of those rows that are there, which the caller deletes now."""
        usage = self._counted()
        found = self._found(group, [_key(group, shard) for shard in dict.fromkeys(shards)])
        for size, owner in found.values():
            usage.remove(group, owner, size)
        return list(found)

    def get(self, group: str) -> dict[str, CommittedOffset]:
        prefix = _group_prefix(group)
        return {
            key[len(prefix) :].decode(): _decoded(value, group)
            for key, value in self.kv.items(Family.STATE, prefix, _after(prefix))
        }

    def has(self, group: str) -> bool:
        prefix = _group_prefix(group)
        return bool(self.kv.items(Family.STATE, prefix, _after(prefix), limit=1))

    def groups(self) -> list[str]:
        names = set()
        for key, _ in self.kv.items(Family.STATE, _GROUP, _after(_GROUP)):
            names.add(_group_of(key))
        return sorted(names)

    def age(self, group: str, at_ms: int) -> list[tuple[bytes, bytes]]:
        """Rows of the group's offsets from before `at_ms` as if they had been committed then, which
        the caller writes now."""
        older = {
            shard: replace(entry, committed_ms=at_ms)
            for shard, entry in self.get(group).items()
            if entry.committed_ms < at_ms
        }
        return self.put(group, older, is_decided=True)

    def _check(
        self,
        usage: _Usage,
        group: str,
        new: Mapping[bytes, tuple[bytes, str]],
        old: Mapping[bytes, tuple[int, str]],
    ) -> None:
        if self.limits is None:
            return
        more: Counter[str] = Counter()
        for key, (value, owner) in new.items():
            more[owner] += len(key) + len(value)
        for size, owner in old.values():
            more[owner] -= size
        for owner, more_bytes in more.items():
            if owner:
                usage.check(group, owner, more_bytes, self.limits)

    def _found(self, group: str, keys: Iterable[bytes]) -> dict[bytes, tuple[int, str]]:
        """Size and owner of the rows that are there."""
        found = {}
        for key in keys:
            value = self.kv.get(Family.STATE, key)
            if value is not None:
                found[key] = len(key) + len(value), _decoded(value, group).owner
        return found

    def _counted(self) -> _Usage:
        """What is in use, counted again after the database was reopened: a write may be lost."""
        if self._usage is None or self._usage_opened_count != self.kv.opened_count:
            self._usage_opened_count = self.kv.opened_count
            self._usage = self._count()
        return self._usage

    def _count(self) -> _Usage:
        usage = _Usage()
        lower, upper = _GROUP, _after(_GROUP)
        while rows := self.kv.items(Family.STATE, lower, upper, _ROWS_PER_READ):
            for key, value in rows:
                group = _group_of(key)
                usage.add(group, _decoded(value, group).owner, len(key) + len(value))
            lower = rows[-1][0] + b"\x00"
        return usage


def _subtract(counts: Counter[str], owner: str, number: int) -> None:
    counts[owner] -= number
    if not counts[owner]:
        del counts[owner]


def _group_prefix(group: str) -> bytes:
    name = group.encode()
    return _GROUP + len(name).to_bytes(2, "big") + name


def _rows(group: str, offsets: Mapping[str, CommittedOffset]) -> dict[bytes, tuple[bytes, str]]:
    """Key → value and owner."""
    return {
        _key(group, shard): (msgspec.msgpack.encode(entry), entry.owner)
        for shard, entry in offsets.items()
    }


def _key(group: str, shard: str) -> bytes:
    return _group_prefix(group) + shard.encode()


def _group_of(key: bytes) -> str:
    length = int.from_bytes(key[1:3], "big")
    return key[3 : 3 + length].decode()


def _after(prefix: bytes) -> bytes:
    return (int.from_bytes(prefix, "big") + 1).to_bytes(len(prefix), "big")


def _decoded(value: bytes, group: str) -> CommittedOffset:
    try:
        return msgspec.msgpack.decode(value, type=CommittedOffset)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=f"offsets of group {group!r}") from error
