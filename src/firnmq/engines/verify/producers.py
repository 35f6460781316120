"""Compares what is kept of producers and of aborted transactions with what the log says of them.

The log's batches are followed from the first that is still there. What they cannot tell is not
judged: batches and transactions that began in segments that are gone, and producers that are not
kept, since those that are silent for long are forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from firnmq.disk import Family, KeyValueStore
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.catalog.transactions import AbortedTransaction, is_commit_marker
from firnmq.engines.shardlog.producers import (
    ABORTED_BYTES,
    BATCHES_KEPT,
    Producer,
    ProducerBatch,
    sequence_after,
    unpack_aborted,
)
from firnmq.engines.verify.findings import FindingKind, Notes
from firnmq.errors import Corruption
from firnmq.index.layout import (
    ABORTED,
    NO_SEGMENT,
    PREFIX,
    PRODUCER,
    U64,
    aborted_range,
    is_lost,
)
from firnmq.record import BatchEntry
from firnmq.record.batch import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, Buffer

_ENTRIES_PER_READ = 4096


class _Start(NamedTuple):
    """Where an open transaction began."""

    offset: int
    is_certain: bool
    """False where it may have begun before the first batch that is still there."""


class _Seen:
    """What the log has of one producer, up to some batch."""

    __slots__ = ("batches", "epoch", "has_ended", "is_marker_last", "start")

    def __init__(self) -> None:
        self.epoch = -1
        """Of its last batch or marker."""
        self.batches: deque[tuple[int, ProducerBatch]] = deque(maxlen=BATCHES_KEPT)
        """The last ones, with their epochs."""
        self.is_marker_last = False
        self.has_ended = False
        """A marker has been seen: whatever began before it is over."""
        self.start: _Start | None = None


class ProducerCheck:
    """Follows the batches of a shard in order; `finish` tells what does not agree with them.

    `upto_offset` is where the entries are at: what the log has beyond is not in them yet. Where
    `is_rewound`, they may speak of more, which the next opening takes back to that offset.
    """

    def __init__(
        self,
        spec: ShardSpec,
        kv: KeyValueStore,
        notes: Notes,
        *,
        first_offset: int,
        start_offset: int,
        upto_offset: int,
        is_rewound: bool,
    ) -> None:
        self._spec = spec
        self._kv = kv
        self._notes = notes
        self._first_offset = first_offset
        """From here on every batch is still there; nothing is known of what was before."""
        self._start_offset = start_offset
        self._upto_offset = upto_offset
        self._is_rewound = is_rewound
        self._seen: dict[int, _Seen] = {}
        self._aborted: dict[int, AbortedTransaction] = {}
        """By the offset of the marker; those whose beginning is certain."""
        self._doubtful: dict[int, int] = {}
        """Abort markers of producers whose transactions may have begun earlier: by offset, ids."""
        self._lost: set[bytes] = set()
        """Keys of transactions that end, without a marker, where a segment ends."""

    def take(self, entry: BatchEntry, batch: Buffer) -> None:
        """The next batch of the log that has a producer."""
        if not self._first_offset <= entry.base_offset < self._upto_offset:
            return
        seen = self._seen.setdefault(entry.producer_id, _Seen())
        seen.epoch = entry.producer_epoch
        if entry.attributes & ATTRIBUTE_CONTROL:
            self._take_marker(seen, entry.producer_id, entry.base_offset, batch)
            return
        seen.is_marker_last = False
        length = entry.last_offset - entry.base_offset
        last_sequence = sequence_after(entry.base_sequence, length)
        known = ProducerBatch(
            entry.base_sequence, last_sequence, entry.base_offset, entry.last_offset
        )
        seen.batches.append((entry.producer_epoch, known))
        if entry.attributes & ATTRIBUTE_TRANSACTIONAL and seen.start is None:
            is_certain = seen.has_ended or self._first_offset == 0
            seen.start = _Start(entry.base_offset, is_certain)

    def end_segment(self, meta: SegmentMeta) -> None:
        """A sealed segment ends here: its description must name what is open."""
        noted = {each[0]: each[2] for each in meta.transactions}
        if meta.end_offset <= self._first_offset:
            self._seen.clear()
        for producer_id, seen in self._seen.items():
            start = noted.pop(producer_id, None)
            found = seen.start
            if self._is_start(start, seen):
                if start is not None:
                    seen.start = _Start(start, is_certain=True)
                continue
            said = "none" if start is None else f"one since offset {start}"
            by_log = "none is" if found is None else f"one since offset {found.offset} is"
            text = f"producer {producer_id}: by the log {by_log} open, the description says {said}"
            self._add(FindingKind.TRANSACTION, text, seq=meta.seq)
        for producer_id, start in noted.items():
            if start >= self._first_offset:
                text = f"producer {producer_id}: nothing of a transaction since offset {start}"
                self._add(FindingKind.TRANSACTION, f"{text} is in the log", seq=meta.seq)
            else:
                self._seen[producer_id] = seen = _Seen()
                seen.start = _Start(start, is_certain=True)
        self._end_lost(meta)

    def finish(self, *, has_producers: bool) -> None:
        """Compares what is stored; `has_producers` is False where producers are kept in memory
        only, and aborted transactions in part."""
        producers: dict[int, Producer] = {}
        aborted: dict[int, AbortedTransaction] = {}
        for key, value in self._entries():
            try:
                kind, number = _read_key(key)
                if kind == ABORTED and is_lost(key):
                    self._check_lost(key, number)
                elif kind == PRODUCER:
                    producers[number] = Producer.unpack(value)
                else:
                    aborted[number] = unpack_aborted(number, value)
            except Corruption as error:
                self._add(FindingKind.PRODUCER, f"{error.reason}: key {key.hex()}")
        if has_producers:
            self._check_producers(producers)
        self._check_aborted(aborted, may_be_missing=not has_producers)

    # The log ------------------------------------------------------------------------------------

    def _end_lost(self, meta: SegmentMeta) -> None:
        """Ends the transactions whose rest was lost with a memory after this segment."""
        end = meta.end_offset
        for key, value in self._kv.items(
            Family.INDEX, *aborted_range(self._spec.uid, end - 1, end)
        ):
            if not is_lost(key) or len(value) != ABORTED_BYTES:
                continue  # What is malformed is told at the end.
            self._lost.add(key)
            entry = unpack_aborted(end - 1, value)
            seen = self._seen.get(entry.producer_id)
            if seen is None or seen.start is None or seen.start.offset != entry.first_offset:
                text = f"producer {entry.producer_id}: a transaction since offset "
                text += f"{entry.first_offset} is kept as lost, by the log none is open"
                self._add(FindingKind.TRANSACTION, text, seq=meta.seq)
            else:
                seen.start, seen.has_ended = None, True

    def _take_marker(self, seen: _Seen, producer_id: int, offset: int, batch: Buffer) -> None:
        start, seen.start = seen.start, None
        is_certain = start.is_certain if start is not None else seen.has_ended
        seen.is_marker_last = seen.has_ended = True
        if is_commit_marker(batch):
            return
        if not is_certain and self._first_offset > 0:
            self._doubtful[offset] = producer_id
        elif start is not None:
            opened = (each.start.offset for each in self._seen.values() if each.start is not None)
            stable = min(opened, default=offset + 1)
            self._aborted[offset] = AbortedTransaction(producer_id, start.offset, offset, stable)

    def _is_start(self, stored: int | None, seen: _Seen) -> bool:
        """Whether a transaction may have begun where something stored says, or none be open."""
        found = seen.start
        if found is not None and found.offset == stored:
            return True
        if stored is None:
            return found is None
        is_certain = seen.has_ended if found is None else found.is_certain
        return stored < self._first_offset and not is_certain

    # What is stored -----------------------------------------------------------------------------

    def _entries(self) -> Iterator[tuple[bytes, bytes]]:
        uid = self._spec.uid
        lower = PREFIX.pack(uid, NO_SEGMENT, PRODUCER)
        upper = PREFIX.pack(uid, NO_SEGMENT, ABORTED + 1)
        while page := self._kv.items(Family.INDEX, lower, upper, _ENTRIES_PER_READ):
            yield from page
            lower = page[-1][0] + b"\x00"

    def _check_producers(self, stored: Mapping[int, Producer]) -> None:
        for producer_id, producer in stored.items():
            seen = self._seen.get(producer_id) or _Seen()
            for text in self._differences(producer, seen):
                self._add(FindingKind.PRODUCER, f"producer {producer_id}: {text}")
        for producer_id, seen in self._seen.items():
            if seen.start is not None and producer_id not in stored and not self._is_rewound:
                text = f"producer {producer_id}: is not kept, and its transaction since offset "
                self._add(FindingKind.PRODUCER, f"{text}{seen.start.offset} is open")

    def _differences(self, producer: Producer, seen: _Seen) -> Iterator[str]:
        if producer.epoch < seen.epoch:
            yield f"epoch {producer.epoch} is kept, its last batch or marker has {seen.epoch}"
        start = producer.transaction_start
        if not (self._is_rewound or self._is_start(start, seen)):
            kept = "no transaction" if start is None else f"a transaction since offset {start}"
            found = "none" if seen.start is None else f"one since offset {seen.start.offset}"
            yield f"{kept} is kept as open, by the log it is {found}"
        offsets = [batch.base_offset for batch in producer.batches]
        if offsets != sorted(set(offsets)):
            yield f"its batches are kept in the order {offsets}"
        kept_batches = [each for each in producer.batches if each.base_offset >= self._first_offset]
        found_batches = [each for epoch, each in seen.batches if epoch == producer.epoch]
        if self._is_rewound:
            kept_batches = [each for each in kept_batches if each.last_offset < self._upto_offset]
        elif found_batches and not kept_batches and not seen.is_marker_last:
            yield f"its last batch, at offset {found_batches[-1].base_offset}, is not kept"
        if kept_batches != found_batches[len(found_batches) - len(kept_batches) :]:
            yield (
                f"the batches {_shown(kept_batches)} are kept with epoch {producer.epoch}, "
                f"the log's last are {_shown(found_batches)}"
            )

    def _check_aborted(
        self, stored: Mapping[int, AbortedTransaction], *, may_be_missing: bool
    ) -> None:
        for offset, entry in stored.items():
            is_ahead = offset >= self._upto_offset and (may_be_missing or self._is_rewound)
            if offset < self._first_offset or is_ahead:
                continue
            for text in self._abort_differences(entry):
                self._add(FindingKind.TRANSACTION, f"abort marker at offset {offset}: {text}")
        for offset, found in self._aborted.items():
            if offset not in stored and offset >= self._start_offset and not may_be_missing:
                text = (
                    f"abort marker at offset {offset}: that it ends the transaction of producer "
                    f"{found.producer_id} since offset {found.first_offset} is not kept"
                )
                self._add(FindingKind.TRANSACTION, text)

    def _check_lost(self, key: bytes, offset: int) -> None:
        if key not in self._lost and offset >= self._first_offset:
            text = f"a transaction is kept as lost at offset {offset}, where no segment ends"
            self._add(FindingKind.TRANSACTION, text)

    def _abort_differences(self, entry: AbortedTransaction) -> Iterator[str]:
        """A transaction that began before the first batch may be open at any later abort too: a
        stable offset below that is as good as any."""
        offset = entry.last_offset
        found = self._aborted.get(offset)
        if found is None:
            producer_id = self._doubtful.get(offset)
            if producer_id is None:
                yield "is kept, the log has none there that ends a transaction"
            elif producer_id != entry.producer_id:
                yield f"producer {entry.producer_id} is kept, the marker is of {producer_id}"
            elif entry.first_offset >= offset:
                yield f"a beginning at offset {entry.first_offset} is kept, after its end"
            return
        for name in ("producer_id", "first_offset"):
            kept, right = getattr(entry, name), getattr(found, name)
            if kept != right:
                yield f"{name} {kept} is kept, by the log it is {right}"
        if entry.stable_offset not in (found.stable_offset, *self._early(entry.stable_offset)):
            yield (
                f"stable_offset {entry.stable_offset} is kept, by the log it is "
                f"{found.stable_offset}"
            )

    def _early(self, offset: int) -> tuple[int, ...]:
        return (offset,) if 0 <= offset < self._first_offset else ()

    def _add(self, kind: FindingKind, message: str, *, seq: int | None = None) -> None:
        place = "state" if seq is not None else "producers"
        self._notes.add(kind, message, f"{place} of {self._spec.name}", seq=seq)


def _read_key(key: bytes) -> tuple[int, int]:
    kind = key[PREFIX.size - 1]
    if len(key) != PREFIX.size + U64.size and not (kind == ABORTED and is_lost(key)):
        raise Corruption("no producer and no marker has such a key")
    return kind, U64.unpack_from(key, PREFIX.size)[0]


def _shown(batches: list[ProducerBatch]) -> str:
    shown = ", ".join(
        f"{each.first_sequence}–{each.last_sequence} at offsets {each.base_offset}–"
        f"{each.last_offset}"
        for each in batches
    )
    return f"[{shown}]"
