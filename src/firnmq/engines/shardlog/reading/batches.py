"""What is done with batches once they are found: which are whole, live and wanted."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right

from firnmq.engines.catalog.segments import Segment
from firnmq.engines.shardlog.view import View, length_of
from firnmq.errors import Corruption
from firnmq.record import BatchEntry, Columns, Run, Selection, decode, filtered, walk
from firnmq.record.batch import ATTRIBUTE_CONTROL

_OFFSET_BYTES = 8
"""A batch begins with its base offset."""


def whole_batches(
    run: Run, at: int, max_bytes: int, before: list[memoryview]
) -> tuple[list[memoryview], int, int]:
    """A run's batches from an offset on, up to the limit but at least one in all.

    Returns them as one piece, its size, and the offset to go on from.
    """
    entries = run.entries
    first = last = bisect_right(entries, at - 1, key=lambda entry: entry.last_offset)
    size = 0
    while last < len(entries):
        if size + entries[last].size > max_bytes and (before or size):
            break
        size += entries[last].size
        last += 1
    if last == first:
        return [], 0, at
    begin = entries[first].position
    piece = memoryview(run.buffer)[begin : begin + size]
    return [piece], size, entries[last - 1].last_offset + 1


def check_base(view: View, segment: Segment, run: Run) -> None:
    """Checks the first batch's base offset, which no CRC covers, by what comes after the batch."""
    entry = run.entries[0]
    end = run.position + entry.size
    if end < length_of(view, segment):
        following = memoryview(run.buffer)[entry.size : entry.size + _OFFSET_BYTES]
        if len(following) < _OFFSET_BYTES:
            buffers = segment.bytes.read(end, _OFFSET_BYTES)
            if not buffers or len(buffers[0]) < _OFFSET_BYTES:
                raise Corruption("a batch is missing", where=segment.bytes.where, position=end)
            following = memoryview(buffers[0])[:_OFFSET_BYTES]
        expected = int.from_bytes(following, "big")
    elif segment.meta.is_sealed:
        expected = segment.meta.end_offset
    else:
        expected = view.end_offset
    has_gaps = segment.meta.has_gaps
    if entry.last_offset >= expected or (entry.last_offset + 1 != expected and not has_gaps):
        raise Corruption("offset gap", where=segment.bytes.where, position=run.position)


def runs_below(runs: list[Run], end: int) -> list[Run]:
    """The batches below an offset at which one begins."""
    below = []
    for run in runs:
        count = bisect_right(run.entries, end - 1, key=lambda entry: entry.base_offset)
        if count:
            below.append(Run(run.buffer, run.entries[:count], run.position))
    return below


def live_part(
    segment: Segment, batch: memoryview, entry: BatchEntry, wanted: Selection
) -> memoryview | None:
    """A batch without its dead records, None if there is no other.

    A marker stays, since that is how a client knows where a transaction ends.
    """
    if entry.attributes & ATTRIBUTE_CONTROL:
        return batch
    columns = decode_batches(segment, [batch], wanted)
    if not len(columns):
        return None
    if len(columns) == entry.record_count:
        return batch
    return memoryview(filtered(batch, frozenset(columns.offsets)))


def decode_runs(view: View, segment: Segment, runs: list[Run], wanted: Selection) -> Columns:
    """The wanted records, but for those of aborted transactions."""
    batches: list[memoryview] = []
    passed_count = 0
    for run in runs:
        taken = [each for each in run.entries if each.last_offset >= wanted.start_offset]
        kept = _without_control(run, taken)
        if len(view.aborted) and kept:
            first, last = kept[0].base_offset, kept[-1].last_offset
            hidden = view.aborted.hiding(first, last + 1, view.end_offset)
            if hidden is not None:
                kept = [each for each in kept if each not in hidden]
        batches += map(run.batch, kept)
        passed_count += len(taken) - len(kept)
    columns = decode_batches(segment, batches, wanted)
    if columns.is_limited or not passed_count:
        return columns
    # What was passed over at the end has been looked at as well.
    end = runs[-1].entries[-1].last_offset + 1
    reached = max(columns.next_offset, min(end, wanted.end_offset))
    return dataclasses.replace(columns, next_offset=reached)


def _without_control(run: Run, entries: list[BatchEntry]) -> list[BatchEntry]:
    """Batches of a run without control batches, of which there may be thousands.

    A flipped bit could make a control batch of another one. So their CRCs are compared, all at
    once; from the first that is wrong on all batches stay, for the decoder to refuse.
    """
    kept = [each for each in entries if not each.attributes & ATTRIBUTE_CONTROL]
    if len(kept) == len(entries):
        return kept
    first, last = entries[0], entries[-1]
    good_end = int(walk(run.buffer, first.position, last.position + last.size).valid_end)
    if good_end == last.position + last.size:
        return kept
    return [
        each
        for each in entries
        if each.position >= good_end or not each.attributes & ATTRIBUTE_CONTROL
    ]


def decode_batches(segment: Segment, batches: list[memoryview], wanted: Selection) -> Columns:
    try:
        return decode(batches, wanted)
    except Corruption as error:
        raise Corruption(error.reason, where=segment.bytes.where) from error
