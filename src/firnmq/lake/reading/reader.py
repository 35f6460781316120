"""Reads a split as Arrow batches, from any place that has its segments.

Runs in executors. A thread reads ahead while this one decodes; no record becomes a Python object.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from firnmq.config import TopicConfig
from firnmq.errors import Corruption, FirnError
from firnmq.lake.plans.machine import machine_id
from firnmq.lake.plans.plan import SegmentPlan, Split, StorePlace, Wanted
from firnmq.lake.plans.stores import open_store_at
from firnmq.lake.plans.wire import WireClient
from firnmq.lake.reading.ahead import Ahead
from firnmq.lake.reading.rows import RowMaker, schema_of
from firnmq.lake.reading.runs import (
    Lost,
    PlaceGone,
    Run,
    file_runs,
    hiding,
    leader_runs,
    object_runs,
)
from firnmq.record import Columns, Selection, decode

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 4 * 1024 * 1024
"""About what an Arrow batch has at most; a larger record makes a larger one. Much more than this
would leave the processor's caches, and its memory would be asked of the system each time."""
_DECODED_BYTES_MAX: Final = 32 * 1024 * 1024
"""Of a batch that turns out to be larger. What is left of one that is compressed is decompressed
again for the next Arrow batch."""
_AHEAD: Final = 2
_RECORD_BYTES_GUESS: Final = 256
_ATTEMPTS: Final = 2
"""Bytes from an object store that are not right are fetched once more: they may have been damaged
on the way."""
_OPTIONS: Final = ("tag.headers", "expire.header", "ttl.ms")


class SegmentUnavailable(FirnError):
    """No place that the plan names has the segment any more; make a new plan."""

    def __init__(self, split: Split, segment: SegmentPlan, reasons: Sequence[str]) -> None:
        super().__init__(
            f"offsets {segment.base_offset:,} to {segment.end_offset - 1:,} of {split.topic!r}, "
            f"shard {split.shard}, cannot be had any more: {'; '.join(reasons) or 'no place'}; "
            "make a new plan"
        )
        self.base_offset = segment.base_offset
        self.end_offset = segment.end_offset


def read_split(
    split: Split,
    wanted: Wanted | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, str] | None = None,
    *,
    lost: Lost | None = None,
) -> Iterator[pa.RecordBatch]:
    """The split's wanted rows in the order of offsets, in the types of `schema.RAW`.

    `columns` names those that are wanted, in their order. Batches have rows, up to about 65,536 or
    4 MiB. While they are made the garbage collector rests: nothing here makes cycles, and looking
    for them takes more time than decoding. `lost` is told of offsets that were removed from the log
    since the plan was made; what it raises ends the reading.
    """
    wanted = wanted or Wanted()
    maker = RowMaker(split.shard, schema_of(columns), wanted)
    with _without_collection():
        yield from _Reader(split, wanted, maker, options or {}, lost).batches()


