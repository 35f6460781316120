"""The four kinds of read over a log: by offset, by key, by tag, by time."""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterator

from firnmq.engines.api import AdapterOffsetStrategy, Page, RawPage
from firnmq.engines.segments import Segment, SegmentGone, SegmentState
from firnmq.engines.shardlog.log import ShardLog, View
from firnmq.engines.shardlog.scan import CHUNK_BYTES, CHUNK_BYTES_MIN, Run, SegmentScan
from firnmq.errors import Corruption, IndexDisabled, InvalidArgument, KeyNotFound, OffsetOutOfRange
from firnmq.index import Point
from firnmq.record import Columns, Selection, decode, encode_columns
from firnmq.record.selection import ColumnName

_HINTS_MAX = 32
_ATTEMPTS = 8
"""How often a read starts over because retention removed what it was reading."""
_NO_COLUMNS: frozenset[ColumnName] = frozenset()


class _NotPublished(Exception):
    """The index is a moment ahead of the view: it will be published at once."""


class LogReader:
    """Reads one log as it is now. Cheap to make; not for sharing between threads."""

    def __init__(self, log: ShardLog, now_ms: int) -> None:
        self._log = log
        self._view = log.view
        config = log.spec.config
        self._live = Selection(
            tag_headers=tuple(name.encode() for name in config.tag_headers),
            expire_header=config.expire_header.encode(),
            ttl_ms=config.ttl_ms,
            now_ms=now_ms,
            holes=log.holes or None,
            dead_keys=log.dead_keys or None,
        )

    # By offset ----------------------------------------------------------------------------------

    def by_offset(self, offset: int, max_records: int, max_bytes: int) -> Page:
        """Whole records from the offset on, at least one if there is one."""
        _check_limits(max_records, max_bytes)
        for _ in range(_ATTEMPTS):
            view = self._view
            self.check_bounds(offset)
            try:
                return self._by_offset(view, offset, max_records, max_bytes)
            except SegmentGone:
                self._look_again()
        raise Corruption("its bytes are not there", where=self._log.spec.name)

    def raw(self, offset: int, max_bytes: int) -> RawPage:
        """Whole batches, the first one holding the offset; unchecked, as they are stored.

        Where records were deleted the batches are written anew without them.
        """
        _check_limits(1, max_bytes)
        for _ in range(_ATTEMPTS):
            view = self._view
            self.check_bounds(offset)
            try:
                return self._raw(view, offset, max_bytes)
            except SegmentGone:
                self._look_again()
        raise Corruption("its bytes are not there", where=self._log.spec.name)

    def _by_offset(self, view: View, offset: int, max_records: int, max_bytes: int) -> Page:
        found: list[Columns] = []
        at = offset
        for segment, runs in self._runs_from(view, offset, max_bytes):
            wanted = dataclasses.replace(
                self._live,
                start_offset=at,
                end_offset=view.end_offset,
                max_records=max_records,
                max_bytes=max_bytes,
            )
            columns = _decode(segment, runs, wanted)
            at = max(at, columns.next_offset)
            if len(columns):
                found.append(columns)
                max_records -= len(columns)
                max_bytes -= columns.encoded_bytes
            if columns.is_limited or max_records <= 0 or max_bytes <= 0:
                self._leave_hint(segment, runs, at)
                break
        return self._page(view, tuple(found), at)

    def _raw(self, view: View, offset: int, max_bytes: int) -> RawPage:
        live = self._live
        is_filtered = bool(live.holes or live.dead_keys or live.ttl_ms)
        batches: list[memoryview] = []
        at = offset
        for segment, runs in self._runs_from(view, offset, max_bytes):
            for run in runs:
                entries = run.entries
                first = bisect_right(entries, at - 1, key=lambda entry: entry.last_offset)
                while first < len(entries) and max_bytes > 0:
                    last = first + 1
                    size = entries[first].size
                    while last < len(entries) and size + entries[last].size <= max_bytes:
                        size += entries[last].size
                        last += 1
                    if size > max_bytes and batches:
                        max_bytes = 0
                        break
                    begin = entries[first].position
                    piece = memoryview(run.buffer)[begin : begin + size]
                    if is_filtered:
                        pieces = [run.batch(entry) for entry in entries[first:last]]
                        batches += self._without_dead(segment, pieces)
                    else:
                        batches.append(piece)
                    max_bytes -= size
                    at = entries[last - 1].last_offset + 1
                    first = last
            if max_bytes <= 0:
                self._leave_hint(segment, runs, at)
                break
        return RawPage(
            batches=tuple(batches),
            next_offset=at,
            start_offset=view.start_offset,
            end_offset=view.end_offset,
        )

    def _without_dead(self, segment: Segment, batches: list[memoryview]) -> list[memoryview]:
        live = []
        for batch in batches:
            columns = _decode_batches(segment, [batch], self._live)
            if len(columns):
                live.append(memoryview(encode_columns(columns)))
        return live

    # By key ---------------------------------------------------------------------------------------

    def by_key(self, key: bytes) -> Page:
        """The key's newest live record."""
        spec = self._log.spec
        if not spec.config.index_key:
            raise IndexDisabled("key", spec.name)
        for attempt in range(_ATTEMPTS):
            view = self._view
            try:
                columns = self._by_key(view, key, may_scan=attempt == _ATTEMPTS - 1)
            except (SegmentGone, _NotPublished):
                self._look_again()
                continue
            if columns is None:
                raise KeyNotFound(key.decode("utf-8", "backslashreplace"), within=spec.name)
            return self._page(view, (columns,), columns.offsets[0] + 1)
        raise Corruption("its bytes are not there", where=spec.name)

    def _by_key(self, view: View, key: bytes, *, may_scan: bool) -> Columns | None:
        for segment in reversed(view.segments):
            hit = segment.index.newest_of_key(key)
            if hit is None:
                continue
            if hit.offset >= view.end_offset and not may_scan:
                raise _NotPublished
            if view.start_offset <= hit.offset < view.end_offset:
                wanted = dataclasses.replace(
                    self._live, start_offset=hit.offset, end_offset=hit.offset + 1, key=key
                )
                columns = self._decode_at(view, segment, hit.position, None, wanted)
                if len(columns):
                    return columns
            # The newest is deleted, expired, not yet published or another key of the same hash.
            older = self._newest_by_scan(view, segment, key)
            if older is not None:
                return older
        return None

    def _newest_by_scan(self, view: View, segment: Segment, key: bytes) -> Columns | None:
        wanted = dataclasses.replace(
            self._live,
            start_offset=view.start_offset,
            end_offset=view.end_offset,
            key=key,
            columns=_NO_COLUMNS,
        )
        scan = SegmentScan(segment, Point(segment.meta.base_offset, 0), _length(view, segment))
        newest: tuple[int, list[Run]] | None = None
        while runs := scan.read(CHUNK_BYTES):
            columns = _decode(segment, runs, wanted)
            if len(columns):
                newest = (columns.offsets[-1], runs)
        if newest is None:
            return None
        offset, runs = newest
        exact = dataclasses.replace(self._live, start_offset=offset, end_offset=offset + 1)
        columns = _decode(segment, runs, exact)
        return columns if len(columns) else None

    # By tag ---------------------------------------------------------------------------------------

    def by_tag(self, tag: bytes, start_offset: int, max_records: int, max_bytes: int) -> Page:
        """Live records with the tag from the offset on, in offset order."""
        _check_limits(max_records, max_bytes)
        spec = self._log.spec
        if not spec.config.index_tag:
            raise IndexDisabled("tag", spec.name)
        for _ in range(_ATTEMPTS):
            view = self._view
            if start_offset > view.end_offset or start_offset < 0:
                self.check_bounds(start_offset)
            try:
                return self._by_tag(view, tag, start_offset, max_records, max_bytes)
            except SegmentGone:
                self._look_again()
        raise Corruption("its bytes are not there", where=spec.name)

    def _by_tag(
        self, view: View, tag: bytes, start_offset: int, max_records: int, max_bytes: int
    ) -> Page:
        found: list[Columns] = []
        at = max(start_offset, view.start_offset)
        for segment in view.segments[_segment_number(view, at) :]:
            for hit in segment.index.tagged(tag, at):
                if hit.last_offset < at:
                    continue
                if hit.base_offset >= view.end_offset:
                    break
                wanted = dataclasses.replace(
                    self._live,
                    start_offset=at,
                    end_offset=view.end_offset,
                    max_records=max_records,
                    max_bytes=max_bytes,
                    tag=tag,
                )
                columns = self._decode_at(view, segment, hit.position, hit.base_offset, wanted)
                if len(columns):
                    found.append(columns)
                    max_records -= len(columns)
                    max_bytes -= columns.encoded_bytes
                at = max(at, columns.next_offset)
                if columns.is_limited or max_records <= 0 or max_bytes <= 0:
                    return self._page(view, tuple(found), at)
        return self._page(view, tuple(found), view.end_offset)

    # By time --------------------------------------------------------------------------------------

    def offset_by_time(self, timestamp_ms: int, strategy: AdapterOffsetStrategy) -> int:
        """First offset of a live record at least as young as the timestamp."""
        for _ in range(_ATTEMPTS):
            view = self._view
            try:
                found = self._offset_by_time(view, timestamp_ms)
            except SegmentGone:
                self._look_again()
                continue
            if found is not None:
                return found
            is_earliest = strategy is AdapterOffsetStrategy.EARLIEST
            return view.start_offset if is_earliest else view.end_offset
        raise Corruption("its bytes are not there", where=self._log.spec.name)

    def _offset_by_time(self, view: View, timestamp_ms: int) -> int | None:
        wanted = dataclasses.replace(
            self._live,
            start_offset=view.start_offset,
            end_offset=view.end_offset,
            min_timestamp=timestamp_ms,
            max_records=1,
            columns=_NO_COLUMNS,
        )
        for segment in view.segments:
            is_sealed = segment.meta.state is SegmentState.SEALED
            if is_sealed and segment.meta.max_timestamp < timestamp_ms:
                continue
            point = segment.index.floor_time(timestamp_ms)
            if point is None:
                continue
            scan = SegmentScan(segment, point, _length(view, segment))
            while runs := scan.read(CHUNK_BYTES):
                columns = _decode(segment, runs, wanted)
                if len(columns):
                    return int(columns.offsets[0])
        return None

    # Shared ---------------------------------------------------------------------------------------

    def _runs_from(
        self, view: View, offset: int, max_bytes: int
    ) -> Iterator[tuple[Segment, list[Run]]]:
        """Batches from the one that holds the offset on, across segments."""
        if offset >= view.end_offset:
            return
        number = _segment_number(view, offset)
        size = min(max(max_bytes, CHUNK_BYTES_MIN), CHUNK_BYTES)
        for segment in view.segments[number:]:
            length = _length(view, segment)
            if length == 0:
                continue
            scan = SegmentScan(segment, self._point(segment, offset), length)
            while runs := scan.read(size):
                useful = [run for run in runs if run.entries[-1].last_offset >= offset]
                if useful:
                    yield segment, useful

    def _point(self, segment: Segment, offset: int) -> Point:
        if offset <= segment.meta.base_offset:
            return Point(segment.meta.base_offset, 0)
        hint = self._log.hints.get(offset)
        if hint is not None and hint[0] == segment.meta.seq:
            return hint[1]
        return segment.index.floor_offset(offset) or Point(segment.meta.base_offset, 0)

    def _leave_hint(self, segment: Segment, runs: list[Run], offset: int) -> None:
        """Notes where the batch of the next offset is, so that reading on needs no index."""
        hints = self._log.hints
        if len(hints) >= _HINTS_MAX:
            hints = self._log.hints = {}
        for run in reversed(runs):
            entry = run.entries[-1]
            if offset == entry.last_offset + 1:
                position = run.position + entry.position + entry.size
                hints[offset] = (segment.meta.seq, Point(offset, position))
                return
            if offset >= run.entries[0].base_offset:
                number = bisect_right(run.entries, offset, key=lambda each: each.base_offset) - 1
                entry = run.entries[number]
                place = Point(entry.base_offset, run.position + entry.position)
                hints[offset] = (segment.meta.seq, place)
                return

    def _decode_at(
        self, view: View, segment: Segment, position: int, offset: int | None, wanted: Selection
    ) -> Columns:
        """Decodes the one batch at a position that an index gave."""
        length = _length(view, segment)
        if offset is None:
            scan = SegmentScan.at_position(segment, position, length)
        else:
            scan = SegmentScan(segment, Point(offset, position), length)
        runs = scan.read(CHUNK_BYTES_MIN)
        if not runs:
            raise SegmentGone(f"{segment.bytes.where} has nothing at {position}")
        return _decode_batches(segment, [runs[0].batch(runs[0].entries[0])], wanted)

    def _page(self, view: View, columns: tuple[Columns, ...], next_offset: int) -> Page:
        return Page(
            columns,
            next_offset=next_offset,
            start_offset=view.start_offset,
            end_offset=view.end_offset,
        )

    def _look_again(self) -> None:
        self._view = self._log.view

    def check_bounds(self, offset: int) -> None:
        """Raises OffsetOutOfRange unless start <= offset <= end."""
        view = self._view
        if not view.start_offset <= offset <= view.end_offset:
            raise OffsetOutOfRange(
                offset, start=view.start_offset, end=view.end_offset, shard=self._log.spec.name
            )


def _segment_number(view: View, offset: int) -> int:
    found = bisect_right(view.segments, offset, key=lambda segment: segment.meta.base_offset)
    return max(found - 1, 0)


def _length(view: View, segment: Segment) -> int:
    """Readable bytes of a segment."""
    if segment.meta.state is SegmentState.SEALED:
        return segment.meta.length
    return view.active_length


def _decode(segment: Segment, runs: list[Run], wanted: Selection) -> Columns:
    batches = [
        run.batch(entry)
        for run in runs
        for entry in run.entries
        if entry.last_offset >= wanted.start_offset
    ]
    return _decode_batches(segment, batches, wanted)


def _decode_batches(segment: Segment, batches: list[memoryview], wanted: Selection) -> Columns:
    try:
        return decode(batches, wanted)
    except Corruption as error:
        raise Corruption(error.reason, where=segment.bytes.where) from error


def _check_limits(max_records: int, max_bytes: int) -> None:
    for name, value in (("max_records", max_records), ("max_bytes", max_bytes)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidArgument(name, f"must be a whole number above 0, not {value!r}")
