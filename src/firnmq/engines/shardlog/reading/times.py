"""Records by their timestamps: the first that is young enough, and the newest."""

from __future__ import annotations

import dataclasses

from firnmq.engines.api import AdapterOffsetStrategy
from firnmq.engines.catalog.segments import Segment
from firnmq.engines.shardlog.reading.batches import decode_runs
from firnmq.engines.shardlog.reading.records import LogReader
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.shardlog.view import View, length_of
from firnmq.index.api import TIMESTAMP_MIN
from firnmq.record import ColumnName, Selection

_NO_COLUMNS: frozenset[ColumnName] = frozenset()


class TimeReader(LogReader):
    """Reads one log as it is now. Cheap to make; not for sharing between threads."""

    def offset_by_time(
        self, timestamp_ms: int, strategy: AdapterOffsetStrategy, *, committed: bool = True
    ) -> int:
        """First offset of a live record at least as young as the timestamp."""

        def read(view: View) -> int:
            end = view.stable_offset if committed else view.end_offset
            found = self._offset_by_time(view, timestamp_ms, end)
            if found is not None:
                return found
            return view.start_offset if strategy is AdapterOffsetStrategy.EARLIEST else end

        return self._steadily(read)

    def _offset_by_time(self, view: View, timestamp_ms: int, end: int) -> int | None:
        wanted = dataclasses.replace(self._from_time(view, timestamp_ms, end), max_records=1)
        for segment in view.segments:
            is_sealed = segment.meta.is_sealed
            if is_sealed and segment.meta.max_timestamp < timestamp_ms:
                continue
            point = segment.index.floor_time(timestamp_ms)
            if point is None:
                continue
            scan = SegmentScan(segment, point, length_of(view, segment))
            while runs := scan.read(CHUNK_BYTES):
                columns = decode_runs(view, segment, runs, wanted)
                if len(columns):
                    return int(columns.offsets[0])
        return None

    def newest(self, *, committed: bool) -> tuple[int, int] | None:
        """Offset and timestamp of the first live record with the highest timestamp, if any."""

        def read(view: View) -> tuple[int, int] | None:
            return self._newest(view, view.stable_offset if committed else view.end_offset)

        return self._steadily(read)

    def _newest(self, view: View, end: int) -> tuple[int, int] | None:
        """Looks only at segments that may hold a newer record than those before. A segment is
        scanned where its own newest record is deleted, expired or not shown for another reason."""

        def highest(segment: Segment) -> int:
            meta = segment.meta
            return meta.max_timestamp if meta.is_sealed else view.active_max_timestamp

        best: tuple[int, int] | None = None
        for segment in sorted(view.segments, key=highest, reverse=True):
            limit = highest(segment)
            above = TIMESTAMP_MIN if best is None else best[1]
            if limit <= above:
                break
            best = (
                self._newest_of(view, segment, end, limit, limit)
                or self._newest_of(view, segment, end, above + 1, limit)
                or best
            )
        return best

    def _newest_of(
        self, view: View, segment: Segment, end: int, min_timestamp: int, limit: int
    ) -> tuple[int, int] | None:
        """The newest live record of a segment that has none above the limit, if it is at least as
        young as the timestamp."""
        best: tuple[int, int] | None = None
        point = segment.index.floor_time(min_timestamp)
        if point is None:
            return None
        scan = SegmentScan(segment, point, length_of(view, segment))
        while min_timestamp <= limit and (runs := scan.read(CHUNK_BYTES)):
            if all(each.max_timestamp < min_timestamp for run in runs for each in run.entries):
                continue
            wanted = self._from_time(view, min_timestamp, end)
            columns = decode_runs(view, segment, runs, wanted)
            if len(columns):
                timestamps = columns.timestamps.tolist()
                newest = max(timestamps)
                best = int(columns.offsets[timestamps.index(newest)]), newest
                min_timestamp = newest + 1
        return best

    def _from_time(self, view: View, timestamp_ms: int, end: int) -> Selection:
        return dataclasses.replace(
            self._live,
            start_offset=view.start_offset,
            end_offset=end,
            min_timestamp=timestamp_ms,
            columns=_NO_COLUMNS,
        )
