"""Records and columns into batches."""

from collections.abc import Sequence
from typing import Any

import cython
from crc32c import crc32c

from firnmq.errors import InvalidArgument, InvalidRecord, LimitExceeded
from firnmq.record.batch import (
    BATCH_BYTES_MAX,
    CRC_START,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    OFFSET_MAX,
    RECORD_BYTES_MAX,
    Compression,
)
from firnmq.record.columns import Columns
from firnmq.record.compression import compress
from firnmq.record.types import (
    EXPIRE_AT_MS_MAX,
    RECORD_OVERHEAD_BYTES,
    TIMESTAMP_MS_MAX,
    NewRecord,
    checked,
)

if not cython.compiled:
    from firnmq.record.codec.constants import HEADER_SIZE
    from firnmq.record.codec.memory import Store, new_store

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING
    from cython.cimports.libc.string import memcpy

# What `checked` adds to the lengths of key and value.
_CHECKED_OVERHEAD = cython.declare(cython.Py_ssize_t, RECORD_OVERHEAD_BYTES)
# Space for a record besides key, value and headers: five lengths, two deltas, one byte.
_RECORD_OVERHEAD = cython.declare(cython.Py_ssize_t, 48)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_varint(
    p: cython.p_uchar, at: cython.Py_ssize_t, value: cython.longlong
) -> cython.Py_ssize_t:
    """Write a zigzag varint; the position after it."""
    raw: cython.ulonglong
    if value >= 0:
        raw = value
        raw = raw << 1
    else:
        raw = -(value + 1)
        raw = (raw << 1) | 1
    while raw > 0x7F:
        p[at] = (raw & 0x7F) | 0x80
        raw >>= 7
        at += 1
    p[at] = raw
    return at + 1


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _varint_size(value: cython.longlong) -> cython.Py_ssize_t:
    half: cython.longlong = value if value >= 0 else -(value + 1)
    size: cython.Py_ssize_t = 1
    half >>= 6
    while half > 0:
        size += 1
        half >>= 7
    return size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_bytes(p: cython.p_uchar, at: cython.Py_ssize_t, content: Any) -> cython.Py_ssize_t:
    """Write a length and the bytes it counts, or -1 for None."""
    length: cython.Py_ssize_t
    if content is None:
        return _put_varint(p, at, -1)
    length = len(cython.cast(bytes, content))
    at = _put_varint(p, at, length)
    if cython.compiled:
        memcpy(p + at, PyBytes_AS_STRING(content), length)
    else:
        p[at : at + length] = content
    return at + length


@cython.cfunc
@cython.inline
@cython.exceptval(-1)
def _length(field: str, content: Any) -> cython.Py_ssize_t:
    """Length of bytes, -1 of None; InvalidRecord for anything else."""
    if content is None:
        return -1
    if not isinstance(content, bytes):
        raise InvalidRecord(f"{field} must be bytes or None, not {type(content).__name__}")
    return len(cython.cast(bytes, content))


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _field_size(length: cython.Py_ssize_t) -> cython.Py_ssize_t:
    return _varint_size(length) + (length if length > 0 else 0)


@cython.cfunc
@cython.exceptval(-1)
def _put_record(
    out: Store,
    at: cython.Py_ssize_t,
    offset_delta: cython.longlong,
    timestamp_delta: cython.longlong,
    key: Any,
    value: Any,
    headers: list | None,
) -> cython.Py_ssize_t:
    """Write one record, whose headers alternate between names and values."""
    key_length: cython.Py_ssize_t = -1 if key is None else len(cython.cast(bytes, key))
    value_length: cython.Py_ssize_t = -1 if value is None else len(cython.cast(bytes, value))
    size: cython.Py_ssize_t
    header_count: cython.Py_ssize_t = 0
    part: Any
    size = (
        1
        + _varint_size(timestamp_delta)
        + _varint_size(offset_delta)
        + _field_size(key_length)
        + _field_size(value_length)
    )
    if headers is not None:
        header_count = len(headers) >> 1
        for part in headers:
            size += _field_size(-1 if part is None else len(cython.cast(bytes, part)))
    size += _varint_size(header_count)
    if at + size + 5 > BATCH_BYTES_MAX:
        raise LimitExceeded("batch", at + size, BATCH_BYTES_MAX)
    out.reserve(at + size + 5)
    at = _put_varint(out.p8, at, size)
    out.p8[at] = 0
    at = _put_varint(out.p8, at + 1, timestamp_delta)
    at = _put_varint(out.p8, at, offset_delta)
    at = _put_bytes(out.p8, at, key)
    at = _put_bytes(out.p8, at, value)
    at = _put_varint(out.p8, at, header_count)
    if headers is not None:
        for part in headers:
            at = _put_bytes(out.p8, at, part)
    return at


