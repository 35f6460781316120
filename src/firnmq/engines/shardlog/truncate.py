"""Where to truncate a log so that it ends at an offset."""

from __future__ import annotations

from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.errors import InvalidArgument
from firnmq.index import Point


def cut_position(log: ShardLog, offset: int) -> int | None:
    """Byte of the active segment at which the offset's batch begins; None if that is the end.

    Only the active segment can be truncated, since sealed ones never change, and only between
    batches, since a batch is written and acknowledged as one.
    """
    view = log.view
    active = view.segments[-1]
    if offset == log.tail.next_offset:
        return None
    first = max(active.meta.base_offset, view.start_offset)
    if offset == view.end_offset and offset >= first:
        return view.active_length  # The rest waits for the high watermark.
    if not first <= offset < view.end_offset:
        raise InvalidArgument(
            "offset",
            f"{offset} is outside the readable part of the active segment "
            f"[{first}, {view.end_offset}]; sealed segments cannot be truncated",
        )
    point = active.index.floor_offset(offset) or Point(active.meta.base_offset, 0)
    scan = SegmentScan(active, point, view.active_length)
    while runs := scan.read(CHUNK_BYTES):
        for run in runs:
            for entry in run.entries:
                if entry.base_offset == offset:
                    return run.position + int(entry.position)
                if entry.last_offset >= offset:
                    raise InvalidArgument(
                        "offset",
                        f"{offset} is within the batch of {entry.base_offset} to "
                        f"{entry.last_offset}; truncate at {entry.base_offset} or "
                        f"{entry.last_offset + 1}",
                    )
    raise AssertionError("an offset that is shown is in the active segment's bytes")
