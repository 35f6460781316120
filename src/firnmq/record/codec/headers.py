"""Batches: the header and the records of one, and the headers of those that follow each other."""

from typing import Any, Literal

import cython
from crc32c import crc32c

from firnmq.errors import Corruption, InvalidArgument, InvalidRecord, LimitExceeded
from firnmq.record.batch import (
    ATTRIBUTE_CODEC,
    BATCH_BYTES_MAX,
    CRC_START,
    Buffer,
    Compression,
)
from firnmq.record.compression import decompress

if not cython.compiled:
    from firnmq.record.codec.constants import (
        BAD_COUNT,
        BAD_LENGTH,
        BAD_MAGIC,
        BAD_OFFSET,
        HEADER_SIZE,
        OFFSET_LIMIT,
        PREFIX_SIZE,
        REASONS,
        TRUNCATED,
    )
    from firnmq.record.codec.memory import View, read_integer, view_of

Source = Literal["disk", "client"]
"""Whose bytes they are: bad ones from disk are Corruption, bad ones from a client InvalidRecord."""


@cython.final
@cython.cclass
class BatchEntry:
    """Where a batch lies in a buffer, and what its header says."""

    position = cython.declare(cython.Py_ssize_t, visibility="readonly")
    size = cython.declare(cython.Py_ssize_t, visibility="readonly")
    base_offset = cython.declare(cython.longlong, visibility="readonly")
    last_offset = cython.declare(cython.longlong, visibility="readonly")
    record_count = cython.declare(cython.longlong, visibility="readonly")
    base_timestamp = cython.declare(cython.longlong, visibility="readonly")
    max_timestamp = cython.declare(cython.longlong, visibility="readonly")
    attributes = cython.declare(cython.longlong, visibility="readonly")
    leader_epoch = cython.declare(cython.longlong, visibility="readonly")
    producer_id = cython.declare(cython.longlong, visibility="readonly")
    producer_epoch = cython.declare(cython.longlong, visibility="readonly")
    base_sequence = cython.declare(cython.longlong, visibility="readonly")
    crc = cython.declare(cython.longlong, visibility="readonly")

    def __repr__(self) -> str:
        return (
            f"BatchEntry(position={self.position}, size={self.size}, "
            f"base_offset={self.base_offset}, last_offset={self.last_offset}, "
            f"record_count={self.record_count})"
        )


@cython.cfunc
@cython.exceptval(check=False)
def read_header(
    p: cython.p_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t, span: BatchEntry
) -> cython.int:
    """Fill `span` from the header at `position`. 0, or a code; TRUNCATED only if nothing else
    is wrong; `span.size` is then what the batch needs, or a header's size if that is truncated."""
    delta: cython.longlong
    span.position = position
    span.size = HEADER_SIZE
    if end - position < HEADER_SIZE:
        return TRUNCATED
    span.size = read_integer(p, position + 8, 4) + PREFIX_SIZE
    if span.size < HEADER_SIZE:
        return BAD_LENGTH
    if p[position + 16] != 2:
        return BAD_MAGIC
    span.base_offset = read_integer(p, position, 8)
    delta = read_integer(p, position + 23, 4)
    if span.base_offset < 0 or span.base_offset > OFFSET_LIMIT or delta < 0:
        return BAD_OFFSET
    span.last_offset = span.base_offset + delta
    span.record_count = read_integer(p, position + 57, 4)
    if span.record_count < 0 or span.record_count > delta + 1:
        return BAD_COUNT
    span.leader_epoch = read_integer(p, position + 12, 4)
    span.crc = read_integer(p, position + 17, 4) & 0xFFFFFFFF
    span.attributes = read_integer(p, position + 21, 2)
    span.base_timestamp = read_integer(p, position + 27, 8)
    span.max_timestamp = read_integer(p, position + 35, 8)
    span.producer_id = read_integer(p, position + 43, 8)
    span.producer_epoch = read_integer(p, position + 51, 2)
    span.base_sequence = read_integer(p, position + 53, 4)
    return TRUNCATED if span.size > end - position else 0


@cython.cfunc
def crc_matches(buffer: Any, span: BatchEntry) -> cython.bint:
    covered = memoryview(buffer)[span.position + CRC_START : span.position + span.size]
    return crc32c(covered) == span.crc