class _Reader:
    def __init__(
        self,
        split: Split,
        wanted: Wanted,
        maker: RowMaker,
        options: Mapping[str, str],
        lost: Lost | None,
    ) -> None:
        self._split = split
        self._maker = maker
        self._options = options
        self._lost = lost
        self._wants_nothing = wanted.keys == () or wanted.tags == ()
        self._min_timestamp_ms = wanted.min_timestamp_ms
        self._selection = _selection(split, wanted)
        self._hides = hiding(split.aborted)
        self._record_bytes = _RECORD_BYTES_GUESS
        """What a record lately took, to make Arrow batches of about the same size."""
        self._at = split.start_offset
        """Everything before it was given out."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        split = self._split
        if self._wants_nothing:
            return
        for segment in split.segments or (_whole(split),):
            self._at = max(self._at, segment.base_offset)
            end = min(split.end_offset, segment.end_offset)
            if self._at < end:
                yield from self._segment(segment, end)

    def _segment(self, segment: SegmentPlan, end: int) -> Iterator[pa.RecordBatch]:
        """From the first place that has it; one that fails half-way is followed by the next."""
        reasons: list[str] = []
        for is_object, open_runs in self._places(segment):
            for attempt in range(_ATTEMPTS):
                try:
                    yield from self._read(open_runs(end), end)
                    return
                except PlaceGone as gone:
                    reasons.append(str(gone))
                    break
                except Corruption:
                    if not is_object or attempt + 1 == _ATTEMPTS:
                        raise
        raise SegmentUnavailable(self._split, segment, reasons)

    def _places(self, segment: SegmentPlan) -> Iterator[tuple[bool, _OpenRuns]]:
        """How to read the segment up to an offset, place by place, and whether it is an object."""
        split = self._split
        if segment.path is not None and split.machine == machine_id():
            yield False, lambda _: file_runs(segment, self._hides)
        if segment.object is not None and split.store is not None:
            place = split.store
            yield (
                True,
                lambda _: object_runs(
                    segment, self._hides, lambda: _store(os.getpid(), place, *_keys(self._options))
                ),
            )
        if split.leader is not None:
            yield False, lambda end: leader_runs(self._client, split, self._at, end, self._lost)

    def _client(self) -> WireClient:
        """The leader first; if it is gone, the bootstrap node knows the new one."""
        known = [self._split.leader, self._options.get("bootstrap")]
        return WireClient.from_options(self._options, bootstrap=",".join(filter(None, known)))

    def _read(self, runs: Iterator[Run], end: int) -> Iterator[pa.RecordBatch]:
        with Ahead(runs, _AHEAD) as ahead:
            for run in ahead:
                yield from self._run(run, end)
                self._at = max(self._at, min(run.next_offset, end))
                if self._at >= end:
                    return

    def _run(self, run: Run, end: int) -> Iterator[pa.RecordBatch]:
        self._at = max(self._at, run.first_offset)
        earliest = self._min_timestamp_ms
        entries = [
            entry
            for entry in run.entries
            if entry.last_offset >= self._at
            and entry.base_offset < end
            and (earliest is None or entry.max_timestamp >= earliest)
        ]
        for group in self._groups(entries):
            yield from self._rows(run, group, end)
            self._at = max(self._at, min(group[-1].last_offset + 1, end))

    def _groups(self, entries: list[Any]) -> Iterator[list[Any]]:
        """Neighbouring batches that make one Arrow batch."""
        first = rows = 0
        for number, entry in enumerate(entries):
            if rows and rows + entry.record_count > self._rows_max:
                yield entries[first:number]
                first, rows = number, 0
            rows += entry.record_count
        if first < len(entries):  # Also without a row: decoding checks the CRC.
            yield entries[first:]

    @property
    def _rows_max(self) -> int:
        return max(min(BATCH_ROWS, BATCH_BYTES // self._record_bytes), 1)

    def _rows(self, run: Run, group: list[Any], end: int) -> Iterator[pa.RecordBatch]:
        maker = self._maker
        wanted = dataclasses.replace(self._selection, start_offset=self._at, end_offset=end)
        if maker.probed:
            group = self._matching(run, group, wanted)
            if not group:
                return
        wanted = dataclasses.replace(
            wanted, columns=maker.decoded, max_records=BATCH_ROWS, max_bytes=_DECODED_BYTES_MAX
        )
        while True:
            columns = _decoded(run, group, wanted)
            if len(columns):
                self._record_bytes = max(columns.encoded_bytes // len(columns), 1)
                rows = maker.rows(columns)
                if rows.num_rows:
                    yield rows
            if not columns.is_limited:
                return
            self._at = columns.next_offset
            wanted = dataclasses.replace(wanted, start_offset=columns.next_offset)

    def _matching(self, run: Run, group: list[Any], wanted: Selection) -> list[Any]:
        """The batches that have something wanted, where only a look at all their keys or tags can
        tell: the rest of their records is decoded for these alone."""
        probe = dataclasses.replace(wanted, columns=self._maker.probed)
        offsets = self._maker.matches(_decoded(run, group, probe))
        last_offsets = [entry.last_offset for entry in group]
        numbers = {bisect_left(last_offsets, offset) for offset in offsets}
        return [group[number] for number in sorted(numbers)]


_OpenRuns = Callable[[int], Iterator[Run]]


def _whole(split: Split) -> SegmentPlan:
    """Stands for a split of which only the leader knows the segments."""
    return SegmentPlan(
        base_offset=split.start_offset, end_offset=split.end_offset, is_sealed=False, length=0
    )


def _selection(split: Split, wanted: Wanted) -> Selection:
    """What the codec drops: whatever is deleted, expired or, where it can tell, not wanted."""
    config = TopicConfig.from_options(
        {name: split.options[name] for name in _OPTIONS if name in split.options}
    )
    keys, tags = wanted.keys or (), wanted.tags or ()
    return Selection(
        tag_headers=tuple(name.encode() for name in config.tag_headers),
        expire_header=config.expire_header_bytes,
        ttl_ms=config.ttl_ms,
        now_ms=time.time_ns() // 1_000_000,
        holes=frozenset(split.holes) or None,
        dead_keys=dict(split.dead_keys) or None,
        key=keys[0] if len(keys) == 1 else None,
        tag=tags[0].encode("utf-8", "surrogateescape") if len(tags) == 1 else None,
        min_timestamp=wanted.min_timestamp_ms,
    )


def _decoded(run: Run, entries: list[Any], wanted: Selection) -> Columns:
    try:
        return decode(_slices(run.buffer, entries), wanted)
    except Corruption as error:
        at = run.position + entries[0].position + (error.position or 0)
        raise Corruption(error.reason, where=run.where, position=at) from error


def _slices(buffer: Any, entries: list[Any]) -> list[memoryview]:
    """The batches' bytes, those that stand one after the other in one piece."""
    view = memoryview(buffer)
    pieces = []
    begin = stop = entries[0].position
    for entry in entries:
        if entry.position != stop:
            pieces.append(view[begin:stop])
            begin = entry.position
        stop = entry.position + entry.size
    pieces.append(view[begin:stop])
    return pieces


def _keys(options: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((k, v) for k, v in options.items() if k.startswith("store.")))


@cache
def _store(pid: int, place: StorePlace, *options: tuple[str, str]) -> ObjectStore:
    """A store for all splits that this process reads: it must not be used after a fork."""
    return open_store_at(place, dict(options))


@contextmanager
def _without_collection() -> Iterator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
