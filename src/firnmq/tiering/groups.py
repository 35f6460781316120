"""Keeps what consumer groups have committed in the store, so that a recovery has it again.

One object holds the offsets of all groups in tiered topics. It is never written over: a change is a
new object with the next number, read again before those with smaller numbers go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from firnmq.clock import Clock
from firnmq.errors import Corruption, ObjectCorrupt, ObjectExists, ObjectNotFound, ObjectTruncated
from firnmq.eventlog import EventLogger
from firnmq.tiering.keys import groups_key, groups_prefix, parse_groups
from firnmq.tiering.manifest import MANIFEST_BYTES_MAX, GroupsManifest, StoredOffset
from firnmq.tiering.manifests import NUMBERS_OF_A_CLAIM
from firnmq.tiering.stores import ObjectStore

_log = EventLogger("tiering")

GroupOffsets = Mapping[str, Mapping[str, StoredOffset]]
"""By group, then by shard: the offset that the group reads next, and what it noted beside it."""


class GroupSource(Protocol):
    """Where groups commit. In any thread."""

    def __call__(self) -> GroupOffsets: ...


def no_groups() -> GroupOffsets:
    return {}


class GroupKeeper:
    """Writes the offsets of groups when they have changed. For one thread at a time."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: str,
        clock: Clock,
        claim: Callable[[], int] = lambda: 1,
        *,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_write` raises where nothing may be written any more, and removed for it."""
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._claim = claim
        self._before_write = before_write
        self._numbers: list[int] | None = None
        """Of the objects that the store has, in order; None before it was asked."""
        self._latest: GroupsManifest | None = None

    def write(self, groups: GroupOffsets) -> bool:
        """Whether something was written: nothing is if the store has it already."""
        wanted = GroupsManifest(
            cluster=self._cluster,
            number=0,
            written_ms=0,
            groups={group: dict(offsets) for group, offsets in groups.items() if offsets},
        )
        if self._numbers is None:
            self._numbers = numbers_in(self._store, self._cluster)
            self._latest = self._newest()
        if self._latest is None and not self._numbers and not wanted.groups:
            return False
        if self._latest is not None and self._latest.groups == wanted.groups:
            return False
        self._before_write()
        self._put(wanted, self._numbers)
        return True

    def _put(self, wanted: GroupsManifest, numbers: list[int]) -> None:
        while True:
            number = max(numbers[-1] if numbers else 0, self._first_of_claim()) + 1
            manifest = msgspec.structs.replace(
                wanted, number=number, written_ms=self._clock.now_ms()
            )
            key, data = groups_key(self._cluster, number), manifest.pack()
            if len(data) > MANIFEST_BYTES_MAX:
                raise Corruption(f"{len(data):,} bytes of offsets are too many", where=key)
            try:
                self._store.put(key, data)
            except ObjectExists:
                numbers.append(number)  # An earlier try whose answer was lost, or another's.
                continue
            break
        numbers.append(number)
        if bytes(self._store.get_range(key, 0, len(data))) != data:
            raise ObjectCorrupt(self._store.url, "is not what was written", key=key)
        self._latest = manifest
        if len(numbers) > 1:
            self._store.delete([groups_key(self._cluster, each) for each in numbers[:-1]])
            del numbers[:-1]

    def _newest(self) -> GroupsManifest | None:
        """What an earlier life of this directory has written last. That of a directory before it is
        written anew: the numbers of its claim must not count any more."""
        if not self._numbers or self._numbers[-1] <= self._first_of_claim():
            return None
        key = groups_key(self._cluster, self._numbers[-1])
        try:
            return read_groups(self._store, key)
        except (Corruption, ObjectNotFound, ObjectTruncated) as error:
            _log.error("manifest_damaged", key=key, error=str(error))
            return None

    def _first_of_claim(self) -> int:
        return (self._claim() - 1) * NUMBERS_OF_A_CLAIM


def numbers_in(store: ObjectStore, cluster: str) -> list[int]:
    """Numbers of the objects with groups' offsets that a cluster has, in order."""
    parsed = (parse_groups(info.key) for info in store.list(groups_prefix(cluster)))
    return sorted(found[1] for found in parsed if found is not None)


def read_groups(store: ObjectStore, key: str) -> GroupsManifest:
    return GroupsManifest.unpack(store.get_range(key, 0, store.head(key).size), key)
