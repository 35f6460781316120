"""Batches of a replica as they are stored, for other replicas."""

from __future__ import annotations

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Segment, SegmentBytes
from firnmq.engines.replicas.api import ReplicaBytes
from firnmq.engines.shardlog.reading.raw import RANGE_BYTES_MIN
from firnmq.engines.shardlog.reading.scan import CHUNK_BYTES, SegmentScan
from firnmq.engines.shardlog.replica import LogReplica
from firnmq.errors import Corruption, InvalidArgument
from firnmq.index import Point
from firnmq.record import BatchStream


def read_tail(
    segment: Segment, replica: LogReplica, start: int, end: int, max_bytes: int
) -> ReplicaBytes:
    """Of the log's tail, up to what is written."""
    written_end, length = replica.written
    end = min(end, written_end)
    position = replica.border(start)
    if position is None:
        position = position_of(segment, start, length)
    end_position = length if end == written_end else replica.border(end)
    if end_position is not None and 0 < end_position - position <= max_bytes:
        return _whole(segment.bytes, position, end_position - position, end)
    found = _some(segment, start, position, end, length, max_bytes)
    replica.note_border(found.next_offset, position + found.size_bytes)
    return found


def read_sealed(segment: Segment, start: int, end: int, max_bytes: int) -> ReplicaBytes:
    """Of a sealed segment that is here."""
    meta = segment.meta
    position = 0 if start == meta.base_offset else position_of(segment, start, meta.length)
    end = min(end, meta.end_offset)
    if end == meta.end_offset and 0 < meta.length - position <= max_bytes:
        return _whole(segment.bytes, position, meta.length - position, end)
    return _some(segment, start, position, end, meta.length, max_bytes)


def position_of(segment: Segment, offset: int, length: int) -> int:
    """Where the batch begins that begins with the offset, or where the bytes end."""
    point = segment.index.floor_offset(offset) or Point(segment.meta.base_offset, 0)
    if point.offset == offset:
        return point.position
    scan = SegmentScan(segment, point, length)
    end = point.offset
    while runs := scan.read(CHUNK_BYTES):
        for run in runs:
            for entry in run.entries:
                if entry.base_offset == offset:
                    return run.position + int(entry.position)
                end = entry.last_offset + 1
    if end == offset:
        return length
    raise InvalidArgument("start", f"no batch of {segment.bytes.where} begins at {offset}")


def _whole(content: SegmentBytes, position: int, size: int, end: int) -> ReplicaBytes:
    if content.is_file and size >= RANGE_BYTES_MIN:
        return ReplicaBytes((content.range_at(position, size),), end, size)
    return ReplicaBytes(tuple(_exactly(content, position, size)), end, size)


def _some(
    segment: Segment, start: int, position: int, end: int, length: int, max_bytes: int
) -> ReplicaBytes:
    """As many whole batches as fit, or the first one; none of `end` or above."""
    if start >= end or position >= length:
        return ReplicaBytes((), start, 0)
    stream = BatchStream(position=position, offset=start, end_position=length, verify=False)
    size = min(max_bytes, length - position)
    run = None
    while run is None:
        data = _joined(_exactly(segment.bytes, position, size))
        run = stream.judge(data)
        if run is None:
            if not size < stream.needed_bytes <= length - position:
                reason = "there is no batch" if stream.stop is None else stream.stop.text
                raise Corruption(reason, where=segment.bytes.where, position=position)
            size = stream.needed_bytes
    taken, next_offset = 0, start
    for entry in run.entries:
        if entry.last_offset >= end:
            break
        taken, next_offset = int(entry.position) + int(entry.size), entry.last_offset + 1
    return ReplicaBytes((memoryview(run.buffer)[:taken],) if taken else (), next_offset, taken)


def _exactly(content: SegmentBytes, position: int, size: int) -> list[Buffer]:
    """These bytes, or fewer where the segment ends."""
    found: list[Buffer] = []
    while size > 0:
        buffers = [each for each in content.read(position, size) if len(each)]
        if not buffers:
            break
        for each in buffers:
            part = memoryview(each)[:size]
            if len(part):
                found.append(part)
                position += len(part)
                size -= len(part)
    return found


def _joined(buffers: list[Buffer]) -> Buffer:
    return buffers[0] if len(buffers) == 1 else b"".join(buffers)
