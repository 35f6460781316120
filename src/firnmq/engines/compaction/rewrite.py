"""Compaction of a log: of each key's records in sealed segments only the newest stays.

A pass notes, for a stretch of offsets that were not compacted yet, the newest offset of each key,
and then goes through all segments up to the end of that stretch, the oldest first, and leaves out
what is older. A segment is rewritten beside itself, with its indexes, and the new one replaces it
by one change of its description. The log's lock is held for that change only.

The notes are bounded: where there are more keys than they may hold, the stretch ends earlier and
another follows. A key of less than 16 bytes is noted as it is, a longer one as a hash of 16 bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator
from hashlib import blake2b
from typing import NamedTuple

from firnmq.config import TopicConfig
from firnmq.disk.files import Buffer
from firnmq.engines.api import CompactionCounts
from firnmq.engines.catalog.segments import Segment, SegmentCopy, SegmentGone, SegmentMeta
from firnmq.engines.catalog.transactions import HiddenBatches, is_commit_marker
from firnmq.engines.compaction.plan import cleanable, is_due, may_drop_tombstones, may_join
from firnmq.engines.shardlog.append import first_expiry, terms_of
from firnmq.engines.shardlog.changes import Drop, clean_up, drops_of, remove_unlocked
from firnmq.engines.shardlog.log import STORAGE_ERRORS, ShardLog
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.shardlog.rolling.steps import unchanging
from firnmq.errors import Corruption, StorageFailed
from firnmq.index import IndexBuilder, Point
from firnmq.record import (
    BatchEntry,
    Columns,
    Run,
    Selection,
    crc32c,
    decode,
    filtered,
    parse_header,
)
from firnmq.record.batch import ATTRIBUTE_CONTROL
from firnmq.record.columns import is_set

NOTE_BYTES = 192
"""What one noted key takes, generously: a dictionary's entry, a bytes object and a number."""
_HASH_BYTES = 16