@cython.final
@cython.cclass
class Origin:
    """Where bytes come from, and so which error bad ones are."""

    is_disk: cython.bint
    where: Any

    def __init__(self, source: Source, where: str) -> None:
        if source not in ("disk", "client"):
            raise InvalidArgument("source", "must be 'disk' or 'client'")
        self.is_disk = source == "disk"
        self.where = where

    @cython.cfunc
    def refusal(self, position: cython.Py_ssize_t, reason: str) -> Any:
        if self.is_disk:
            return Corruption(reason, where=self.where, position=position)
        return InvalidRecord(f"{self.where or 'batch'} at byte {position:,}: {reason}")


@cython.cfunc
def checked_header(
    buffer: Any, view: View, position: cython.Py_ssize_t, verify: cython.bint, origin: Origin
) -> BatchEntry:
    """The header of a whole batch at `position`."""
    span: BatchEntry = BatchEntry.__new__(BatchEntry)
    code: cython.int = read_header(view.p, position, view.size, span)
    if code != 0:
        raise origin.refusal(position, REASONS[code])
    if verify and not crc_matches(buffer, span):
        raise origin.refusal(position, "crc mismatch")
    return span


@cython.cfunc
def payload_of(buffer: Any, view: View, span: BatchEntry, origin: Origin, max_bytes: Any) -> View:
    """The view that holds the batch's records: `view` itself, or one of decompressed bytes."""
    codec: cython.longlong = span.attributes & ATTRIBUTE_CODEC
    if codec == 0 or span.record_count == 0:
        return view
    if codec > 4:
        raise origin.refusal(span.position, f"unknown compression codec {codec}")
    packed = memoryview(buffer)[span.position + HEADER_SIZE : span.position + span.size]
    try:
        return view_of(decompress(Compression(codec), packed, max_bytes=max_bytes))
    except InvalidRecord as bad:
        if not origin.is_disk and isinstance(bad, LimitExceeded):
            raise
        raise origin.refusal(span.position, str(bad)) from bad


@cython.final
@cython.cclass
class Walk:
    """What a walk over concatenated batches found."""

    headers = cython.declare(list, visibility="readonly")
    valid_end = cython.declare(cython.Py_ssize_t, visibility="readonly")
    reason = cython.declare(object, visibility="readonly")
    needed_bytes = cython.declare(cython.Py_ssize_t, visibility="readonly")

    def __repr__(self) -> str:
        return f"Walk({len(self.headers)} batches, {self.valid_end=}, {self.reason=})"


def walk(
    buffer: Buffer,
    position: cython.Py_ssize_t = 0,
    end: int | None = None,
    *,
    expected_offset: int | None = None,
    verify: bool = True,
    max_batch_bytes: cython.Py_ssize_t = BATCH_BYTES_MAX,
) -> Walk:
    """The batches in `buffer[position:end]`, up to the first that is incomplete or not valid.

    The result has `headers`, a list of BatchEntry; `valid_end`, the position after the last good
    batch; `reason`, None at the exact end, "truncated" if the rest may be the beginning of a
    batch, and otherwise what is wrong; and `needed_bytes`, how many bytes from `valid_end` on are
    needed to judge a truncated batch. With `expected_offset`, the first batch must start there and
    each other one where its predecessor ends. No bytes make this function raise.
    """
    view: View = view_of(buffer)
    result: Walk = Walk()
    spans: list = []
    span: BatchEntry
    code: cython.int
    stop: cython.Py_ssize_t = view.size if end is None else end
    expected: cython.longlong = -1 if expected_offset is None else expected_offset
    must_verify: cython.bint = verify
    reason: Any = None
    if position < 0 or position > stop or stop > view.size:
        raise InvalidArgument("position, end", f"[{position}, {stop}) is outside the buffer")
    result.needed_bytes = 0
    while position < stop:
        span = BatchEntry.__new__(BatchEntry)
        code = read_header(view.p, position, stop, span)
        if code == 0 or code == TRUNCATED:
            if span.size > max_batch_bytes:
                code = BAD_LENGTH
            elif expected >= 0 and stop - position >= HEADER_SIZE:
                if span.base_offset != expected:
                    reason = "offset gap"
                    break
        if code != 0:
            reason = REASONS[code]
            if code == TRUNCATED:
                result.needed_bytes = span.size
            break
        if must_verify and not crc_matches(buffer, span):
            reason = "crc mismatch"
            break
        spans.append(span)
        position += span.size
        if expected >= 0:
            expected = span.last_offset + 1
    result.headers = spans
    result.valid_end = position
    result.reason = reason
    return result
