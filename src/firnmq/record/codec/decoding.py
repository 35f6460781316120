"""Batches into columns."""

from collections.abc import Sequence

import cython

from firnmq.record.batch import DECOMPRESSED_BYTES_MAX, Buffer
from firnmq.record.columns import Columns
from firnmq.record.selection import COLUMN_BYTES_MAX, EVERYTHING, Selection

if not cython.compiled:
    from firnmq.record.codec.constants import HEADER_SIZE, REASONS, RECORD_SIZE_MIN
    from firnmq.record.codec.fields import Fields, fits, next_record
    from firnmq.record.codec.headers import (
        BatchEntry,
        Origin,
        Source,
        checked_header,
        crc_matches,
        payload_of,
    )
    from firnmq.record.codec.memory import View, view_of
    from firnmq.record.codec.plan import Plan
    from firnmq.record.codec.rows import Rows, new_rows


def decode(
    batches: Sequence[Buffer],
    selection: Selection = EVERYTHING,
    *,
    verify: bool = True,
    source: Source = "disk",
    where: str = "",
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
) -> Columns:
    """The selected records of `batches` as one set of columns.

    Each buffer holds one or more whole batches, and offsets rise from batch to batch. Bytes that
    are not such batches raise Corruption, or InvalidRecord if `source` is "client". Records before
    the selection's start are stepped over, not judged.

    Values that are not short are left where they are, unless only few are taken: the columns keep
    the buffers, or what was decompressed from them, open and refer to them. Nothing may be written
    to such a buffer.
    """
    plan: Plan = Plan(selection)
    origin: Origin = Origin(source, where)
    fields: Fields = Fields.__new__(Fields)
    rows: Rows = new_rows()
    view: View
    span: BatchEntry
    position: cython.Py_ssize_t
    largest: cython.Py_ssize_t = max_decompressed
    must_verify: cython.bint = verify
    is_done: cython.bint = False
    last_offset: cython.longlong = -1
    index: cython.Py_ssize_t
    views: list = []
    for buffer in batches:
        view = view_of(buffer)
        views.append(view)
        largest = max(largest, view.size)
        plan.total_bytes += view.size
    plan.may_view = largest <= COLUMN_BYTES_MAX
    for index in range(len(views)):
        buffer = batches[index]
        view = views[index]
        position = 0
        while position < view.size and not is_done:
            span = checked_header(buffer, view, position, False, origin)
            position += span.size
            if span.base_offset <= last_offset:
                raise origin.refusal(span.position, "batch starts before its predecessor ends")
            last_offset = span.last_offset
            if last_offset < plan.start_offset:
                continue
            if span.base_offset >= plan.end_offset:
                plan.next_offset = max(plan.next_offset, plan.end_offset)
                is_done = True
            elif rows.count >= plan.max_records or (
                rows.count > 0 and rows.encoded_bytes >= plan.max_bytes
            ):
                plan.is_limited = True
                is_done = True
            else:
                if must_verify and not crc_matches(buffer, span):
                    raise origin.refusal(span.position, "crc mismatch")
                if span.attributes & 0x20 and not plan.include_control:
                    plan.next_offset = min(span.last_offset + 1, plan.end_offset)
                else:
                    is_done = not _decode_batch(
                        payload_of(buffer, view, span, origin, max_decompressed),
                        span,
                        plan,
                        rows,
                        fields,
                        origin,
                    )
        if is_done:
            break
    return rows.finish(plan)


@cython.cfunc
@cython.exceptval(-1)
def _decode_batch(
    view: View, span: BatchEntry, plan: Plan, rows: Rows, fields: Fields, origin: Origin
) -> cython.bint:
    """Take the wanted records of one batch; whether to go on with the next one."""
    p: cython.p_uchar = view.p
    is_packed: cython.bint = (span.attributes & 7) != 0
    at: cython.Py_ssize_t = 0 if is_packed else span.position + HEADER_SIZE
    end: cython.Py_ssize_t = view.size if is_packed else span.position + span.size
    before: cython.Py_ssize_t
    code: cython.int
    index: cython.longlong
    offset: cython.longlong
    timestamp: cython.longlong
    expiry: cython.longlong
    last_delta: cython.longlong = span.last_offset - span.base_offset
    previous_delta: cython.longlong = -1
    is_append_time: cython.bint = (span.attributes & 8) != 0
    # In variables of this function, since the compiler must read what is behind a pointer again
    # after every byte that is stored.
    base_offset: cython.longlong = span.base_offset
    base_timestamp: cython.longlong = span.base_timestamp
    start_offset: cython.longlong = plan.start_offset
    end_offset: cython.longlong = plan.end_offset
    min_timestamp: cython.longlong = plan.min_timestamp
    may_drop: cython.bint = plan.has_filter or plan.has_now
    delta: cython.longlong
    if span.record_count > (end - at) // RECORD_SIZE_MIN:
        raise origin.refusal(span.position, "more records are counted than the batch can hold")
    if not rows.is_started:
        rows.start(plan, end - at, span.size, span.record_count)
    if rows.has_views:
        rows.views.open_source(view)
    if not plan.is_sparse:
        rows.reserve(rows.count + min(span.record_count, plan.max_records - rows.count))
    for index in range(span.record_count):
        if rows.count >= plan.max_records:
            plan.is_limited = True
            return False
        before = at
        at = next_record(p, at, end, fields)
        if at < 0:
            raise origin.refusal(span.position, f"record {index}: {REASONS[at]}")
        delta = fields.offset_delta
        if delta <= previous_delta or delta > last_delta:
            raise origin.refusal(span.position, f"record {index}: offset delta out of order")
        previous_delta = delta
        offset = base_offset + delta
        if offset < start_offset:
            continue
        if offset >= end_offset:
            plan.next_offset = end_offset
            return False
        if is_append_time:
            timestamp = span.max_timestamp
        else:
            timestamp = fields.timestamp_delta
            if not fits(base_timestamp, timestamp):
                raise origin.refusal(span.position, f"record {index}: timestamp out of range")
            timestamp += base_timestamp
        plan.header_expiry = -1
        plan.has_tag = False
        if fields.header_count > 0:
            code = plan.scan_headers(p, fields)
            if code < 0:
                raise origin.refusal(span.position, f"record {index}: {REASONS[code]}")
        expiry = plan.expiry(timestamp)
        if timestamp < min_timestamp or (may_drop and not plan.keeps(p, fields, offset, expiry)):
            plan.next_offset = offset + 1
            continue
        if rows.count > 0 and rows.encoded_bytes + (at - before) > plan.max_bytes:
            plan.next_offset = offset
            plan.is_limited = True
            return False
        rows.add(p, fields, plan, offset, timestamp, expiry)
        rows.encoded_bytes += at - before
        plan.next_offset = offset + 1
    if at != end and (span.record_count > 0 or not is_packed):
        raise origin.refusal(span.position, "bytes are left over after the last record")
    plan.next_offset = min(span.last_offset + 1, plan.end_offset)
    return True
