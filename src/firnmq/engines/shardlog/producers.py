"""What a shard remembers of idempotent and transactional producers.

Per producer: its epoch, its last five batches, when it last wrote and, while a transaction is open,
where that began in this shard. A batch that was stored before is recognised by its sequence numbers
and answered with its first offsets; one that does not follow the last is refused. The state is a
function of the log and is rebuilt from it, but for the time, which is then that of the rebuilding;
it is also kept beside the index, so that rebuilding can start at the checkpoint.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

from firnmq.engines.catalog.transactions import (
    AbortedTransaction,
    AbortedTransactions,
    OpenTransaction,
    is_commit_marker,
)
from firnmq.errors import Corruption, InvalidTransactionState, OutOfOrderSequence, ProducerFenced
from firnmq.record import BatchHeader
from firnmq.record.batch import Buffer
from firnmq.record.selection import OFFSET_END

NO_PRODUCER = -1
PRODUCER_REFUSALS = (ProducerFenced, OutOfOrderSequence, InvalidTransactionState)
"""What a producer's batch may be refused with; the shard goes on."""
BATCHES_KEPT = 5
"""As many requests as a client may have in flight, any of which it may send again."""
_SEQUENCES = 2**31

_PRODUCER = struct.Struct(
    ">"
    "h"  # epoch
    "q"  # transaction's first offset, -1 without one
    "q"  # when something of it was last stored, by the node's clock
    "B"  # number of batches that follow
)
_BATCH = struct.Struct(
    ">"
    "i"  # first sequence
    "i"  # last sequence
    "q"  # base offset
    "i"  # last offset, relative to the base
)
_ABORTED = struct.Struct(
    ">"
    "q"  # producer id
    "q"  # first offset
    "q"  # stable offset once it had ended
)
assert _PRODUCER.size == 19
assert _BATCH.size == 20
assert _ABORTED.size == 24
ABORTED_BYTES = _ABORTED.size


class ProducerBatch(NamedTuple):
    """A stored batch of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class Producer:
    """One producer's state in one shard."""

    __slots__ = ("batches", "epoch", "stored_ms", "transaction_start")

    def __init__(self, epoch: int, stored_ms: int) -> None:
        self.epoch = epoch
        self.stored_ms = stored_ms
        """When something of it was last stored, by the node's clock: clients' timestamps may be
        anything."""
        self.batches: deque[ProducerBatch] = deque(maxlen=BATCHES_KEPT)
        self.transaction_start: int | None = None

    def pack(self) -> bytes:
        start = -1 if self.transaction_start is None else self.transaction_start
        parts = [_PRODUCER.pack(self.epoch, start, self.stored_ms, len(self.batches))]
        for batch in self.batches:
            parts.append(
                _BATCH.pack(
                    batch.first_sequence,
                    batch.last_sequence,
                    batch.base_offset,
                    batch.last_offset - batch.base_offset,
                )
            )
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Producer:
        """The state in `data`; raises Corruption where there is none."""
        if len(data) < _PRODUCER.size:
            raise Corruption(f"{len(data)} bytes are no producer's entry")
        epoch, start, stored_ms, count = _PRODUCER.unpack_from(data)
        if count > BATCHES_KEPT or len(data) != _PRODUCER.size + count * _BATCH.size:
            raise Corruption(f"{len(data)} bytes are no producer's entry with {count} batches")
        producer = cls(epoch, stored_ms)
        producer.transaction_start = None if start < 0 else start
        for number in range(count):
            first, last, base, length = _BATCH.unpack_from(
                data, _PRODUCER.size + number * _BATCH.size
            )
            producer.batches.append(ProducerBatch(first, last, base, base + length))
        return producer


class ProducerSink(Protocol):
    """Where changed states go, to be committed with a turn's index entries."""

    def set_producer(self, producer_id: int, packed: bytes) -> None: ...

    def set_aborted(self, last_offset: int, packed: bytes) -> None: ...