class CompactionPass:
    """One pass over one log, done in steps so that its caller can stop or go on later."""

    def __init__(
        self, log: ShardLog, now_ms: int, *, memory_bytes: int, counts: CompactionCounts
    ) -> None:
        self._log = log
        self._config = log.spec.config
        self._clock = log.backend.clock
        self._now_ms = now_ms
        """When the pass began, which may be long ago."""
        self._keys_max = max(memory_bytes // NOTE_BYTES, 1)
        self._counts = counts
        self._newest: dict[bytes, int] = {}
        """Keys of the present stretch, each with the offset of its newest record."""
        self._view = log.view
        self._last_batches: frozenset[int] = frozenset()
        """Each producer's last batch. By these its state could be told from the log alone, so
        they stay, empty if need be."""
        self._live = Selection()
        """What is neither deleted nor expired."""

    def _age_ms(self, then_ms: int) -> int:
        """How old a stored time was when the pass began."""
        return self._clock.age_ms(then_ms, self._now_ms)

    def steps(self) -> Generator[int, None, None]:
        """Does the work; yields the number of bytes read, every now and then."""
        metas = [segment.meta for segment in self._view.segments]
        chosen = cleanable(metas, self._config, self._view.stable_offset, self._age_ms)
        if not is_due(chosen, self._config, self._age_ms):
            return
        self._counts.pass_count += 1
        self._prepare()
        end = chosen[-1].end_offset
        at = next((meta.base_offset for meta in chosen if not meta.is_compacted), end)
        try:
            while True:
                reached = yield from self._note_newest(at, end)
                yield from self._compact(reached, end)
                at = reached
                if at >= end:
                    return
        except (_Abandoned, SegmentGone):
            return  # The next pass begins with what is there then.

    def _prepare(self) -> None:
        log, config = self._log, self._config
        with log.lock:
            self._last_batches = frozenset(
                producer.batches[-1].base_offset
                for _, producer in log.producers
                if producer.batches
            )
        self._live = Selection(
            start_offset=self._view.start_offset,
            expire_header=config.expire_header_bytes,
            ttl_ms=config.ttl_ms,
            now_ms=self._now_ms,
            holes=log.deletions.offsets or None,
            dead_keys=log.deletions.keys or None,
            columns=frozenset({"key", "value"}),
        )

    # Which records are the newest -----------------------------------------------------------------

    def _note_newest(self, start: int, end: int) -> Generator[int, None, int]:
        """Notes keys from an offset on; returns how far that was possible."""
        newest = self._newest
        newest.clear()
        wanted = dataclasses.replace(self._live, columns=frozenset({"key"}))
        for segment in self._segments(start, end):
            hidden = self._hidden(segment)
            for run in self._runs(segment):
                for entry in run.entries:
                    if entry.last_offset < start or _is_passed_over(entry, hidden):
                        continue
                    if newest and len(newest) + entry.record_count > self._keys_max:
                        return int(entry.base_offset)
                    columns = _decode(segment, run.batch(entry), wanted)
                    assert columns.keys is not None
                    for key, offset in zip(columns.keys.entries(), columns.offsets, strict=True):
                        if key is not None:
                            newest[_note(key)] = offset
                yield len(run.buffer)
        return end

    # Which segments are rewritten -----------------------------------------------------------------

    def _segments(self, start: int, end: int) -> list[Segment]:
        """The log's segments with offsets in [start, end), as they are now."""
        return [
            segment
            for segment in self._log.view.segments
            if segment.meta.base_offset < end and segment.meta.end_offset > start
        ]

    def _compact(self, reached: int, end: int) -> Generator[int, None, None]:
        """Goes through all segments below `reached`, up to which all is noted."""
        segments = self._segments(0, reached)
        while segments:
            first = segments[0]
            following = segments[1:] if reached == end else []
            is_small = bool(following) and self._fits(first.meta.length, first, following[0])
            if not is_small:
                tombstone_count = yield from self._tombstones_if_all_stays(first)
                if tombstone_count is not None:
                    self._leave(first, reached, tombstone_count)
                    del segments[0]
                    continue
            count = yield from self._rewrite(first, following, reached)
            del segments[:count]

    def _fits(self, length: int, before: Segment, after: Segment) -> bool:
        """Whether a segment may be added to what is `length` bytes and ends with `before`."""
        config = self._config
        return length + after.meta.length <= config.segment_bytes_max and may_join(
            before.meta, after.meta, config, self._age_ms
        )

    def _leave(self, segment: Segment, reached: int, tombstone_count: int) -> None:
        """Leaves the segment's bytes alone and notes that they are compacted."""
        meta = segment.meta
        if meta.is_compacted or meta.end_offset > reached:
            return
        meta = meta.become_compacted(
            compacted_ms=self._clock.now_ms(), tombstone_count=tombstone_count
        )
        self._switch([segment], Segment(meta, segment.bytes, segment.index))

    def _tombstones_if_all_stays(self, segment: Segment) -> Generator[int, None, int | None]:
        """The number of tombstones; None as soon as a record is found that has to go."""
        judge = self._judge(segment)
        count = 0
        for run in self._runs(segment):
            for entry in run.entries:
                kept = judge.kept(run.batch(entry), entry)
                if kept is None or kept.record_count != entry.record_count:
                    return None
                count += kept.tombstone_count
            yield len(run.buffer)
        return count

    def _rewrite(
        self, first: Segment, following: list[Segment], reached: int
    ) -> Generator[int, None, int]:
        """Rewrites a segment, and those that follow as long as they fit in; their number."""
        log = self._log
        with unchanging(log):
            clean_up(log)
            if log.leftovers:
                raise _Abandoned  # One of them may be in the place that is written next.
        # What another node holds is rewritten here, and is not needed there any more.
        target = first.meta.become_compacted(
            slot=1 - first.meta.slot,
            has_gaps=True,
            is_local=True,
            holders=log.backend.state.own_holders,
        )
        copy = log.backend.new_copy(log.spec, target)
        group: list[Segment] = []
        try:
            writer = _Writer(copy, self._config)
            for segment in [first, *following]:
                if group and not self._fits(writer.length, group[-1], segment):
                    break
                group.append(segment)
                judge = self._judge(segment)
                for run in self._runs(segment):
                    for entry in run.entries:
                        writer.take(judge.kept(run.batch(entry), entry), entry)
                    writer.flush()
                    yield len(run.buffer)
            new = writer.finish(self._joined(target, group, reached))
            yield 0
        except BaseException:
            remove_unlocked(log, [Drop(copy.drop)])
            raise
        try:
            self._switch(group, new)
        except (_Abandoned, NotReplaced):
            remove_unlocked(log, [Drop(copy.drop)])
            raise
        self._count(writer, group, new)
        remove_unlocked(log, drops_of(log, group, [each.meta.seq for each in group[1:]]))
        return len(group)

    def _joined(self, target: SegmentMeta, group: list[Segment], reached: int) -> SegmentMeta:
        first, last = group[0].meta, group[-1].meta
        compacted_ms = first.compacted_ms
        if len(group) > 1 or not first.is_compacted:
            # There may be more to go in what is not noted yet.
            compacted_ms = self._clock.now_ms() if last.end_offset <= reached else -1
        return dataclasses.replace(
            target,
            end_offset=last.end_offset,
            sealed_ms=last.sealed_ms,
            transactions=last.transactions,
            compacted_ms=compacted_ms,
        )

    def _switch(self, old: list[Segment], new: Segment) -> None:
        """Makes the new segment part of the log. If that fails with an unknown outcome, the log
        closes, to be reopened from disk; it stays open if certainly nothing has changed."""
        log = self._log
        with unchanging(log):
            if log.refusal is not None or not all(each in log.segments for each in old):
                raise _Abandoned
            try:
                log.replace_sealed(old, new)
            except NotReplaced:
                raise
            except STORAGE_ERRORS as error:
                raise log.fail(error) from error

    def _count(self, writer: _Writer, group: list[Segment], new: Segment) -> None:
        counts = self._counts
        counts.records_in += writer.records_in
        counts.records_out += writer.records_out
        counts.bytes_in += sum(segment.meta.length for segment in group)
        counts.bytes_out += new.meta.length

    # Reading --------------------------------------------------------------------------------------

    def _runs(self, segment: Segment) -> Iterator[Run]:
        """The segment's batches, checked, as long as the log goes on."""
        meta = segment.meta
        scan = SegmentScan(segment, Point(meta.base_offset, 0), meta.length, verify=True)
        while not scan.is_done:
            self._check_going_on()
            for run in scan.read(CHUNK_BYTES):
                self._check_going_on()  # Before more is written of a shard that may be gone.
                yield run

    def _check_going_on(self) -> None:
        if self._log.refusal is not None:
            raise _Abandoned

    def _hidden(self, segment: Segment) -> HiddenBatches | None:
        return self._view.aborted.hiding(segment.meta.base_offset, segment.meta.end_offset)

    def _judge(self, segment: Segment) -> _Judge:
        return _Judge(
            segment,
            newest=self._newest,
            live=self._live,
            hidden=self._hidden(segment),
            last_batches=self._last_batches,
            drops_tombstones=may_drop_tombstones(segment.meta, self._config, self._age_ms),
        )


class NotReplaced(StorageFailed):
    """A segment could not be put in the place of another; nothing has changed, the log goes on."""


class _Abandoned(Exception):
    """What was being compacted is no longer part of the log, or the log takes no changes."""


class _Kept(NamedTuple):
    """What stays of a batch."""

    batch: Buffer
    record_count: int
    tombstone_count: int


class _Judge:
    """Says what stays of the batches of one segment."""

    def __init__(
        self,
        segment: Segment,
        *,
        newest: dict[bytes, int],
        live: Selection,
        hidden: HiddenBatches | None,
        last_batches: frozenset[int],
        drops_tombstones: bool,
    ) -> None:
        self._segment = segment
        self._newest = newest
        self._live = live
        self._hidden = hidden
        self._last_batches = last_batches
        self._drops_tombstones = drops_tombstones

    def kept(self, batch: Buffer, entry: BatchEntry) -> _Kept | None:
        """The batch as it is if all of it stays; None if nothing does.

        A marker stays if it ends an aborted transaction: clients that are told of the transaction
        look for it. Clients do not look for one that ends a committed transaction. Entries of
        deletions stay: they have to outlive what they delete.
        """
        if entry.attributes & ATTRIBUTE_CONTROL:
            return None if is_commit_marker(batch) else _Kept(batch, entry.record_count, 0)
        offsets: list[int] = []
        tombstone_count = 0
        if not _is_passed_over(entry, self._hidden):
            offsets, tombstone_count = self._wanted(_decode(self._segment, batch, self._live))
        if not offsets and entry.base_offset not in self._last_batches:
            return None
        if len(offsets) == entry.record_count:
            return _Kept(batch, len(offsets), tombstone_count)
        return _Kept(filtered(batch, frozenset(offsets)), len(offsets), tombstone_count)

    def _wanted(self, columns: Columns) -> tuple[list[int], int]:
        """Offsets of the records that stay, and how many of these are tombstones."""
        keys, values, newest = columns.keys, columns.values, self._newest
        assert keys is not None
        assert values is not None
        wanted: list[int] = []
        tombstone_count = 0
        for number, (key, offset) in enumerate(zip(keys.entries(), columns.offsets, strict=True)):
            if key is None or newest.get(_note(key), -1) > offset:
                continue
            if values.null_count and not is_set(values.validity, number):
                if self._drops_tombstones:
                    continue
                tombstone_count += 1
            wanted.append(offset)
        return wanted, tombstone_count


class _Writer:
    """Writes what stays, and gathers what the new segment's description needs."""

    def __init__(self, copy: SegmentCopy, config: TopicConfig) -> None:
        self._copy = copy
        self._config = config
        self._builder = IndexBuilder()
        self.length = 0
        self._crc = 0
        self._tombstone_count = 0
        self._gathered: list[Buffer] = []
        self.records_in = 0
        self.records_out = 0

    def take(self, kept: _Kept | None, entry: BatchEntry) -> None:
        self.records_in += entry.record_count
        if kept is None:
            return
        batch = kept.batch
        header = parse_header(batch)
        self._builder.add(
            self._copy.sink,
            position=self.length,
            base_offset=header.base_offset,
            record_count=header.record_count,
            max_timestamp=header.max_timestamp,
            terms=terms_of(batch, self._config),
            first_expiry_ms=first_expiry(batch, self._config),
        )
        self._crc = crc32c(batch, self._crc)
        self.length += len(batch)
        self._tombstone_count += kept.tombstone_count
        self._gathered.append(batch)
        self.records_out += header.record_count

    def flush(self) -> None:
        gathered, self._gathered = self._gathered, []
        self._copy.append(gathered)

    def finish(self, target: SegmentMeta) -> Segment:
        """The new segment, durable where its medium is."""
        return self._copy.finish(
            dataclasses.replace(
                target,
                length=self.length,
                crc=self._crc,
                max_timestamp=self._builder.max_timestamp,
                first_expiry_ms=self._builder.first_expiry_ms,
                tombstone_count=self._tombstone_count,
            )
        )


def _is_passed_over(entry: BatchEntry, hidden: HiddenBatches | None) -> bool:
    """Whether a batch's records do not count: a marker's, or those of an aborted transaction."""
    return bool(entry.attributes & ATTRIBUTE_CONTROL) or (hidden is not None and entry in hidden)


def _note(key: bytes) -> bytes:
    """What stands for a key in the notes."""
    if len(key) < _HASH_BYTES:
        return key
    return blake2b(key, digest_size=_HASH_BYTES).digest()


def _decode(segment: Segment, batch: Buffer, wanted: Selection) -> Columns:
    """A batch's wanted records; its CRC was checked when it was read."""
    try:
        return decode([batch], wanted, verify=False)
    except Corruption as error:
        raise Corruption(error.reason, where=segment.bytes.where) from error
