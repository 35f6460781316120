"""Checks one segment: its bytes from first to last, then its checkpoint and its indexes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firnmq.config import Durability
from firnmq.disk import KeyValueStore
from firnmq.disk.files import Buffer, is_blank
from firnmq.disk.preallocation import may_be_preallocated
from firnmq.engines.catalog.segments import Medium, Segment, SegmentGone
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.media.layouts.partition_per_file import FileBytes
from firnmq.engines.shardlog.append import first_expiry, terms_of
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES
from firnmq.engines.verify.deletions import DeletionCheck
from firnmq.engines.verify.findings import FindingKind, Notes
from firnmq.engines.verify.index import (
    ENTRIES_PER_PASS,
    Difference,
    Entry,
    Expected,
    compare,
    stored_entries,
)
from firnmq.engines.verify.producers import ProducerCheck
from firnmq.errors import Corruption
from firnmq.index import (
    Checkpoint,
    IndexBuilder,
    MemorySegmentIndex,
    RocksIndexEntries,
    RocksSegmentIndex,
)
from firnmq.record import (
    BATCH_BYTES_MAX,
    HEADER_BYTES,
    BatchEntry,
    BatchStream,
    Reason,
    Run,
    Stop,
    collect,
    crc32c,
    parse_header,
)
from firnmq.record.batch import ATTRIBUTE_CONTROL, MAGIC

_JUDGED_BYTES = 17
"""A batch's first bytes, up to the one that is the same in all: a bad batch's length is believed
if that byte stands where it says the next one begins."""
_INDEX_KINDS = {
    Difference.MISSING: FindingKind.INDEX_MISSING,
    Difference.EXTRA: FindingKind.INDEX_EXTRA,
    Difference.DIFFERENT: FindingKind.INDEX_DIFFERENT,
}


class _Reached:
    """The running state of a segment at one batch border."""

    __slots__ = ("first_expiry_ms", "max_timestamp", "next_offset", "records_since_point")

    def __init__(self, next_offset: int, builder: IndexBuilder) -> None:
        self.next_offset = next_offset
        self.max_timestamp = builder.max_timestamp
        self.records_since_point = builder.records_since_point
        self.first_expiry_ms = builder.first_expiry_ms


class SegmentCheck:
    """Reads one segment from its first byte to its last and compares it with what is noted."""

    def __init__(
        self,
        spec: ShardSpec,
        segment: Segment,
        kv: KeyValueStore,
        notes: Notes,
        producers: ProducerCheck,
        deletions: DeletionCheck,
        shown_length: int | None = None,
    ) -> None:
        """Of an active segment, `shown_length` bytes are checked if that is given."""
        self._spec = spec
        self._producers = producers
        self._deletions = deletions
        self._segment = segment
        self._meta = segment.meta
        self._where = segment.bytes.where
        self._kv = kv
        self._notes = notes
        self._is_sealed = segment.meta.is_sealed
        self._checkpoint = self._stored_checkpoint()
        self._length = segment.bytes.length() if shown_length is None else shown_length
        self._limit = min(self._length, self._meta.length) if self._is_sealed else self._length
        self._crc_end = self._noted_length()
        self._crc = 0
        self._builder = IndexBuilder()
        self._reached: _Reached | None = None
        self._is_walked = True
        """Every batch so far was good: what the indexes must hold is known."""
        self._gave_up = False
        self._tail_position: int | None = None
        """Where batches end, and all that follows is still blank."""
        self.end_offset = segment.meta.base_offset

    @property
    def is_whole(self) -> bool:
        """Whether all that is noted of the segment was there and good."""
        return self._is_walked and self._length >= self._noted_length()

    def run(self) -> Iterator[int]:
        """Checks everything; yields the number of bytes read, now and then."""
        if not self._check_length():
            return
        expected = Expected()
        yield from self._walk(expected)
        self._check_crc()
        if self._is_sealed:
            self._check_seal()
            if self.is_whole:
                self._producers.end_segment(self._meta)
        self._check_checkpoint()
        if self._is_walked:
            yield from self._check_index(expected)
        self._notes.entry_count += expected.produced_count
        if not self._is_walked:
            # What the damage hides is no reason to doubt what is noted about the shard.
            self.end_offset = max(self.end_offset, self._noted_end_offset())

    def _note(self, kind: FindingKind, message: str, position: int | None = None) -> None:
        self._notes.add(kind, message, self._where, seq=self._meta.seq, position=position)

    # What is noted about the segment ------------------------------------------------------------

    def _stored_checkpoint(self) -> Checkpoint | None:
        index = self._segment.index
        return index.checkpoint() if isinstance(index, RocksSegmentIndex) else None

    def _noted_length(self) -> int:
        """Bytes whose CRC is noted somewhere."""
        if self._is_sealed:
            return self._meta.length
        return 0 if self._checkpoint is None else self._checkpoint.position

    def _noted_end_offset(self) -> int:
        if self._is_sealed:
            return self._meta.end_offset
        return self._meta.base_offset if self._checkpoint is None else self._checkpoint.next_offset

    def _check_length(self) -> bool:
        """Whether there are bytes to read."""
        noted, length = self._noted_length(), self._length
        content = self._segment.bytes
        if noted and isinstance(content, FileBytes) and not Path(self._where).exists():
            self._note(FindingKind.FILE_MISSING, f"is not there; {noted:,} bytes are lost")
            self._is_walked = False
            self.end_offset = self._noted_end_offset()
            return False
        if length < noted:
            text = f"has {length:,} bytes, {noted:,} were written and synced"
            self._note(FindingKind.LENGTH, text, length)
        elif self._is_sealed and length > noted:
            text = f"has {length:,} bytes, {length - noted:,} more than when it was sealed"
            self._note(FindingKind.LENGTH, text, noted)
        return True

    # Bytes and batches --------------------------------------------------------------------------

    def _chunks(self) -> Iterator[Buffer]:
        """The segment's bytes in order, up to what is noted of a sealed one."""
        limit, position = self._limit, 0
        while position < limit:
            try:
                buffers = self._segment.bytes.read(position, min(CHUNK_BYTES, limit - position))
            except SegmentGone:
                buffers = []
            except OSError as error:
                self._note(FindingKind.UNREADABLE, str(error), position)
                self._is_walked = False
                return
            got = sum(map(len, buffers))
            if not got:
                self._note(FindingKind.LENGTH, "nothing can be read from here on", position)
                self._is_walked = False
                return
            for buffer in buffers:
                yield buffer[: limit - position]
                position += len(buffer)

    def _walk(self, expected: Expected) -> Iterator[int]:
        meta = self._meta
        stream = BatchStream(
            offset=meta.base_offset, end_offset=meta.end_offset, has_gaps=meta.has_gaps
        )
        position = 0
        for buffer in self._chunks():
            self._notes.checked_bytes += len(buffer)
            self._add_crc(buffer, position)
            position += len(buffer)
            if self._gave_up:
                self._judge_rest(buffer)
            else:
                self._take_batches(stream, buffer, expected)
                if self._gave_up:
                    self._judge_rest(stream.rest())
            yield len(buffer)
        if not self._gave_up and stream.position < position:
            self._tail_position = stream.position
            self._judge_rest(stream.rest())
        if self._length == 0:
            self._mark(0)

    def _take_batches(self, stream: BatchStream, piece: Buffer, expected: Expected) -> None:
        """Takes whole batches, and steps over bad ones as long as it can be told where they end."""
        while True:
            run = stream.feed(piece)
            piece = b""
            if run is not None:
                for entry in run.entries:
                    self._mark(run.position + entry.position)
                    self._take(run, entry, expected)
            self._mark(stream.position)
            stop = stream.stop
            if stop is None or stop.reason is Reason.INCOMPLETE:
                return
            if self._is_tail(stream.position):
                self._tail_position = stream.position
                self._gave_up = True
                return
            rest = stream.rest()
            size = parse_header(rest, 0).size_bytes
            wanted = min(size + _JUDGED_BYTES, self._limit - stream.position)
            if len(rest) < wanted <= BATCH_BYTES_MAX:
                stream.needed_bytes = wanted  # What stands behind it tells whether its end is one.
                return
            if not self._step_over(stream, rest, stop):
                return

    def _take(self, run: Run, entry: BatchEntry, expected: Expected) -> None:
        at = run.position + entry.position
        self._notes.batch_count += 1
        self._notes.record_count += entry.record_count
        self.end_offset = entry.last_offset + 1
        batch = run.batch(entry)
        try:
            entries = self._entries_of(batch, entry, at, self._builder)
            if entry.producer_id >= 0:
                self._producers.take(entry, batch)
            elif entry.attributes & ATTRIBUTE_CONTROL:
                self._deletions.take(entry, batch)
        except Corruption as error:
            self._bad_batch(at, error.reason)
            return
        expected.add(entries, is_required=self._checkpoint_covers(entry.base_offset))

    def _entries_of(
        self, batch: memoryview, entry: BatchEntry, at: int, builder: IndexBuilder
    ) -> list[Entry]:
        terms = terms_of(batch, self._spec.config)
        if terms is None:
            collect(batch)  # No index wants its records, but they must still be records.
        sink = RocksIndexEntries(self._spec.uid, self._meta.place)
        builder.add(
            sink,
            position=at,
            base_offset=entry.base_offset,
            record_count=entry.record_count,
            max_timestamp=entry.max_timestamp,
            terms=terms,
            first_expiry_ms=first_expiry(batch, self._spec.config),
        )
        return sink.entries

    def _step_over(self, stream: BatchStream, rest: Buffer, stop: Stop) -> bool:
        """Goes on behind the bad batch that `rest` begins with, if its length can be believed."""
        header = parse_header(rest, 0)
        size = header.size_bytes
        at = stream.position
        is_size_right = at + size == self._limit or (
            size >= HEADER_BYTES
            and size + _JUDGED_BYTES <= len(rest)
            and rest[size + _JUDGED_BYTES - 1] == MAGIC
        )
        if not is_size_right:
            self._bad_batch(at, f"{stop.text}; where the next batch begins cannot be told")
            self._gave_up = True
            return False
        text = f"{stop.text}: the batch says it holds offsets {header.base_offset} to "
        text += f"{header.last_offset}, expected was one from {self.end_offset} on"
        self._bad_batch(at, text)
        if stop.reason is Reason.GAP and self.end_offset < header.base_offset:
            self.end_offset = header.base_offset
        self.end_offset += max(header.last_offset_delta, 0) + 1
        stream.skip(size, self.end_offset)
        return True

    def _bad_batch(self, position: int, reason: str) -> None:
        if self._is_walked:
            reason += " (the segment's indexes are not compared)"
        self._is_walked = False
        self._note(FindingKind.BATCH, reason, position)

    def _judge_rest(self, rest: Buffer) -> None:
        """What follows the last batch of an active segment is blank if it was written ahead."""
        position = self._tail_position
        if position is None:
            return
        size = self._limit - position
        is_synced = self._spec.config.durability is Durability.FSYNC
        may_be_blank = self._is_tail(position) and is_synced and may_be_preallocated(position, size)
        if not (may_be_blank and is_blank(rest)):
            self._bad_end(position, size)
            self._tail_position = None  # Once is enough.

    def _bad_end(self, position: int, size: int) -> None:
        if self._is_tail(position):
            text = (
                f"the last {size:,} bytes are no batch: a write that a crash interrupted, or "
                "damage; the next opening for use removes them"
            )
            self._note(FindingKind.TORN_TAIL, text, position)
        else:
            self._bad_batch(position, f"a batch goes beyond the end, of which {size:,} bytes exist")

    def _is_tail(self, position: int) -> bool:
        """Whether it is beyond what is noted as synced, where a crash may leave anything."""
        return not self._is_sealed and self._is_durable and position >= self._crc_end

    @property
    def _is_durable(self) -> bool:
        return isinstance(self._segment.index, RocksSegmentIndex)

    def _checkpoint_covers(self, base_offset: int) -> bool:
        if self._is_sealed or not self._is_durable:
            return True
        return self._checkpoint is not None and base_offset < self._checkpoint.indexed_upto

    def _add_crc(self, buffer: Buffer, position: int) -> None:
        if position < self._crc_end:
            self._crc = crc32c(memoryview(buffer)[: self._crc_end - position], self._crc)

    def _mark(self, position: int) -> None:
        if self._checkpoint is not None and position == self._checkpoint.position:
            self._reached = _Reached(self.end_offset, self._builder)

    # What was found against what is noted -------------------------------------------------------

    def _check_crc(self) -> None:
        noted = None
        if self._is_sealed:
            noted, when = self._meta.crc, "when it was sealed"
        elif self._checkpoint is not None:
            noted, when = self._checkpoint.crc, f"for its first {self._crc_end:,} bytes"
        if noted is not None and noted != self._crc:
            text = f"the CRC32C of its bytes is {self._crc:08x}, noted {when} was {noted:08x}"
            self._note(FindingKind.SEGMENT_CRC, text)

    def _check_seal(self) -> None:
        meta = self._meta
        if self._gave_up or self._length < meta.length:
            return  # Said already; the rest follows from it.
        if meta.has_gaps:
            self.end_offset = meta.end_offset  # Batches were checked to be below it.
        if self._is_walked and self.end_offset != meta.end_offset:
            text = f"its batches end at offset {self.end_offset}, noted is {meta.end_offset}"
            self._note(FindingKind.CHAIN, text)
        if self._is_walked and self._builder.max_timestamp != meta.max_timestamp:
            newest = self._builder.max_timestamp
            text = f"its newest record is of {newest} ms, noted is {meta.max_timestamp} ms"
            self._note(FindingKind.CHAIN, text)
        if self._is_walked and meta.first_expiry_ms > self._builder.first_expiry_ms:
            first = self._builder.first_expiry_ms
            text = f"a record expires at {first} ms, noted is {meta.first_expiry_ms} ms"
            self._note(FindingKind.CHAIN, text)

    def _check_checkpoint(self) -> None:
        checkpoint = self._checkpoint
        if checkpoint is None:
            is_native = self._meta.medium is not Medium.FILE and not self._meta.has_gaps
            if self._is_sealed and self._is_durable and is_native:
                self._note(FindingKind.CHECKPOINT, "a sealed segment's checkpoint is missing")
            return
        if self._is_sealed and (checkpoint.position, checkpoint.crc) != (
            self._meta.length,
            self._meta.crc,
        ):
            self._note(FindingKind.CHECKPOINT, "the checkpoint is not at the sealed end")
        if not self._is_walked or self._length < checkpoint.position:
            return
        reached = self._reached
        if reached is None:
            text = f"the checkpoint at byte {checkpoint.position:,} is at no batch's border"
            self._note(FindingKind.CHECKPOINT, text, checkpoint.position)
            return
        for name in _Reached.__slots__:
            found, noted = getattr(reached, name), getattr(checkpoint, name)
            # Older checkpoints do not know what expires first; too early does no harm.
            if found != noted and not (name == "first_expiry_ms" and noted < found):
                text = f"{name} is {found} by the data, the checkpoint says {noted}"
                self._note(FindingKind.CHECKPOINT, text, checkpoint.position)
        if checkpoint.indexed_upto > self.end_offset:
            text = (
                f"indexed up to offset {checkpoint.indexed_upto}, the data end at "
                f"{self.end_offset}; the next opening for use rebuilds the index"
            )
            self._note(FindingKind.CHECKPOINT, text)

    # Indexes ------------------------------------------------------------------------------------

    def _check_index(self, expected: Expected) -> Iterator[int]:
        if not expected.is_overfull:
            self._compare(expected)
            return
        part_count = expected.produced_count // ENTRIES_PER_PASS + 1
        for part in range(part_count):
            some = Expected(part, part_count)
            self._produce(some)
            self._compare(some)
            yield 0

    def _produce(self, expected: Expected) -> None:
        """Goes once more through batches that were all found good."""
        builder = IndexBuilder()
        meta = self._meta
        stream = BatchStream(
            offset=meta.base_offset,
            end_offset=meta.end_offset,
            has_gaps=meta.has_gaps,
            verify=False,
        )
        for buffer in self._chunks():
            run = stream.feed(buffer)
            if run is None:
                continue
            for entry in run.entries:
                at = run.position + entry.position
                entries = self._entries_of(run.batch(entry), entry, at, builder)
                covered = self._checkpoint_covers(entry.base_offset)
                expected.add(entries, is_required=covered)

    def _compare(self, expected: Expected) -> None:
        for difference, message in compare(expected, self._stored()):
            self._note(_INDEX_KINDS[difference], message)

    def _stored(self) -> Iterator[Entry]:
        index = self._segment.index
        if isinstance(index, MemorySegmentIndex):
            sink = RocksIndexEntries(self._spec.uid, self._meta.place)
            index.replay(sink)
            return iter(sink.entries)
        return stored_entries(self._kv, self._spec.uid, self._meta.place)


def bytes_to_check(segment: Segment) -> int:
    if not segment.meta.is_local:
        return 0
    if segment.meta.is_sealed:
        return segment.meta.length
    return segment.bytes.length()