class ProducerStates:
    """All producers of one shard. Owned by the thread that holds the log's lock."""

    __slots__ = (
        "_by_id",
        "_new_aborted",
        "_newest_ms",
        "_oldest_ms",
        "_open",
        "_touched",
        "aborted",
    )

    def __init__(
        self,
        producers: Iterable[tuple[int, Producer]] = (),
        aborted: Iterable[AbortedTransaction] = (),
    ) -> None:
        self._by_id = dict(producers)
        self._oldest_ms = min((each.stored_ms for each in self._by_id.values()), default=0)
        """No producer was last heard of before this; it may be too early."""
        self._newest_ms = max((each.stored_ms for each in self._by_id.values()), default=0)
        """No producer was last heard of after this."""
        self._touched: set[int] = set()
        """Producers changed since they were last stored."""
        self.aborted = AbortedTransactions(aborted)
        """Replaced when entries go, since readers may be looking at it."""
        self._new_aborted: list[AbortedTransaction] = []
        starts = [
            (producer.transaction_start, producer_id)
            for producer_id, producer in self._by_id.items()
            if producer.transaction_start is not None
        ]
        self._open = {producer_id: start for start, producer_id in sorted(starts)}
        """First offsets of open transactions. Rising, since a new one begins at the end of the
        log: the first entry is the earliest."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[tuple[int, Producer]]:
        return iter(self._by_id.items())

    def get(self, producer_id: int) -> Producer | None:
        return self._by_id.get(producer_id)

    # Judging ------------------------------------------------------------------------------------

    def check(self, header: BatchHeader) -> ProducerBatch | None:
        """The stored batch that this one repeats, None if it is to be stored.

        Raises ProducerFenced for an old epoch, OutOfOrderSequence for a gap, and
        InvalidTransactionState for a batch outside the transaction that its producer is in.
        """
        producer_id, epoch = header.producer_id, header.producer_epoch
        first_sequence = header.base_sequence
        producer = self._by_id.get(producer_id)
        if producer is None:
            return None  # Never seen here, or forgotten: whatever it begins with is accepted.
        if epoch < producer.epoch:
            raise ProducerFenced(producer_id, epoch, producer.epoch)
        if producer.transaction_start is not None and not header.is_transactional:
            raise InvalidTransactionState(producer_id, "its transaction has not ended")
        if epoch > producer.epoch:
            if first_sequence != 0:
                raise OutOfOrderSequence(producer_id, first_sequence, 0)
            return None
        last_sequence = sequence_after(first_sequence, header.record_count - 1)
        for batch in producer.batches:
            if (batch.first_sequence, batch.last_sequence) == (first_sequence, last_sequence):
                return batch
        if producer.batches:
            expected = sequence_after(producer.batches[-1].last_sequence, 1)
            if first_sequence != expected:
                raise OutOfOrderSequence(producer_id, first_sequence, expected)
        return None

    def first_open_transaction(self) -> int | None:
        """Offset of the earliest record whose transaction has not ended."""
        return next(iter(self._open.values()), None)

    def open_transactions(self) -> tuple[OpenTransaction, ...]:
        return tuple(
            OpenTransaction(producer_id, self._by_id[producer_id].epoch, start)
            for producer_id, start in self._open.items()
        )

    # What was stored ----------------------------------------------------------------------------

    def note(self, header: BatchHeader, base_offset: int, batch: Buffer, now_ms: int) -> None:
        """A producer's batch or marker was stored at the end of the log."""
        if header.is_control:
            self.note_marker(
                header.producer_id,
                header.producer_epoch,
                base_offset,
                now_ms,
                is_commit=is_commit_marker(batch),
            )
            return
        producer_id = header.producer_id
        producer = self._producer(producer_id, header.producer_epoch, now_ms)
        if header.producer_epoch == producer.epoch:
            # In a scan of what was there before, a newer epoch may be known already.
            producer.batches.append(
                ProducerBatch(
                    header.base_sequence,
                    sequence_after(header.base_sequence, header.last_offset_delta),
                    base_offset,
                    base_offset + header.last_offset_delta,
                )
            )
        if header.is_transactional and producer.transaction_start is None:
            producer.transaction_start = self._open[producer_id] = base_offset

    def note_marker(
        self, producer_id: int, epoch: int, offset: int, now_ms: int, *, is_commit: bool
    ) -> None:
        """A transaction's end was stored; one of which nothing is here leaves no trace."""
        producer = self._producer(producer_id, epoch, now_ms)
        start, producer.transaction_start = producer.transaction_start, None
        self._open.pop(producer_id, None)
        if start is None or is_commit:
            return
        first_open = self.first_open_transaction()
        entry = AbortedTransaction(
            producer_id, start, offset, offset + 1 if first_open is None else first_open
        )
        self.aborted.add(entry)
        self._new_aborted.append(entry)

    def store_changes(self, sink: ProducerSink) -> None:
        """Hands over what has changed since the last time."""
        if self._touched:
            for producer_id in self._touched:
                sink.set_producer(producer_id, self._by_id[producer_id].pack())
            self._touched.clear()
        if self._new_aborted:
            for entry in self._new_aborted:
                sink.set_aborted(entry.last_offset, pack_aborted(entry))
            self._new_aborted.clear()

    # Going back and forgetting ------------------------------------------------------------------

    def rewind(self, end_offset: int, transactions: Iterable[OpenTransaction], now_ms: int) -> bool:
        """Goes back to an offset at which these transactions were open.

        Epochs stay, as a producer that was fenced must remain so. The caller scans the log from
        there and notes the rest again. Returns whether aborted transactions were forgotten.
        """
        for producer_id, producer in self._by_id.items():
            kept = [batch for batch in producer.batches if batch.last_offset < end_offset]
            if len(kept) < len(producer.batches) or producer.transaction_start is not None:
                producer.batches = deque(kept, maxlen=BATCHES_KEPT)
                producer.transaction_start = None
                self._touched.add(producer_id)
        self._open.clear()
        for producer_id, epoch, first_offset in sorted(transactions, key=lambda each: each[2]):
            producer = self._producer(producer_id, epoch, now_ms)
            producer.transaction_start = self._open[producer_id] = first_offset
        return self._forget_aborted(end_offset, OFFSET_END)

    def forget_below(self, start_offset: int) -> bool:
        """Drops aborted transactions that ended below the start of the log; whether any was."""
        return self._forget_aborted(0, start_offset)

    def _forget_aborted(self, start_offset: int, end_offset: int) -> bool:
        kept = self.aborted.without(start_offset, end_offset) if len(self.aborted) else self.aborted
        if len(kept) == len(self.aborted):
            return False
        self.aborted = kept
        self._new_aborted = [
            each for each in self._new_aborted if not start_offset <= each.last_offset < end_offset
        ]
        return True

    @property
    def oldest_ms(self) -> int | None:
        """When the producer that is silent for longest stored something, or earlier; None if there
        is none."""
        return self._oldest_ms if self._by_id else None

    def forget_idle(self, idle_ms: int, now_ms: int) -> list[int]:
        """Drops producers without an open transaction that stored nothing for so long; their ids.

        Nothing may be staged and uncommitted. The next batch of such a producer is accepted
        whatever its sequence, as from one never seen. A producer that was last heard of in the
        future, by a clock that was set back since, counts as heard of now.
        """
        if self._newest_ms > now_ms:
            for producer in self._by_id.values():
                producer.stored_ms = min(producer.stored_ms, now_ms)
            self._newest_ms = now_ms
            self._oldest_ms = min(self._oldest_ms, now_ms)
        before_ms = now_ms - idle_ms
        if self._oldest_ms >= before_ms:
            return []
        idle = [
            producer_id
            for producer_id, producer in self._by_id.items()
            if producer.transaction_start is None and producer.stored_ms < before_ms
        ]
        for producer_id in idle:
            del self._by_id[producer_id]
            self._touched.discard(producer_id)
        self._oldest_ms = min((each.stored_ms for each in self._by_id.values()), default=before_ms)
        return idle

    def _producer(self, producer_id: int, epoch: int, now_ms: int) -> Producer:
        self._touched.add(producer_id)
        self._newest_ms = max(self._newest_ms, now_ms)
        producer = self._by_id.get(producer_id)
        if producer is None:
            producer = self._by_id[producer_id] = Producer(epoch, now_ms)
            self._oldest_ms = min(self._oldest_ms, now_ms)  # A clock may have been set back.
        else:
            producer.stored_ms = now_ms
            if epoch > producer.epoch:
                producer.epoch = epoch
                producer.batches.clear()
        return producer


