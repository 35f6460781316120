"""What a shard's log says about transactions: markers, and what was aborted.

A transaction's records stand in the log like any others, in batches that name their producer. A
marker, the one record of a control batch, says how it ended. Until then nothing from its first
record on is shown to readers of committed records; afterwards they skip an aborted one.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from firnmq.record.batch import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, Buffer
from firnmq.record.control import control_batch, control_record
from firnmq.record.selection import OFFSET_END

_VALUE: Final = struct.Struct(
    ">"
    "h"  # version: 0
    "i"  # epoch of the coordinator
)
assert _VALUE.size == 6
_VERSION: Final = 0
_ABORT, _COMMIT = 0, 1
_COORDINATOR_EPOCH: Final = 0
"""A single node has always been the coordinator."""
_KIND: Final = ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL


class OpenTransaction(NamedTuple):
    """A transaction that has begun in the shard and not ended."""

    producer_id: int
    epoch: int
    first_offset: int


class AbortedTransaction(NamedTuple):
    """A transaction whose records, all of its producer's from first to last, do not count."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    stable_offset: int
    """First offset of the earliest transaction that was open once this had ended, or the one
    after the marker: whatever ended later begins there or beyond."""


class AbortedTransactions:
    """A shard's aborted transactions in the order of their markers.

    Readers look while the log's owner adds: an entry that a reader should not see yet cannot
    concern what it reads, since it speaks of a transaction that was still open in its view.
    """

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[AbortedTransaction] = ()) -> None:
        self._entries = sorted(entries, key=_last_offset)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[AbortedTransaction]:
        return iter(self._entries)

    def add(self, transaction: AbortedTransaction) -> None:
        assert not self._entries or self._entries[-1].last_offset < transaction.last_offset
        self._entries.append(transaction)

    def overlapping(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Those with an offset in [start, end), in the order of their first."""
        entries = self._entries
        found = []
        for number in range(bisect_left(entries, start_offset, key=_last_offset), len(entries)):
            entry = entries[number]
            if entry.first_offset < end_offset:
                found.append(entry)
            if entry.stable_offset >= end_offset:
                break
        return sorted(found, key=lambda each: each.first_offset)

    def has_marker_in(self, start_offset: int, end_offset: int) -> bool:
        """Whether one of them ended in [start, end)."""
        number = bisect_left(self._entries, start_offset, key=_last_offset)
        return number < len(self._entries) and self._entries[number].last_offset < end_offset

    def hiding(
        self, start_offset: int, end_offset: int, shown_end: int = OFFSET_END
    ) -> HiddenBatches | None:
        """What to pass over in [start, end); None if that is nothing. A transaction whose marker is
        at or above `shown_end` counts as open."""
        if not self._entries:
            return None
        found = self.overlapping(start_offset, end_offset)
        found = [each for each in found if each.last_offset < shown_end]
        return HiddenBatches(found) if found else None

    def without(self, start_offset: int, end_offset: int) -> AbortedTransactions:
        """The same without those whose markers are in [start, end)."""
        return AbortedTransactions(
            entry for entry in self if not start_offset <= entry.last_offset < end_offset
        )


class HiddenBatches:
    """Tells by a batch's header whether it was aborted: a batch has one producer."""

    __slots__ = ("_by_producer",)

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for each in transactions:
            ranges = self._by_producer.setdefault(each.producer_id, [])
            ranges.append((each.first_offset, each.last_offset))

    def __contains__(self, entry: Any) -> bool:
        """`entry` is a BatchEntry, which the codec may have in compiled form."""
        if entry.attributes & _KIND != ATTRIBUTE_TRANSACTIONAL:
            return False
        offset = entry.base_offset
        ranges = self._by_producer.get(entry.producer_id, ())
        return any(first <= offset <= last for first, last in ranges)


def _last_offset(transaction: AbortedTransaction) -> int:
    return transaction.last_offset


def marker_batch(producer_id: int, epoch: int, *, is_commit: bool) -> bytearray:
    """The control batch that ends a producer's transaction in a shard."""
    return control_batch(
        _COMMIT if is_commit else _ABORT,
        _VALUE.pack(_VERSION, _COORDINATOR_EPOCH),
        attributes=ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


def is_commit_marker(batch: Buffer) -> bool:
    """Whether a control batch says that its producer's transaction counts."""
    return control_record(batch).kind == _COMMIT
