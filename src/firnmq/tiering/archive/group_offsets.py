"""Writes the committed offsets of consumer groups to the store, for a recovery.

One object holds the offsets of all groups in tiered topics. It is never overwritten: a change is a
new object with the next number, read back before the objects with smaller numbers are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec

from firnmq.clock import Clock
from firnmq.errors import Corruption, ObjectCorrupt, ObjectExists, ObjectNotFound, ObjectTruncated
from firnmq.eventlog import EventLogger
from firnmq.tiering.archive.manifest_writer import NUMBERS_OF_A_CLAIM
from firnmq.tiering.format.manifest import (
    MANIFEST_BYTES_MAX,
    GroupsManifest,
    StoredOffset,
    read_manifest,
)
from firnmq.tiering.format.object_names import groups_key, groups_prefix, parse_groups
from firnmq.tiering.stores import ObjectStore

_log = EventLogger("tiering")

GroupOffsets = Mapping[str, Mapping[str, StoredOffset]]
"""By group, then by shard: the next offset to read, and the metadata committed with it."""


class Committed(NamedTuple):
    """What groups have committed, as far as it can be asked."""

    groups: GroupOffsets
    is_away: Callable[[str], bool] = lambda group: False
    """Whether a group that is not among them may be on a node that does not answer: what the store
    has of it stays."""


class GroupSource(Protocol):
    """Returns the committed offsets of all groups. Safe in any thread."""

    def __call__(self) -> Committed: ...


def no_groups() -> Committed:
    return Committed({})


class GroupOffsetsWriter:
    """Writes the offsets of groups when they have changed. Not safe with threads."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: str,
        clock: Clock,
        claim: Callable[[], int] = lambda: 1,
        *,
        before_write: Callable[[], None] = lambda: None,
    ) -> None:
        """`before_write` raises if the directory may no longer write or remove objects."""
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._claim = claim
        self._before_write = before_write
        self._numbers: list[int] | None = None
        """Numbers of the objects in the store, ascending; None before the first list."""
        self._latest: GroupsManifest | None = None

    def write(self, committed: Committed) -> bool:
        """Writes the offsets unless the store already has them; whether they were written."""
        if self._numbers is None:
            self._numbers = numbers_in(self._store, self._cluster)
            self._latest = self._newest()
        groups = {group: dict(offsets) for group, offsets in committed.groups.items() if offsets}
        if self._latest is not None:
            for group, offsets in self._latest.groups.items():
                if group not in committed.groups and committed.is_away(group):
                    groups[group] = offsets
        wanted = GroupsManifest(cluster=self._cluster, number=0, written_ms=0, groups=groups)
        if self._latest is None and not self._numbers and not wanted.groups:
            return False
        if self._latest is not None and self._latest.groups == wanted.groups:
            return False
        self._before_write()
        self._put(wanted, self._numbers)
        return True

    def forget(self) -> None:
        """Forces a new list of the store before the next write: others may have written."""
        self._numbers = self._latest = None

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
                numbers.append(number)  # Our own attempt whose response was lost, or another's.
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
        """The newest object under our claim, from an earlier process; None if there is none. An
        object under an older claim is rewritten: that claim's numbers no longer count."""
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
    """Numbers of a cluster's objects with group offsets, ascending."""
    parsed = (parse_groups(info.key) for info in store.list(groups_prefix(cluster)))
    return sorted(found[1] for found in parsed if found is not None)


def read_groups(store: ObjectStore, key: str) -> GroupsManifest:
    manifest = read_manifest(store, key, GroupsManifest)
    if parse_groups(key) != (manifest.cluster, manifest.number):
        raise Corruption("cluster and number are not those of its name", where=key)
    return manifest