def pack_aborted(transaction: AbortedTransaction) -> bytes:
    """An aborted transaction as it is stored under its marker's offset."""
    return _ABORTED.pack(
        transaction.producer_id, transaction.first_offset, transaction.stable_offset
    )


def unpack_aborted(last_offset: int, packed: bytes) -> AbortedTransaction:
    """The transaction that is stored so; raises Corruption where there is none."""
    if len(packed) != _ABORTED.size:
        raise Corruption(f"{len(packed)} bytes are no aborted transaction's entry")
    producer_id, first_offset, stable_offset = _ABORTED.unpack(packed)
    return AbortedTransaction(producer_id, first_offset, last_offset, stable_offset)


def newest_producers(
    producers: Iterable[tuple[int, bytes]], count_max: int
) -> tuple[tuple[int, bytes], ...]:
    """Of producers with their packed states, those with an open transaction and the newest of the
    others, at most so many."""

    def order(each: tuple[int, bytes]) -> tuple[bool, int]:
        state = Producer.unpack(each[1])
        last_offset = state.batches[-1].last_offset if state.batches else 0
        return state.transaction_start is None, -last_offset

    return tuple(sorted(producers, key=order)[:count_max])


def sequence_after(sequence: int, steps: int) -> int:
    """Sequence numbers go from 0 to 2**31 - 1 and start over."""
    return (sequence + steps) % _SEQUENCES
