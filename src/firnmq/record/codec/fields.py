"""One record: its numbers, its fields and its headers, and the loop that judges many.

Functions that parse return a position, or one of the negative codes of `constants`.
"""

from typing import Any

import cython

from firnmq.record.types import EXPIRE_AT_MS_MAX

if not cython.compiled:
    from firnmq.record.codec.constants import (
        BAD_HEADER_COUNT,
        BAD_HEADER_LENGTH,
        BAD_KEY_LENGTH,
        BAD_NAME,
        BAD_NAME_LENGTH,
        BAD_OFFSET_DELTA,
        BAD_RECORD_LENGTH,
        BAD_TIMESTAMP,
        BAD_VALUE_LENGTH,
        BYTES_LEFT,
        HEADER_SIZE,
        INT64_MAX,
        INT64_MIN,
        LONG_VARINT,
        PAST_END,
        RECORD_SIZE_MIN,
        TOO_LARGE,
    )
    from firnmq.record.codec.memory import equals

if cython.compiled:
    from cython.cimports.libc.string import memcmp

_EXPIRY_DIGITS_MAX = cython.declare(cython.Py_ssize_t, len(str(EXPIRE_AT_MS_MAX)))


@cython.final
@cython.cclass
class Fields:
    """Where the parts of the record just parsed are; a length of -1 means null."""

    number: cython.longlong
    timestamp_delta: cython.longlong
    offset_delta: cython.longlong
    key_at: cython.Py_ssize_t
    key_length: cython.Py_ssize_t
    value_at: cython.Py_ssize_t
    value_length: cython.Py_ssize_t
    header_count: cython.Py_ssize_t
    headers_at: cython.Py_ssize_t
    stop: cython.Py_ssize_t
    # The header just parsed.
    name_at: cython.Py_ssize_t
    name_length: cython.Py_ssize_t
    content_at: cython.Py_ssize_t
    content_length: cython.Py_ssize_t


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _long_varint(
    p: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
    fields: Fields,
) -> cython.Py_ssize_t:
    """A zigzag varint of at most `bits` bits into `fields.number`; the position after it."""
    raw: cython.ulonglong = 0
    byte: cython.ulonglong
    half: cython.longlong
    shift: cython.int = 0
    while True:
        if at >= end:
            return PAST_END
        byte = p[at]
        at += 1
        if bits - shift < 7 and (byte >> (bits - shift)) != 0:
            return LONG_VARINT
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    half = raw >> 1
    fields.number = -half - 1 if raw & 1 else half
    return at


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _varint(
    p: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
    fields: Fields,
) -> cython.Py_ssize_t:
    """`_long_varint` with a short way for one and two bytes, which is nearly all there are."""
    raw: cython.longlong
    high: cython.longlong
    if at < end:
        raw = p[at]
        if raw < 0x80:
            fields.number = (raw >> 1) ^ -(raw & 1)
            return at + 1
        if at + 1 < end and p[at + 1] < 0x80:
            high = p[at + 1]
            raw = (raw & 0x7F) | (high << 7)
            fields.number = (raw >> 1) ^ -(raw & 1)
            return at + 2
    return _long_varint(p, at, end, bits, fields)


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def _next_long_record(
    p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, fields: Fields
) -> cython.Py_ssize_t:
    """`next_record` for numbers of any length, and for whatever is wrong with a record."""
    stop: cython.Py_ssize_t
    at = _varint(p, at, end, 32, fields)
    if at < 0:
        return at
    if fields.number < RECORD_SIZE_MIN - 1 or fields.number > end - at:
        return BAD_RECORD_LENGTH
    stop = at + fields.number
    at = _varint(p, at + 1, stop, 64, fields)  # One byte of unused attributes comes first.
    if at < 0:
        return at
    fields.timestamp_delta = fields.number
    at = _varint(p, at, stop, 32, fields)
    if at < 0:
        return at
    fields.offset_delta = fields.number
    at = _varint(p, at, stop, 32, fields)
    if at < 0:
        return at
    if fields.number < -1 or fields.number > stop - at:
        return BAD_KEY_LENGTH
    fields.key_at = at
    fields.key_length = fields.number
    if fields.number > 0:
        at += fields.number
    at = _varint(p, at, stop, 32, fields)
    if at < 0:
        return at
    if fields.number < -1 or fields.number > stop - at:
        return BAD_VALUE_LENGTH
    fields.value_at = at
    fields.value_length = fields.number
    if fields.number > 0:
        at += fields.number
    at = _varint(p, at, stop, 32, fields)
    if at < 0:
        return at
    if fields.number < 0 or fields.number > (stop - at) >> 1:
        return BAD_HEADER_COUNT
    if fields.number == 0 and at != stop:
        return BYTES_LEFT
    fields.header_count = fields.number
    fields.headers_at = at
    fields.stop = stop
    return stop


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _short_varint(
    p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t
) -> cython.longlong:
    """A varint of up to three bytes as `raw << 2 | length`, 0 where there is none.

    Both results in one number keep the hot loop in registers: a store to memory would make the
    compiler read everything again that a byte pointer might point to.
    """
    first: cython.longlong
    second: cython.longlong
    third: cython.longlong
    if at >= end:
        return 0
    first = p[at]
    if first < 0x80:
        return first << 2 | 1
    if at + 2 >= end:
        return 0
    second = p[at + 1]
    if second < 0x80:
        return ((first & 0x7F) | second << 7) << 2 | 2
    third = p[at + 2]
    if third < 0x80:
        return ((first & 0x7F) | (second & 0x7F) << 7 | third << 14) << 2 | 3
    return 0


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def _unzigzag(short: cython.longlong) -> cython.longlong:
    """The signed number in a `_short_varint`."""
    return (short >> 3) ^ -((short >> 2) & 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def next_record(
    p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, fields: Fields
) -> cython.Py_ssize_t:
    """Parse one record up to its headers. The position after the record, or a code."""
    start: cython.Py_ssize_t = at
    stop: cython.Py_ssize_t
    size: cython.longlong = _short_varint(p, at, end)
    timestamp: cython.longlong
    offset: cython.longlong
    key: cython.longlong
    key_length: cython.longlong
    key_at: cython.Py_ssize_t
    value: cython.longlong
    value_length: cython.longlong
    headers: cython.longlong
    count: cython.longlong
    at += size & 3
    size = _unzigzag(size)
    if size < RECORD_SIZE_MIN - 1 or size > end - at:
        return _next_long_record(p, start, end, fields)
    stop = at + size
    timestamp = _short_varint(p, at + 1, stop)
    at += 1 + (timestamp & 3)
    offset = _short_varint(p, at, stop)
    at += offset & 3
    key = _short_varint(p, at, stop)
    key_length = _unzigzag(key)
    at += key & 3
    key_at = at
    if timestamp == 0 or offset == 0 or key == 0 or key_length < -1 or key_length > stop - at:
        return _next_long_record(p, start, end, fields)
    if key_length > 0:
        at += key_length
    value = _short_varint(p, at, stop)
    value_length = _unzigzag(value)
    at += value & 3
    if value == 0 or value_length < -1 or value_length > stop - at:
        return _next_long_record(p, start, end, fields)
    fields.value_at = at
    if value_length > 0:
        at += value_length
    headers = _short_varint(p, at, stop)
    count = _unzigzag(headers)
    at += headers & 3
    if headers == 0 or count < 0 or count > (stop - at) >> 1 or (count == 0 and at != stop):
        return _next_long_record(p, start, end, fields)
    fields.timestamp_delta = _unzigzag(timestamp)
    fields.offset_delta = _unzigzag(offset)
    fields.key_at = key_at
    fields.key_length = key_length
    fields.value_length = value_length
    fields.header_count = count
    fields.headers_at = at
    fields.stop = stop
    return stop


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def next_header(p: cython.p_uchar, at: cython.Py_ssize_t, fields: Fields) -> cython.Py_ssize_t:
    """Parse one header of the record in `fields`. The position after it, or a code."""
    at = _varint(p, at, fields.stop, 32, fields)
    if at < 0:
        return at
    if fields.number < 0 or fields.number > fields.stop - at:
        return BAD_NAME_LENGTH
    fields.name_at = at
    fields.name_length = fields.number
    at += fields.number
    at = _varint(p, at, fields.stop, 32, fields)
    if at < 0:
        return at
    if fields.number < -1 or fields.number > fields.stop - at:
        return BAD_HEADER_LENGTH
    fields.content_at = at
    fields.content_length = fields.number
    return at + fields.number if fields.number > 0 else at


@cython.cfunc
@cython.inline
def is_tag(p: cython.p_uchar, fields: Fields, names: tuple) -> cython.bint:
    """Whether the header just parsed is a tag: a name among `names`, and a value."""
    name: Any
    if fields.content_length < 0:
        return False
    for name in names:
        if equals(p, fields.name_at, fields.name_length, name):
            return True
    return False


@cython.cfunc
@cython.exceptval(check=False)
@cython.nogil
def expiry_of(p: cython.p_uchar, fields: Fields) -> cython.longlong:
    """The header's value as decimal digits; -1 if it is anything else."""
    index: cython.Py_ssize_t
    digit: cython.longlong
    number: cython.longlong = 0
    if fields.content_length < 1 or fields.content_length > _EXPIRY_DIGITS_MAX:
        return -1
    for index in range(fields.content_at, fields.content_at + fields.content_length):
        digit = p[index]
        if digit < 48 or digit > 57:
            return -1
        number = number * 10 + (digit - 48)
    return number


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
@cython.nogil
def fits(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    """Whether the sum is a 64-bit number."""
    if delta >= 0:
        return base <= INT64_MAX - delta
    return base >= INT64_MIN - delta


@cython.final
@cython.cclass
class Found:
    """What `walk_records` found, up to the first record that is not sound."""

    index: cython.longlong
    # Where the record `index` begins, or where the last one ends.
    at: cython.Py_ssize_t
    size: cython.Py_ssize_t
    offset_delta: cython.longlong
    newest: cython.longlong
    has_terms: cython.bint
    has_keyless: cython.bint
    first_expiry: cython.longlong


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def walk_records(
    p: cython.p_uchar,
    end: cython.Py_ssize_t,
    record_count: cython.longlong,
    base_timestamp: cython.longlong,
    max_record_bytes: cython.longlong,
    expire_header: cython.p_uchar,
    expire_length: cython.Py_ssize_t,
    fields: Fields,
    found: Found,
) -> cython.int:
    """0, or the code of what is wrong with the record `found.index`."""
    at: cython.Py_ssize_t = HEADER_SIZE
    before: cython.Py_ssize_t
    code: cython.int = 0
    index: cython.longlong
    newest: cython.longlong = INT64_MIN
    has_terms: cython.bint = False
    has_keyless: cython.bint = False
    found.first_expiry = -1
    fields.offset_delta = 0  # In case the first record is not even parsed.
    for index in range(record_count):
        before = at
        at = next_record(p, at, end, fields)
        if at < 0:
            code = at
        elif at - before > max_record_bytes:
            code = TOO_LARGE
        elif fields.offset_delta != index:
            code = BAD_OFFSET_DELTA
        elif not fits(base_timestamp, fields.timestamp_delta):
            code = BAD_TIMESTAMP
        else:
            newest = max(newest, base_timestamp + fields.timestamp_delta)
            if fields.key_length < 0:
                has_keyless = True
            else:
                has_terms = True
            if fields.header_count > 0:
                has_terms = True
                code = _walk_headers(p, expire_header, expire_length, fields, found)
        if code != 0:
            found.index = index
            found.at = before
            found.size = at - before
            found.offset_delta = fields.offset_delta
            return code
    found.at = at
    found.newest = newest
    found.has_terms = has_terms
    found.has_keyless = has_keyless
    return 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _walk_headers(
    p: cython.p_uchar,
    expire_header: cython.p_uchar,
    expire_length: cython.Py_ssize_t,
    fields: Fields,
    found: Found,
) -> cython.int:
    """0, or the code of what is wrong with a header of the record in `fields`."""
    at: cython.Py_ssize_t = fields.headers_at
    index: cython.Py_ssize_t
    expiry: cython.longlong = -1
    for index in range(fields.header_count):
        at = next_header(p, at, fields)
        if at < 0:
            return at
        if not _is_utf8(p, fields.name_at, fields.name_at + fields.name_length):
            return BAD_NAME
        if fields.name_length == expire_length and _same(
            p, fields.name_at, expire_header, expire_length
        ):
            expiry = expiry_of(p, fields)
    if at != fields.stop:
        return BYTES_LEFT
    if expiry >= 0 and (found.first_expiry < 0 or expiry < found.first_expiry):
        found.first_expiry = expiry
    return 0


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _same(
    p: cython.p_uchar, at: cython.Py_ssize_t, other: cython.p_uchar, length: cython.Py_ssize_t
) -> cython.bint:
    if cython.compiled:
        return memcmp(p + at, other, length) == 0
    else:
        return p[at : at + length] == other


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _is_utf8(p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t) -> cython.bint:
    """Whether the bytes are UTF-8 as Python's strict decoder understands it."""
    first: cython.int
    second_min: cython.int
    second_max: cython.int
    more: cython.int
    while at < end:
        first = p[at]
        at += 1
        if first < 0x80:
            continue
        if first < 0xC2 or first > 0xF4:
            return False
        more = 1 if first < 0xE0 else 2 if first < 0xF0 else 3
        if end - at < more:
            return False
        # The second byte excludes encodings longer than needed, surrogates and what is too large.
        second_min = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
        second_max = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
        if p[at] < second_min or p[at] > second_max:
            return False
        at += 1
        while more > 1:
            if p[at] & 0xC0 != 0x80:
                return False
            at += 1
            more -= 1
    return True
