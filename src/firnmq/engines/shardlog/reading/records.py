"""The four kinds of read over a log: by offset, by key, by tag, by time."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TypeVar

from firnmq.engines.api import Page, RawPage, Survey
from firnmq.engines.catalog.segments import Segment, SegmentGone
from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.reading.batches import (
    check_base,
    decode_batches,
    decode_runs,
    live_part,
    runs_below,
    whole_batches,
)
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, CHUNK_BYTES_MIN, SegmentScan
from firnmq.engines.shardlog.reading.survey import survey_of
from firnmq.engines.shardlog.view import View, length_of, may_expire, segment_number
from firnmq.errors import (
    Corruption,
    IndexDisabled,
    InvalidArgument,
    KeyNotFound,
    OffsetOutOfRange,
    TimedOut,
)
from firnmq.index import Point
from firnmq.record import (
    Columns,
    Run,
    Selection,
    empty_batch,
    parse_header,
)
from firnmq.record.selection import ColumnName

HINTS_MAX = 32
_ATTEMPTS = 8
"""How often a read starts over because what it was reading was removed or truncated."""
_ATTEMPTS_COLD = 64
"""The same of a log of which a part is only in the object store."""
_RECORD_BYTES_EXPECTED = 4096
"""A read of few records begins with this much for each, so that one record costs no megabyte."""
_HISTORY_BYTES = 64 * CHUNK_BYTES
"""What a call that looks for all records of a key reads at most, so that it ends soon."""
_OFFSETS_PER_BATCH_MAX = 2**31
"""A batch says in 32 bits how far its last offset is from its first."""
_NO_COLUMNS: frozenset[ColumnName] = frozenset()
T = TypeVar("T")


class NotPublished(Exception):
    """The index is a moment ahead of the view: it will be published at once."""


class ColdNeeded(Exception):
    """The answer may be in a segment that is only in the object store, which was not wanted."""


class LogReader:
    """Reads one log as it is now. Cheap to make; not for sharing between threads."""

    def __init__(self, log: ShardLog, now_ms: int) -> None:
        self._has_fetched_again = False
        self._log = log
        self._now_ms = now_ms
        self._look()

    # By offset ----------------------------------------------------------------------------------

    def by_offset(self, offset: int, max_records: int, max_bytes: int) -> Page:
        """Whole records from the offset on, at least one if there is one."""
        _check_limits(max_records, max_bytes)
        return self._steadily(lambda view: self._by_offset(view, offset, max_records, max_bytes))

    def raw(self, offset: int, max_bytes: int, *, committed: bool = False) -> RawPage:
        """Whole batches, the first one holding the offset; unchecked, as they are stored.

        Where records were deleted or have expired the batches are rewritten without them; if
        nothing is left up to the end, an empty batch takes the reader there. If only what is
        committed is wanted, batches end where a transaction is open, and the page tells which of
        them were aborted.
        """
        _check_limits(1, max_bytes)
        return self._steadily(lambda view: self._raw(view, offset, max_bytes, committed))

    def _by_offset(self, view: View, offset: int, max_records: int, max_bytes: int) -> Page:
        self.check_bounds(offset)
        found: list[Columns] = []
        at = offset
        expected_bytes = min(max_bytes, max_records * _RECORD_BYTES_EXPECTED)
        end = view.stable_offset
        for segment, runs, _ in self._runs_from(view, offset, end, expected_bytes):
            wanted = dataclasses.replace(
                self._live,
                start_offset=at,
                end_offset=end,
                max_records=max_records,
                max_bytes=max_bytes,
            )
            columns = decode_runs(view, segment, runs, wanted)
            if found and columns.encoded_bytes > max_bytes:
                # Decoding always gives one record, and this one is too much for the page.
                at = columns.offsets[0]
                self._leave_hint(segment, runs, at)
                break
            at = max(at, columns.next_offset)
            if len(columns):
                found.append(columns)
                max_records -= len(columns)
                max_bytes -= columns.encoded_bytes
            if columns.is_limited or max_records <= 0 or max_bytes <= 0:
                self._leave_hint(segment, runs, at)
                break
        else:
            at = max(at, end)  # There may be no batch at the end of what was looked at.
        return self._page(view, tuple(found), at)

    def _raw(self, view: View, offset: int, max_bytes: int, committed: bool) -> RawPage:
        self.check_bounds(offset)
        log = self._log
        has_dead = bool(self._deletions or log.spec.config.ttl_ms)
        batches: list[memoryview] = []
        at = offset
        end = view.stable_offset if committed else view.end_offset
        for segment, runs, next_batch_bytes in self._runs_from(view, offset, end, max_bytes):
            is_filtered = has_dead or may_expire(view, segment, self._now_ms)
            next_offset = runs[0].entries[0].base_offset if runs else at
            if batches and committed and view.aborted.has_marker_in(at, next_offset):
                # The marker is lost: a client would take what its producer wrote later for aborted
                # as well. What it is told of a page ends with the page.
                break
            for run in runs:
                if is_filtered:
                    pieces, taken, at = self._live_batches(segment, run, at, max_bytes, batches)
                else:
                    pieces, taken, at = whole_batches(run, at, max_bytes, batches)
                batches += pieces
                max_bytes -= taken
                if max_bytes <= 0 or at <= run.entries[-1].last_offset:
                    max_bytes = 0
                    break
            if max_bytes <= 0 or (batches and next_batch_bytes > max_bytes):
                self._leave_hint(segment, runs, at)
                break
        else:
            at = max(at, end)
            if not batches and offset < end:
                at = min(end, offset + _OFFSETS_PER_BATCH_MAX)
                batches.append(memoryview(empty_batch(offset, at - 1)))
        return RawPage(
            batches=tuple(batches),
            next_offset=at,
            start_offset=view.start_offset,
            end_offset=view.end_offset,
            stable_offset=view.stable_offset,
            aborted=tuple(view.aborted.overlapping(_first_of(batches, offset), at))
            if committed
            else (),
        )

    def _live_batches(
        self, segment: Segment, run: Run, at: int, max_bytes: int, before: list[memoryview]
    ) -> tuple[list[memoryview], int, int]:
        """Like `whole_batches`, each batch without its dead records and left out if none is live.

        Only what is given out counts, and nothing below the offset is: a reader that got no
        record of use could not go on from there.
        """
        wanted = dataclasses.replace(self._live, start_offset=at, columns=_NO_COLUMNS)
        pieces: list[memoryview] = []
        taken = 0
        for entry in run.entries:
            if entry.last_offset < at:
                continue
            piece = live_part(segment, run.batch(entry), entry, wanted)
            if piece is not None:
                if taken + len(piece) > max_bytes and (before or pieces):
                    break
                pieces.append(piece)
                taken += len(piece)
            at = entry.last_offset + 1
            if taken >= max_bytes:
                break
        return pieces, taken, at

    # By key ---------------------------------------------------------------------------------------

    def by_key(self, key: bytes, *, hot_only: bool = False) -> Page:
        """The key's newest live record. With `hot_only`, ColdNeeded once the object store would
        have to be asked."""
        spec = self._log.spec
        if not spec.config.index_key:
            raise IndexDisabled("key", spec.name)
        attempts = iter(range(_ATTEMPTS))

        def read(view: View) -> Page | None:
            may_scan = next(attempts, None) is None
            columns = self._by_key(view, key, may_scan=may_scan, hot_only=hot_only)
            if columns is None:
                return None
            return self._page(view, (columns,), columns.offsets[0] + 1)

        page = self._steadily(read)
        if page is None:
            raise KeyNotFound(key.decode("utf-8", "backslashreplace"), within=spec.name)
        return page

    def _by_key(self, view: View, key: bytes, *, may_scan: bool, hot_only: bool) -> Columns | None:
        dead_below = (self._live.dead_keys or {}).get(key, 0)
        for segment in reversed(view.segments):
            if dead_below and segment.meta.is_sealed and segment.meta.end_offset <= dead_below:
                return None  # And so is everything older.
            if hot_only and not segment.meta.is_local:
                raise ColdNeeded
            hit = segment.index.newest_of_key(key)
            if hit is None:
                continue
            if hit.offset >= view.end_offset and not may_scan:
                raise NotPublished
            if hit.offset < max(view.start_offset, dead_below):
                return None  # And so is everything older.
            if hit.offset < view.stable_offset:
                wanted = dataclasses.replace(
                    self._live, start_offset=hit.offset, end_offset=hit.offset + 1, key=key
                )
                columns = self._decode_at(view, segment, hit.position, None, wanted)
                if len(columns):
                    return columns
            # The newest is deleted, expired, not yet published or committed, aborted, or another
            # key of the same hash.
            older = self._newest_by_scan(view, segment, key)
            if older is not None:
                return older
        return None

    def _newest_by_scan(self, view: View, segment: Segment, key: bytes) -> Columns | None:
        wanted = dataclasses.replace(
            self._live,
            start_offset=view.start_offset,
            end_offset=view.stable_offset,
            key=key,
            columns=_NO_COLUMNS,
        )
        scan = SegmentScan(segment, Point(segment.meta.base_offset, 0), length_of(view, segment))
        newest: tuple[int, list[Run]] | None = None
        while runs := scan.read(CHUNK_BYTES):
            columns = decode_runs(view, segment, runs, wanted)
            if len(columns):
                newest = (columns.offsets[-1], runs)
        if newest is None:
            return None
        offset, runs = newest
        exact = dataclasses.replace(self._live, start_offset=offset, end_offset=offset + 1)
        columns = decode_runs(view, segment, runs, exact)
        return columns if len(columns) else None

    def key_history(self, key: bytes, start_offset: int, max_records: int, max_bytes: int) -> Page:
        """All live records of the key from the offset on, in offset order. A page may be empty
        before the end: a call looks through no more than `_HISTORY_BYTES` of the log."""
        _check_limits(max_records, max_bytes)
        spec = self._log.spec
        if not spec.config.index_key:
            raise IndexDisabled("key", spec.name)
        return self._steadily(
            lambda view: self._key_history(view, key, start_offset, max_records, max_bytes)
        )

    def _key_history(
        self, view: View, key: bytes, start_offset: int, max_records: int, max_bytes: int
    ) -> Page:
        if start_offset > view.end_offset or start_offset < 0:
            self.check_bounds(start_offset)
        found: list[Columns] = []
        at = max(start_offset, view.start_offset)
        looked_at_bytes = 0
        for segment in view.segments[segment_number(view, at) :]:
            newest = segment.index.newest_of_key(key)
            if newest is None or newest.offset < at:
                continue
            end = min(newest.offset + 1, view.stable_offset)
            scan = SegmentScan(segment, self._point(segment, at), length_of(view, segment))
            while at < end and (runs := scan.read(CHUNK_BYTES)):
                looked_at_bytes += CHUNK_BYTES
                wanted = dataclasses.replace(
                    self._live,
                    start_offset=at,
                    end_offset=end,
                    max_records=max_records,
                    max_bytes=max_bytes,
                    key=key,
                )
                columns = decode_runs(view, segment, runs, wanted)
                if found and columns.encoded_bytes > max_bytes:
                    return self._page(view, tuple(found), columns.offsets[0])
                if len(columns):
                    found.append(columns)
                    max_records -= len(columns)
                    max_bytes -= columns.encoded_bytes
                at = max(at, columns.next_offset)
                is_full = columns.is_limited or max_records <= 0 or max_bytes <= 0
                if is_full or looked_at_bytes >= _HISTORY_BYTES:
                    return self._page(view, tuple(found), at)
        return self._page(view, tuple(found), max(at, view.stable_offset))

    # By tag ---------------------------------------------------------------------------------------

    def by_tag(self, tag: bytes, start_offset: int, max_records: int, max_bytes: int) -> Page:
        """Live records with the tag from the offset on, in offset order."""
        _check_limits(max_records, max_bytes)
        spec = self._log.spec
        if not spec.config.index_tag:
            raise IndexDisabled("tag", spec.name)
        return self._steadily(
            lambda view: self._by_tag(view, tag, start_offset, max_records, max_bytes)
        )

    def _by_tag(
        self, view: View, tag: bytes, start_offset: int, max_records: int, max_bytes: int
    ) -> Page:
        if start_offset > view.end_offset or start_offset < 0:
            self.check_bounds(start_offset)
        found: list[Columns] = []
        at = max(start_offset, view.start_offset)
        for segment in view.segments[segment_number(view, at) :]:
            for hit in segment.index.tagged(tag, at):
                if hit.last_offset < at:
                    continue
                if hit.base_offset >= view.stable_offset:
                    break
                wanted = dataclasses.replace(
                    self._live,
                    start_offset=at,
                    end_offset=view.stable_offset,
                    max_records=max_records,
                    max_bytes=max_bytes,
                    tag=tag,
                )
                columns = self._decode_at(view, segment, hit.position, hit.base_offset, wanted)
                if found and columns.encoded_bytes > max_bytes:
                    return self._page(view, tuple(found), columns.offsets[0])
                if len(columns):
                    found.append(columns)
                    max_records -= len(columns)
                    max_bytes -= columns.encoded_bytes
                at = max(at, columns.next_offset)
                if columns.is_limited or max_records <= 0 or max_bytes <= 0:
                    return self._page(view, tuple(found), at)
        return self._page(view, tuple(found), max(at, view.stable_offset))

    # As a whole -----------------------------------------------------------------------------------

    def survey(self, judge: Callable[[Survey], T]) -> T:
        """What `judge` makes of the log's segments, its deletions and its aborted transactions."""
        return self._steadily(lambda view: judge(self._survey(view)))

    def _survey(self, view: View) -> Survey:
        return survey_of(self._log, view, self._deletions)

    # Shared ---------------------------------------------------------------------------------------

    def _runs_from(
        self, view: View, offset: int, end: int, expected_bytes: int
    ) -> Iterator[tuple[Segment, list[Run], int]]:
        """Batches from the one that holds the offset on, up to an end, across segments.

        With them comes the size of the batch after them where it is known, else 0.
        """
        if offset >= end:
            return
        number = segment_number(view, offset)
        size = min(max(expected_bytes, CHUNK_BYTES_MIN), CHUNK_BYTES)
        for segment in view.segments[number:]:
            length = length_of(view, segment)
            if length == 0:
                continue
            scan = SegmentScan(segment, self._point(segment, offset), length)
            while runs := scan.read(size):
                useful = [run for run in runs if run.entries[-1].last_offset >= offset]
                if runs[-1].entries[-1].last_offset >= end:
                    yield segment, runs_below(useful, end), 0
                    return
                if useful:
                    yield segment, useful, scan.next_batch_bytes
                size = min(2 * size, CHUNK_BYTES)

    def _point(self, segment: Segment, offset: int) -> Point:
        if offset <= segment.meta.base_offset:
            return Point(segment.meta.base_offset, 0)
        hint = self._hints.get(offset)
        if hint is not None and hint[:2] == (segment.meta.seq, segment.meta.epoch):
            return hint[2]
        point = segment.index.floor_offset(offset) or Point(segment.meta.base_offset, 0)
        return segment.bytes.nearer(point, offset)

    def _leave_hint(self, segment: Segment, runs: list[Run], offset: int) -> None:
        """Notes where the batch of the next offset is, so that reading on needs no index."""
        self.leave_room_for_hint()
        hints, meta = self._hints, segment.meta
        for run in reversed(runs):
            entry = run.entries[-1]
            if offset == entry.last_offset + 1:
                position = run.position + entry.position + entry.size
                hints[offset] = (meta.seq, meta.epoch, Point(offset, position))
                return
            if offset >= run.entries[0].base_offset:
                number = bisect_right(run.entries, offset, key=lambda each: each.base_offset) - 1
                entry = run.entries[number]
                place = Point(entry.base_offset, run.position + entry.position)
                hints[offset] = (meta.seq, meta.epoch, place)
                return

    def leave_room_for_hint(self) -> None:
        if len(self._hints) >= HINTS_MAX:
            self._hints.clear()

    def _decode_at(
        self, view: View, segment: Segment, position: int, offset: int | None, wanted: Selection
    ) -> Columns:
        """Decodes the one batch at a position that an index gave."""
        length = length_of(view, segment)
        if offset is None:
            scan = SegmentScan.at_position(segment, position, length)
        else:
            scan = SegmentScan(segment, Point(offset, position), length)
        runs = scan.read(CHUNK_BYTES_MIN)
        if not runs:
            raise SegmentGone(segment.bytes.where, f"has nothing at {position}")
        if offset is None:
            check_base(view, segment, runs[0])
        entry = runs[0].entries[0]
        hidden = view.aborted.hiding(entry.base_offset, entry.last_offset + 1, view.end_offset)
        is_hidden = hidden is not None and entry in hidden
        return decode_batches(segment, [] if is_hidden else [runs[0].batch(entry)], wanted)

    def _page(self, view: View, columns: tuple[Columns, ...], next_offset: int) -> Page:
        return Page(
            columns,
            next_offset=next_offset,
            start_offset=view.start_offset,
            end_offset=view.stable_offset,
        )

    def _steadily(self, read: Callable[[View], T]) -> T:
        """What `read` finds; it starts over when retention, compaction or truncation has removed
        what it read.

        One that comes too late every time reads while nothing may change at last; but never from
        an object store, for which appends must not wait.
        """
        log = self._log
        for _ in range(_ATTEMPTS if self._is_all_local() else _ATTEMPTS_COLD):
            try:
                found = read(self._view)
                if log.cut_count == self._cut_count:
                    return found
            except NotPublished:
                pass
            except SegmentGone as gone:
                if (reason := self._missing(gone)) is not None:
                    raise Corruption(reason, where=gone.where) from gone
            except Corruption as error:
                if log.cut_count == self._cut_count and not self._fetches_again(error):
                    raise
            self._look()
        with log.lock:
            self._look()
            if not self._is_all_local():
                raise TimedOut(f"{log.spec.name} changes faster than it can be read; try again")
            try:
                return read(self._view)
            except SegmentGone as gone:
                if log.refusal is not None:
                    raise log.refusal from gone  # The shard was deleted.
                raise Corruption("its bytes are not there", where=gone.where) from gone

    def _is_all_local(self) -> bool:
        return self._log.cold_end_offset <= self._view.start_offset

    def _missing(self, gone: SegmentGone) -> str | None:
        """What is wrong, if what is gone is still in the log's view: it should be in the object
        store, or at the nodes that hold it."""
        segment = _cold_at(self._view, gone.where)
        if segment is None or segment not in self._log.view.segments:
            return None
        is_held = bool(segment.meta.holders)
        return "no node has it" if is_held else "it is not in the object store"

    def _fetches_again(self, error: Corruption) -> bool:
        """Whether bytes that are not here will be fetched once more: the first ones may have been
        damaged on the way, or in the cache."""
        segment = _cold_at(self._view, error.where)
        cold = self._log.backend.cold
        if segment is None or self._has_fetched_again:
            return False
        if segment.meta.holders:
            segment.bytes.drop()
        elif cold is not None:
            cold.forget(segment.meta)
        else:
            return False
        self._has_fetched_again = True
        return True

    def _look(self) -> None:
        """Takes the log as it is now, after a truncation that is under way."""
        log = self._log
        while log.cut_count % 2:
            with log.lock:
                pass
        self._cut_count = log.cut_count
        self._deletions = log.deletions  # Before the view.
        self._view = log.view
        self._hints = log.hints
        self._selection: Selection | None = None

    @property
    def _live(self) -> Selection:
        """Selects what is not deleted or expired. Made on first use: raw reads seldom need it."""
        if self._selection is None:
            config = self._log.spec.config
            self._selection = Selection(
                tag_headers=tuple(name.encode() for name in config.tag_headers),
                expire_header=config.expire_header_bytes,
                ttl_ms=config.ttl_ms,
                now_ms=self._now_ms,
                holes=self._deletions.offsets or None,
                dead_keys=self._deletions.keys or None,
            )
        return self._selection

    def check_bounds(self, offset: int) -> None:
        """Raises OffsetOutOfRange unless start <= offset <= end."""
        view = self._view
        if not view.start_offset <= offset <= view.end_offset:
            raise OffsetOutOfRange(
                offset, start=view.start_offset, end=view.end_offset, shard=self._log.spec.name
            )


def _cold_at(view: View, where: str) -> Segment | None:
    """The segment that is not here, under a name that `where` is about."""
    for segment in view.segments:
        meta = segment.meta
        if meta.is_local:
            continue
        name = segment.bytes.where if meta.holders or meta.tier is None else meta.tier.key
        if name in where:
            return segment
    return None


def _check_limits(max_records: int, max_bytes: int) -> None:
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgument(name, f"must be a whole number above 0, not {value!r}")


def _first_of(batches: list[memoryview], offset: int) -> int:
    """Where what is given out begins: not before the offset that was asked for."""
    return max(offset, parse_header(batches[0]).base_offset) if batches else offset
