"""The interfaces of an index: queries and entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from firnmq.record import Keys

TIMESTAMP_MIN = -(2**63)
"""Smaller than any record's timestamp: what came before the first record of a segment."""


NEVER_MS = 2**63 - 1
"""Later than anything expires."""


class Point(NamedTuple):
    """A batch border from which a scan can start."""

    offset: int
    position: int


class KeyHit(NamedTuple):
    """The newest record of a key in a segment, and its batch's position."""

    offset: int
    position: int


class TagHit(NamedTuple):
    """A batch with records of a tag; their offsets are relative to its base offset."""

    base_offset: int
    position: int
    relative_offsets: Sequence[int]

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.relative_offsets[-1]


class Terms(NamedTuple):
    """Keys and tags of a batch's records; offsets are relative to the batch's base offset."""

    keys: Keys
    """Each key with the offset of its newest record."""
    tags: Mapping[bytes, Sequence[int]]


class SegmentIndex(Protocol):
    """Answers about one segment. Safe with threads."""

    def floor_offset(self, offset: int) -> Point | None:
        """The last point at or before the offset."""

    def floor_time(self, timestamp_ms: int) -> Point | None:
        """The last point before which every record is older than the timestamp."""

    def newest_of_key(self, key: bytes) -> KeyHit | None:
        """Where the key's newest record is. A long key may answer for another of the same hash."""

    def tagged(self, tag: bytes, start_offset: int) -> Iterator[TagHit]:
        """Batches with the tag in offset order, from the one that may hold start_offset on."""


class IndexSink(Protocol):
    """Takes the entries of one active segment, batch by batch.

    Offsets of keys and tags are relative to the batch's base offset.
    """

    def add_point(self, offset: int, position: int, max_timestamp_before: int) -> None: ...

    def add_keys(self, keys: Keys, base_offset: int, position: int) -> None: ...

    def add_tags(
        self, tags: Mapping[bytes, Sequence[int]], base_offset: int, position: int
    ) -> None: ...
