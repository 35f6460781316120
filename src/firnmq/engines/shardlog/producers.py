"""What a shard remembers of idempotent and transactional producers.

Per producer: its epoch, its last five batches and, while a transaction is open, where that began in
this shard. A batch that was stored before is recognised by its sequence numbers and answered with
its first offsets; one that does not follow the last is refused. The state is a function of the log
and is rebuilt from it; it is also kept beside the index, so that rebuilding can start at the
checkpoint.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from firnmq.errors import OutOfOrderSequence, ProducerFenced
from firnmq.record import BatchHeader

NO_PRODUCER = -1
BATCHES_KEPT = 5
"""As many requests as a client may have in flight, any of which it may send again."""
_SEQUENCES = 2**31

_PRODUCER = struct.Struct(
    ">"
    "h"  # epoch
    "q"  # transaction's first offset, -1 without one
    "B"  # number of batches that follow
)
_BATCH = struct.Struct(
    ">"
    "i"  # first sequence
    "i"  # last sequence
    "q"  # base offset
    "i"  # last offset, relative to the base
    "q"  # timestamp
)
assert _PRODUCER.size == 11
assert _BATCH.size == 28


class ProducerBatch(NamedTuple):
    """A stored batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp_ms: int


class Producer:
    """One producer's state in one shard."""

    __slots__ = ("batches", "epoch", "transaction_start")

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_KEPT)
        self.transaction_start: int | None = None

    def pack(self) -> bytes:
        start = -1 if self.transaction_start is None else self.transaction_start
        parts = [_PRODUCER.pack(self.epoch, start, len(self.batches))]
        for batch in self.batches:
            parts.append(
                _BATCH.pack(
                    batch.first_sequence,
                    batch.last_sequence,
                    batch.base_offset,
                    batch.last_offset - batch.base_offset,
                    batch.timestamp_ms,
                )
            )
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Producer:
        epoch, start, count = _PRODUCER.unpack_from(data)
        producer = cls(epoch)
        producer.transaction_start = None if start < 0 else start
        for number in range(count):
            first, last, base, length, timestamp = _BATCH.unpack_from(
                data, _PRODUCER.size + number * _BATCH.size
            )
            producer.batches.append(ProducerBatch(first, last, base, base + length, timestamp))
        return producer


class ProducerStates:
    """All producers of one shard. Owned by whoever holds the log's lock."""

    __slots__ = ("_by_id", "touched")

    def __init__(self, producers: Iterable[tuple[int, Producer]] = ()) -> None:
        self._by_id = dict(producers)
        self.touched: set[int] = set()
        """Producers changed since the last commit."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._by_id.items())

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    def check(
        self, producer_id: int, epoch: int, first_sequence: int, record_count: int
    ) -> ProducerBatch | None:
        """The stored batch that this one repeats, None if it is to be stored.

        Raises ProducerFenced for an old epoch and OutOfOrderSequence for a gap.
        """
        producer = self._by_id.get(producer_id)
        if producer is None:
            return None  # Never seen here, or forgotten: whatever it begins with is accepted.
        if epoch < producer.epoch:
            raise ProducerFenced(producer_id, epoch, producer.epoch)
        if epoch > producer.epoch:
            if first_sequence != 0:
                raise OutOfOrderSequence(producer_id, first_sequence, 0)
            return None
        last_sequence = sequence_after(first_sequence, record_count - 1)
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (first_sequence, last_sequence):
                return batch
        if producer.batches:
            expected = sequence_after(producer.batches[-1].last_sequence, 1)
            if first_sequence != expected:
                raise OutOfOrderSequence(producer_id, first_sequence, expected)
        return None

    def note_batch(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        *,
        base_offset: int,
        last_offset: int,
        timestamp_ms: int,
        is_transactional: bool,
    ) -> None:
        """A batch was stored. One that is known already, as in a scan after a crash, is not new."""
        producer = self._producer(producer_id, epoch)
        if producer.batches and producer.batches[-1].base_offset >= base_offset:
            return
        producer.batches.append(
            ProducerBatch(
                first_sequence,
                sequence_after(first_sequence, last_offset - base_offset),
                base_offset,
                last_offset,
                timestamp_ms,
            )
        )
        if is_transactional and producer.transaction_start is None:
            producer.transaction_start = base_offset

    def note_header(self, header: BatchHeader, base_offset: int) -> None:
        """The same from a stored batch's header."""
        self.note_batch(
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
            base_offset=base_offset,
            last_offset=base_offset + header.last_offset_delta,
            timestamp_ms=header.max_timestamp,
            is_transactional=header.is_transactional,
        )

    def forget_from(self, end_offset: int) -> None:
        """Forgets batches at and above an offset that was cut off."""
        for producer_id, producer in self._by_id.items():
            kept = [batch for batch in producer.batches if batch.last_offset < end_offset]
            if len(kept) < len(producer.batches):
                producer.batches = deque(kept, maxlen=BATCHES_KEPT)
                self.touched.add(producer_id)
            start = producer.transaction_start
            if start is not None and start >= end_offset:
                producer.transaction_start = None
                self.touched.add(producer_id)

    def note_marker(self, producer_id: int, epoch: int) -> int | None:
        """A transaction's end was stored; returns where it began, None if nothing was in it."""
        producer = self._producer(producer_id, epoch)
        start, producer.transaction_start = producer.transaction_start, None
        return start

    def first_open_transaction(self) -> int | None:
        """Offset of the earliest record whose transaction has not ended."""
        starts = [
            producer.transaction_start
            for producer in self._by_id.values()
            if producer.transaction_start is not None
        ]
        return min(starts, default=None)

    def forget_idle(self, before_ms: int) -> list[int]:
        """Drops producers without an open transaction whose last batch is older."""
        idle = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer.transaction_start is None
            and (not producer.batches or producer.batches[-1].timestamp_ms < before_ms)
        ]
        for producer_id in idle:
            del self._by_id[producer_id]
        return idle

    def _producer(self, producer_id: int, epoch: int) -> Producer:
        self.touched.add(producer_id)
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.batches.clear()
        return producer


def sequence_after(sequence: int, steps: int) -> int:
    """Sequence numbers go from 0 to 2**31 - 1 and start over."""
    return (sequence + steps) % _SEQUENCES
