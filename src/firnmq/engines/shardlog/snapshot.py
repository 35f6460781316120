"""A snapshot: what a log knows beside its records, as of the end of a sealed segment.

That is all producers, aborted transactions and deletions. It is derived from the log: the node that
continues the log need not scan what came before. docs/formats/snapshot.md has the layout.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final, NamedTuple

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.deletion.deletions import Deletions
from firnmq.engines.shardlog.producers import (
    ABORTED_BYTES,
    Producer,
    ProducerStates,
    pack_aborted,
    unpack_aborted,
)
from firnmq.errors import Corruption
from firnmq.record import crc32c
from firnmq.record.deletion import Deletion
from firnmq.record.selection import OFFSET_END

SNAPSHOT_BYTES_MAX: Final = 2**30
"""A larger file is no snapshot."""
_MAGIC: Final = b"FNSP"
_VERSION: Final = 1

_HEADER: Final = struct.Struct(
    ">"
    "4s"  # magic
    "H"  # version
    "H"  # zero
    "I"  # number of the shard
    "Q"  # end offset
    "I"  # number of producers
    "I"  # number of aborted transactions
    "I"  # number of deletions
)
_PRODUCER: Final = struct.Struct(
    ">"
    "q"  # producer id
    "H"  # length of its state, which follows
)
_LAST_OFFSET: Final = struct.Struct(">q")
_DELETION: Final = struct.Struct(
    ">"
    "Q"  # offset of the entry
    "I"  # length of the deletion, which follows
)
_CRC: Final = struct.Struct(">I")
assert _HEADER.size == 32
assert _PRODUCER.size == 10
assert _DELETION.size == 12


class Snapshot(NamedTuple):
    """Everything is as of `end_offset`, and about what is below it."""

    end_offset: int
    producers: tuple[tuple[int, bytes], ...] = ()
    """Rising by id, with their packed states."""
    aborted: tuple[AbortedTransaction, ...] = ()
    deletions: tuple[tuple[int, Deletion], ...] = ()
    """By the offsets of their entries, rising."""

    def pack(self, uid: int) -> bytes:
        counts = len(self.producers), len(self.aborted), len(self.deletions)
        parts = [_HEADER.pack(_MAGIC, _VERSION, 0, uid, self.end_offset, *counts)]
        for producer_id, state in self.producers:
            parts += (_PRODUCER.pack(producer_id, len(state)), state)
        for each in self.aborted:
            parts += (_LAST_OFFSET.pack(each.last_offset), pack_aborted(each))
        for offset, deletion in self.deletions:
            packed = deletion.pack()
            parts += (_DELETION.pack(offset, len(packed)), packed)
        content = b"".join(parts)
        return content + _CRC.pack(crc32c(content))

    @classmethod
    def unpack(cls, data: Buffer, uid: int, end_offset: int) -> Snapshot:
        """The snapshot in `data`; Corruption unless it is whole and that of this shard's end."""
        size = len(data) - _CRC.size
        if size < _HEADER.size or len(data) > SNAPSHOT_BYTES_MAX:
            raise Corruption(f"{len(data):,} bytes are no snapshot")
        if crc32c(memoryview(data)[:size]) != _CRC.unpack_from(data, size)[0]:
            raise Corruption("the snapshot's CRC32C does not match")
        magic, version, zero, number, end, *counts = _HEADER.unpack_from(data)
        if magic != _MAGIC or zero:
            raise Corruption("is no snapshot")
        if version != _VERSION:
            raise Corruption(f"a snapshot has version {version}, this release reads {_VERSION}")
        if (number, end) != (uid, end_offset):
            raise Corruption(f"is the snapshot of shard {number} at offset {end:,}")
        reader = _Reader(memoryview(data)[:size], _HEADER.size)
        producers = tuple(reader.producer() for _ in range(reader.count(counts[0], _PRODUCER.size)))
        aborted = tuple(
            reader.aborted(end)
            for _ in range(reader.count(counts[1], _LAST_OFFSET.size + ABORTED_BYTES))
        )
        deletions = tuple(
            reader.deletion(end) for _ in range(reader.count(counts[2], _DELETION.size))
        )
        if reader.at != size:
            raise Corruption(f"a snapshot has {size:,} bytes, not {reader.at:,}")
        _check_rising([each[0] for each in producers], "producers")
        _check_rising([each.last_offset for each in aborted], "aborted transactions")
        _check_rising([each[0] for each in deletions], "deletions")
        return cls(end, producers, aborted, deletions)

    @property
    def is_empty(self) -> bool:
        return not (self.producers or self.aborted or self.deletions)

    def from_offset(self, start_offset: int) -> Snapshot:
        """The same for a log that starts at the offset."""
        left = ((at, deletion.above(start_offset)) for at, deletion in self.deletions)
        return self._replace(
            aborted=tuple(each for each in self.aborted if each.last_offset >= start_offset),
            deletions=tuple(each for each in left if any(each[1])),
        )

    def producer_states(self) -> ProducerStates:
        producers = [(number, Producer.unpack(state)) for number, state in self.producers]
        return ProducerStates(producers, self.aborted)


def snapshot_at(end_offset: int, producers: ProducerStates, deletions: Deletions) -> Snapshot:
    """What a log knows that ends at the offset."""
    return Snapshot(
        end_offset,
        tuple(sorted((number, each.pack()) for number, each in producers)),
        tuple(producers.aborted),
        tuple(sorted(deletions.entries(0, OFFSET_END))),
    )


class _Reader:
    """Takes one entry after the other; Corruption where there is none."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self.at = at

    def count(self, count: int, size_min: int) -> int:
        if count * size_min > len(self._data) - self.at:
            raise Corruption(f"{len(self._data):,} bytes are too few for {count:,} entries")
        return count

    def producer(self) -> tuple[int, bytes]:
        producer_id, size = _PRODUCER.unpack(self._take(_PRODUCER.size))
        state = bytes(self._take(size))
        Producer.unpack(state)
        return producer_id, state

    def aborted(self, end_offset: int) -> AbortedTransaction:
        (last_offset,) = _LAST_OFFSET.unpack(self._take(_LAST_OFFSET.size))
        found = unpack_aborted(last_offset, bytes(self._take(ABORTED_BYTES)))
        if not 0 <= found.first_offset <= last_offset < end_offset:
            raise Corruption("an aborted transaction of a snapshot is out of range")
        return found

    def deletion(self, end_offset: int) -> tuple[int, Deletion]:
        offset, size = _DELETION.unpack(self._take(_DELETION.size))
        found = Deletion.unpack(bytes(self._take(size)))
        if offset >= end_offset or found.reach > offset:
            raise Corruption("a deletion of a snapshot is out of range")
        return offset, found

    def _take(self, size: int) -> memoryview:
        taken = self._data[self.at : self.at + size]
        if len(taken) != size:
            raise Corruption("a snapshot ends within an entry")
        self.at += size
        return taken


def _check_rising(numbers: list[int], what: str) -> None:
    if any(after <= before for before, after in pairwise(numbers)):
        raise Corruption(f"the {what} of a snapshot do not rise")