@cython.cfunc
def _header_parts(record: Any, index: Any, tag_header: bytes, expire_header: bytes) -> list:
    """Names and values of all headers a new record is stored with."""
    parts: list = []
    try:
        for name, content in record.headers:
            _length("header value", content)
            parts.append(name.encode("utf-8"))
            parts.append(content)
        for tag in record.tags:
            parts.append(tag_header)
            parts.append(tag.encode("utf-8", "surrogateescape"))
        if record.expire_at_ms is not None:
            parts.append(expire_header)
            parts.append(b"%d" % _time("expire_at_ms", record.expire_at_ms, EXPIRE_AT_MS_MAX))
    except (AttributeError, TypeError, ValueError) as bad:
        raise InvalidRecord(f"record {index}: headers or tags are malformed: {bad}") from bad
    return parts


@cython.cfunc
@cython.exceptval(-1)
def _time(field: str, value: Any, limit: Any) -> cython.longlong:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0 or value > limit:
        raise InvalidRecord(f"{field} must be an int in 0..{limit}, not {value!r}")
    return value


def encode_some(
    records: Sequence[NewRecord],
    start: int = 0,
    *,
    now_ms: int,
    compression: Compression = Compression.NONE,
    tag_header: bytes = b"tag",
    expire_header: bytes = b"expire-at",
    max_record_bytes: int = RECORD_BYTES_MAX,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    max_records: int = 2**31 - 1,
) -> tuple[bytearray, int, bool]:
    """One batch of records from `start` on: as many as the limits allow, but at least one.

    Every record is checked as `checked` does it. Returns the batch, the index of the first record
    that is not in it, and whether any has a key or headers, so that an index may want it. The
    limit in bytes is on records before they are compressed; a single record may exceed it.
    """
    out: Store = new_store(1, 1024)
    at: cython.Py_ssize_t = HEADER_SIZE
    first: cython.Py_ssize_t = start
    stop: cython.Py_ssize_t = min(len(records), start + max_records)
    index: cython.Py_ssize_t
    size: cython.Py_ssize_t
    size_max: cython.Py_ssize_t = max_record_bytes
    end_max: cython.Py_ssize_t = min(max_batch_bytes, BATCH_BYTES_MAX)
    default: cython.longlong = _time("now_ms", now_ms, TIMESTAMP_MS_MAX)
    timestamp: cython.longlong
    base_timestamp: cython.longlong = 0
    max_timestamp: cython.longlong = 0
    headers: list | None
    has_terms: cython.bint = False
    if first >= stop:
        raise InvalidRecord("a batch needs at least one record")
    for index in range(first, stop):
        record = records[index]
        if not isinstance(record, NewRecord):
            raise InvalidRecord(f"expected a NewRecord, got {type(record).__name__}")
        key = record.key
        value = record.value
        moment = record.timestamp_ms
        size = _length("key", key) + _length("value", value) + _CHECKED_OVERHEAD
        headers = None
        if record.headers or record.tags or record.expire_at_ms is not None:
            checked(record, max_record_bytes=max_record_bytes)
            headers = _header_parts(record, index, tag_header, expire_header)
            for part in headers:
                size += 5 if part is None else 5 + len(cython.cast(bytes, part))
        elif size > size_max:
            raise LimitExceeded("record", size, max_record_bytes, option="max.record.bytes")
        if moment is None:
            timestamp = default
        else:
            timestamp = _time("timestamp_ms", moment, TIMESTAMP_MS_MAX)
        if index == first:
            base_timestamp = max_timestamp = timestamp
            # Records of one batch are mostly alike, so the first one tells how much is needed.
            out.reserve(min(end_max, at + (stop - first) * size) + size)
        elif at + size > end_max:
            stop = index
            break
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        if key is not None or headers is not None:
            has_terms = True
        at = _put_record(out, at, index - first, timestamp - base_timestamp, key, value, headers)
    batch = _seal(
        out.finish(at),
        0,
        0,
        compression,
        stop - first - 1,
        base_timestamp,
        max_timestamp,
        (-1, -1, -1),
        stop - first,
    )
    return batch, stop, has_terms


def encode(
    records: Sequence[NewRecord],
    *,
    now_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
    compression: Compression = Compression.NONE,
    tag_header: bytes = b"tag",
    expire_header: bytes = b"expire-at",
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One batch of all `records`, in order, with consecutive offsets.

    A record without a timestamp gets `now_ms`. Tags and expiry become headers after the record's
    own. InvalidRecord if a field has the wrong type, LimitExceeded if the batch gets too large.
    """
    out: Store
    at: cython.Py_ssize_t = HEADER_SIZE
    count: cython.Py_ssize_t = len(records)
    index: cython.Py_ssize_t = 0
    default: cython.longlong = _time("now_ms", now_ms, TIMESTAMP_MS_MAX)
    timestamp: cython.longlong
    base_timestamp: cython.longlong = 0
    max_timestamp: cython.longlong = 0
    headers: list | None
    if count == 0:
        raise InvalidRecord("a batch needs at least one record")
    out = new_store(1, 1024)
    for record in records:
        if not isinstance(record, NewRecord):
            raise InvalidRecord(f"record {index}: not a NewRecord but {type(record).__name__}")
        key = record.key
        value = record.value
        size = _length("key", key) + _length("value", value)
        moment = record.timestamp_ms
        timestamp = default
        if moment is not None:
            timestamp = _time("timestamp_ms", moment, TIMESTAMP_MS_MAX)
        headers = None
        if record.headers or record.tags or record.expire_at_ms is not None:
            headers = _header_parts(record, index, tag_header, expire_header)
        if index == 0:
            base_timestamp = max_timestamp = timestamp
            # Records of one batch are mostly alike, so the first one tells how much is needed.
            out.reserve(at + min(BATCH_BYTES_MAX, count * (size + _RECORD_OVERHEAD)))
        elif timestamp > max_timestamp:
            max_timestamp = timestamp
        at = _put_record(out, at, index, timestamp - base_timestamp, key, value, headers)
        index += 1
    return _seal(
        out.finish(at),
        base_offset,
        leader_epoch,
        compression,
        index - 1,
        base_timestamp,
        max_timestamp,
        (producer_id, producer_epoch, base_sequence),
        index,
    )


def encode_columns(
    columns: Columns,
    *,
    base_offset: int | None = None,
    leader_epoch: int = 0,
    compression: Compression = Compression.NONE,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """One batch of all records of `columns`, which must have keys, values and headers.

    Without `base_offset` the records keep their offsets, gaps included; with it they are numbered
    from there on. Tags and expiry are in the headers already.
    """
    names = columns.header_names
    contents = columns.header_values
    bounds = columns.header_bounds
    if (
        columns.keys is None
        or columns.values is None
        or (names is None or contents is None or bounds is None)
    ):
        raise InvalidArgument("columns", "keys, values and headers are needed to encode records")
    if len(columns) == 0:
        raise InvalidRecord("a batch needs at least one record")
    out: Store = new_store(1, 1024)
    at: cython.Py_ssize_t = HEADER_SIZE
    index: cython.Py_ssize_t
    delta: Any
    headers: list | None
    offsets = columns.offsets
    first = offsets[0] if base_offset is None else base_offset
    base_timestamp = columns.timestamps[0]
    max_timestamp = base_timestamp
    keys = columns.keys.entries()
    values = columns.values.entries()
    previous: Any = -1
    for index in range(len(columns)):
        delta = offsets[index] - first if base_offset is None else index
        if delta <= previous or delta > 2**31 - 1:
            raise InvalidRecord(f"row {index}: offset {offsets[index]} does not follow in a batch")
        previous = delta
        timestamp = columns.timestamps[index]
        max_timestamp = max(max_timestamp, timestamp)
        shift = timestamp - base_timestamp
        if shift < -(2**63) or shift > 2**63 - 1:
            raise InvalidRecord(f"row {index}: timestamp {timestamp} is too far from the first")
        headers = None
        if bounds[index] != bounds[index + 1]:
            headers = []
            for entry in range(bounds[index], bounds[index + 1]):
                headers.append(names[entry] or b"")
                headers.append(contents[entry])
        at = _put_record(out, at, delta, shift, keys[index], values[index], headers)
    return _seal(
        out.finish(at),
        first,
        leader_epoch,
        compression,
        previous,
        base_timestamp,
        max_timestamp,
        (producer_id, producer_epoch, base_sequence),
        len(columns),
    )


@cython.cfunc
def _seal(
    batch: Any,
    base_offset: Any,
    leader_epoch: Any,
    compression: Any,
    last_offset_delta: Any,
    base_timestamp: Any,
    max_timestamp: Any,
    producer: tuple,
    count: Any,
) -> Any:
    """Compress what follows the space for the header, and fill that in."""
    if not 0 <= base_offset <= OFFSET_MAX:
        raise InvalidArgument("base_offset", f"{base_offset} is outside 0..{OFFSET_MAX}")
    if compression != 0:
        packed = compress(Compression(compression), memoryview(batch)[HEADER_BYTES:])
        batch = bytearray(HEADER_BYTES)
        batch += packed
    fields = (
        0,
        int(compression),
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        *producer,
        count,
    )
    prefix = (base_offset, len(batch) - LENGTH_END, leader_epoch, MAGIC)
    HEADER.pack_into(batch, 0, *prefix, *fields)
    # Not letting go of the interpreter's lock: a batch takes microseconds, and getting the lock
    # back may take as long as every other thread that wants it.
    crc = crc32c(memoryview(batch)[CRC_START:], 0, 0)
    batch[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    return batch
