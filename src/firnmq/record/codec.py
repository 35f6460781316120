# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
# mypy: disable-error-code="untyped-decorator, no-any-return, type-arg"
"""The loops over batch bytes: walk, decode, collect, validate, encode.

This one file is Cython in pure-Python mode. Compiled, its variables are C variables and its `p_…`
values are C pointers; interpreted, the same names hold Python numbers and buffers.

Long because whatever shares these C types must be compiled together.

Bounds are not checked by the compiler. Each read is therefore preceded by a comparison with the
end of what may be read, and each length taken from bytes is compared with the bytes that remain
before it is used. Functions that parse return a position, or one of the negative codes of
`_REASONS`; only the functions that know whose bytes they are reading turn a code into an error.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from sys import byteorder
from typing import Any, Literal

import cython
from crc32c import crc32c

from firnmq.errors import (
    Corruption,
    InvalidArgument,
    InvalidRecord,
    LimitExceeded,
)
from firnmq.record.batch import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    BATCH_BYTES_MAX,
    CRC_START,
    DECOMPRESSED_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    OFFSET_MAX,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    BatchHeader,
    Buffer,
    Compression,
    parse_header,
)
from firnmq.record.columns import NO_ENTRIES, BinaryColumn, Columns
from firnmq.record.compression import compress, decompress
from firnmq.record.selection import COLUMN_BYTES_MAX, EVERYTHING, Selection
from firnmq.record.types import (
    EXPIRE_AT_MS_MAX,
    RECORD_OVERHEAD_BYTES,
    TIMESTAMP_MS_MAX,
    BatchTerms,
    NewRecord,
    checked,
)

if cython.compiled:
    from cython.cimports.cpython.buffer import (
        Py_buffer,
        PyBUF_SIMPLE,
        PyBuffer_Release,
        PyObject_GetBuffer,
    )
    from cython.cimports.cpython.bytearray import PyByteArray_AS_STRING, PyByteArray_Resize
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcmp, memcpy

Source = Literal["disk", "client"]
"""Whose bytes they are: bad ones from disk are Corruption, bad ones from a client InvalidRecord."""

IS_COMPILED = cython.compiled

_INT64_MAX = cython.declare(cython.longlong, 2**63 - 1)
_INT64_MIN = cython.declare(cython.longlong, -_INT64_MAX - 1)
_HEADER_BYTES = cython.declare(cython.Py_ssize_t, HEADER_BYTES)
_LENGTH_END = cython.declare(cython.Py_ssize_t, LENGTH_END)
_ATTRIBUTES_UNUSUAL = cython.declare(
    cython.int, ATTRIBUTE_CODEC | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_CONTROL
)
_KEEP_LOCK = 0
"""Tells crc32c not to let go of the interpreter's lock: for a few bytes that costs more."""
_OFFSET_MAX = cython.declare(cython.longlong, OFFSET_MAX)
_RECORD_BYTES_MIN = cython.declare(cython.Py_ssize_t, RECORD_BYTES_MIN)
_EXPIRY_DIGITS_MAX = cython.declare(cython.Py_ssize_t, len(str(EXPIRE_AT_MS_MAX)))

# What `checked` adds to the lengths of key and value.
_CHECKED_OVERHEAD = cython.declare(cython.Py_ssize_t, RECORD_OVERHEAD_BYTES)
# From this length of a record on its value is not copied: below it, copying the value now costs
# no more than finding it again later.
_VIEWED_BYTES_MIN = cython.declare(cython.Py_ssize_t, 256)
# What records are taken to expand to at most before they are decompressed.
_EXPANSION_MAX = cython.declare(cython.Py_ssize_t, 8)
# Room for a record besides key, value and headers: five lengths, two deltas, one byte.
_RECORD_OVERHEAD = cython.declare(cython.Py_ssize_t, 48)
# Room for the two lengths of a header.
_HEADER_OVERHEAD = cython.declare(cython.Py_ssize_t, 10)

_PAST_END = cython.declare(cython.int, -1)
_LONG_VARINT = cython.declare(cython.int, -2)
_BAD_RECORD_LENGTH = cython.declare(cython.int, -3)
_BAD_KEY_LENGTH = cython.declare(cython.int, -4)
_BAD_VALUE_LENGTH = cython.declare(cython.int, -5)
_BAD_HEADER_COUNT = cython.declare(cython.int, -6)
_BAD_NAME_LENGTH = cython.declare(cython.int, -7)
_BAD_HEADER_LENGTH = cython.declare(cython.int, -8)
_BYTES_LEFT = cython.declare(cython.int, -9)
_TRUNCATED = cython.declare(cython.int, -10)
_BAD_LENGTH = cython.declare(cython.int, -11)
_BAD_MAGIC = cython.declare(cython.int, -12)
_BAD_OFFSET = cython.declare(cython.int, -13)
_BAD_COUNT = cython.declare(cython.int, -14)

_REASONS = {
    -1: "a number or field runs past the end",
    -2: "a number has too many bytes",
    -3: "record length does not fit the bytes that remain",
    -4: "key length does not fit the record",
    -5: "value length does not fit the record",
    -6: "header count does not fit the record",
    -7: "header name length does not fit the record",
    -8: "header value length does not fit the record",
    -9: "bytes are left over at the end of the record",
    -10: "truncated",
    -11: "bad length",
    -12: "bad magic",
    -13: "bad offset",
    -14: "bad record count",
}


# ---------------------------------------------------------------- bytes in, bytes out


@cython.final
@cython.cclass
class _View:
    """Holds a buffer open and points at its bytes."""

    if cython.compiled:
        raw: Py_buffer
    owner: Any
    p: cython.p_uchar
    size: cython.Py_ssize_t
    is_open: cython.bint

    def __dealloc__(self) -> None:
        if cython.compiled:
            if self.is_open:
                PyBuffer_Release(cython.address(self.raw))


@cython.cfunc
def _view(buffer: Any) -> _View:
    # A function instead of a constructor, here and below, saves packing and turning its arguments
    # into objects.
    view: _View = _View.__new__(_View)
    view.owner = buffer
    if cython.compiled:
        PyObject_GetBuffer(buffer, cython.address(view.raw), PyBUF_SIMPLE)
        view.is_open = True
        view.p = cython.cast(cython.p_uchar, view.raw.buf)
        view.size = view.raw.len
    else:
        view.p = memoryview(buffer).cast("B")
        view.size = len(view.p)
    return view


@cython.final
@cython.cclass
class _Store:
    """A growing array of 1, 4 or 8 byte items, filled through one of its three pointers.

    Compiled it is a bytearray whose memory is written directly; interpreted it is a bytearray or
    an array, and all pointers are that object.
    """

    owner: Any
    p8: cython.p_uchar
    p32: cython.p_int
    p64: cython.p_longlong
    capacity: cython.Py_ssize_t
    item_bytes: cython.Py_ssize_t

    @cython.cfunc
    @cython.exceptval(-1)
    def resize(self, capacity: cython.Py_ssize_t) -> cython.int:
        if cython.compiled:
            PyByteArray_Resize(self.owner, capacity * self.item_bytes)
            self.p8 = cython.cast(cython.p_uchar, PyByteArray_AS_STRING(self.owner))
            self.p32 = cython.cast(cython.p_int, self.p8)
            self.p64 = cython.cast(cython.p_longlong, self.p8)
        else:
            if capacity < self.capacity:
                del self.owner[capacity:]
            elif self.item_bytes == 1:
                self.owner.extend(bytes(capacity - self.capacity))
            else:
                self.owner.frombytes(bytes((capacity - self.capacity) * self.item_bytes))
            self.p8 = self.p32 = self.p64 = self.owner
        self.capacity = capacity
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, needed: cython.Py_ssize_t) -> cython.int:
        """Make room for `needed` items in all, and for half as many again as there is now."""
        if needed > self.capacity:
            self.resize(max(needed, self.capacity + (self.capacity >> 1)))
        return 0

    @cython.cfunc
    def finish(self, count: cython.Py_ssize_t) -> Any:
        """The array with its first `count` items; nothing may be added afterwards."""
        self.resize(count)
        return self.owner


@cython.cfunc
def _store(item_bytes: cython.Py_ssize_t, capacity: cython.Py_ssize_t) -> _Store:
    store: _Store = _Store.__new__(_Store)
    store.item_bytes = item_bytes
    store.capacity = 0
    if cython.compiled:
        store.owner = bytearray()
    else:
        store.owner = bytearray() if item_bytes == 1 else array("i" if item_bytes == 4 else "q")
    store.resize(capacity)
    return store


@cython.cfunc
@cython.inline
def _bytes(p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> bytes:
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, p + at), length)
    else:
        return bytes(p[at : at + length])


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _equals(
    p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t, text: bytes
) -> cython.bint:
    if length != len(text):
        return False
    if cython.compiled:
        return memcmp(p + at, PyBytes_AS_STRING(text), length) == 0
    else:
        return p[at : at + length] == text


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _integer(p: cython.p_uchar, at: cython.Py_ssize_t, size: cython.Py_ssize_t) -> cython.longlong:
    """A big-endian two's complement number of `size` bytes."""
    index: cython.Py_ssize_t
    value: cython.longlong = p[at]
    if value > 127:
        value -= 256
    for index in range(at + 1, at + size):
        value = value * 256 + p[index]
    return value


# ---------------------------------------------------------------- one batch header


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
def _read_header(
    p: cython.p_uchar, position: cython.Py_ssize_t, end: cython.Py_ssize_t, span: BatchEntry
) -> cython.int:
    """Fill `span` from the header at `position`. 0, or a code; _TRUNCATED only if nothing else
    is wrong, with `span.size` then being what the batch needs, as far as that is known."""
    delta: cython.longlong
    span.position = position
    span.size = _HEADER_BYTES
    if end - position < _HEADER_BYTES:
        return _TRUNCATED
    span.size = _integer(p, position + 8, 4) + _LENGTH_END
    if span.size < _HEADER_BYTES:
        return _BAD_LENGTH
    if p[position + 16] != 2:
        return _BAD_MAGIC
    span.base_offset = _integer(p, position, 8)
    delta = _integer(p, position + 23, 4)
    if span.base_offset < 0 or span.base_offset > _OFFSET_MAX or delta < 0:
        return _BAD_OFFSET
    span.last_offset = span.base_offset + delta
    span.record_count = _integer(p, position + 57, 4)
    if span.record_count < 0 or span.record_count > delta + 1:
        return _BAD_COUNT
    span.leader_epoch = _integer(p, position + 12, 4)
    span.crc = _integer(p, position + 17, 4) & 0xFFFFFFFF
    span.attributes = _integer(p, position + 21, 2)
    span.base_timestamp = _integer(p, position + 27, 8)
    span.max_timestamp = _integer(p, position + 35, 8)
    span.producer_id = _integer(p, position + 43, 8)
    span.producer_epoch = _integer(p, position + 51, 2)
    span.base_sequence = _integer(p, position + 53, 4)
    return _TRUNCATED if span.size > end - position else 0


@cython.cfunc
def _crc_matches(buffer: Any, span: BatchEntry) -> cython.bint:
    covered = memoryview(buffer)[span.position + CRC_START : span.position + span.size]
    return crc32c(covered) == span.crc


# ---------------------------------------------------------------- CRCs of joined bytes

# A CRC is a polynomial over two elements, reflected: its top bit is the coefficient of x**0.
_POLYNOMIAL = cython.declare(cython.ulonglong, 0x82F63B78)
_ONE = cython.declare(cython.ulonglong, 1 << 31)
# After this many bits x comes round to 1, and so do bytes, since 8 has no divisor in common.
_PERIOD = cython.declare(cython.longlong, 2**31 - 1)
_CRC_START = cython.declare(cython.Py_ssize_t, CRC_START)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _times_x(polynomial: cython.ulonglong) -> cython.ulonglong:
    return (polynomial >> 1) ^ (-(polynomial & 1) & _POLYNOMIAL)


@cython.cfunc
def _byte_table() -> _Store:
    """Each polynomial of eight terms, the highest a CRC can have, times x**8."""
    table: _Store = _store(8, 256)
    polynomial: cython.ulonglong
    index: cython.Py_ssize_t
    bit: cython.int
    for index in range(256):
        polynomial = index
        for bit in range(8):
            polynomial = _times_x(polynomial)
        table.p64[index] = polynomial
    return table


_BYTE_TABLE = _byte_table()
_BYTE_SHIFTED = cython.declare(cython.p_longlong)
_BYTE_SHIFTED = cython.cast(_Store, _BYTE_TABLE).p64


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _times_byte(polynomial: cython.ulonglong) -> cython.ulonglong:
    """Times x**8."""
    return (polynomial >> 8) ^ _BYTE_SHIFTED[polynomial & 0xFF]


@cython.cfunc
@cython.exceptval(check=False)
def _times(first: cython.ulonglong, second: cython.ulonglong) -> cython.ulonglong:
    """The product of two polynomials modulo that of CRC32C."""
    # Four chains of eight steps, which a processor takes side by side, instead of one of 32.
    at_8: cython.ulonglong = _times_byte(second)
    at_16: cython.ulonglong = _times_byte(at_8)
    at_24: cython.ulonglong = _times_byte(at_16)
    product: cython.ulonglong = 0
    bit: cython.int
    for bit in range(7, -1, -1):
        product ^= -((first >> (bit + 24)) & 1) & second
        product ^= -((first >> (bit + 16)) & 1) & at_8
        product ^= -((first >> (bit + 8)) & 1) & at_16
        product ^= -((first >> bit) & 1) & at_24
        second = _times_x(second)
        at_8 = _times_x(at_8)
        at_16 = _times_x(at_16)
        at_24 = _times_x(at_24)
    return product


@cython.cfunc
def _shift_tables() -> _Store:
    """What a CRC is multiplied with when bytes follow: number b of part k is for b * 256**k."""
    tables: _Store = _store(8, 4 * 256)
    step: cython.ulonglong = _ONE >> 8
    index: cython.Py_ssize_t
    for index in range(4 * 256):
        if index & 0xFF == 0:
            tables.p64[index] = _ONE
        else:
            tables.p64[index] = _times(tables.p64[index - 1], step)
            if index & 0xFF == 0xFF:
                step = _times(tables.p64[index], step)
    return tables


_SHIFT_TABLES = _shift_tables()
_SHIFTS = cython.declare(cython.p_longlong)
_SHIFTS = cython.cast(_Store, _SHIFT_TABLES).p64


@cython.cfunc
@cython.exceptval(check=False)
def _combined(
    first: cython.ulonglong, second: cython.ulonglong, length: cython.longlong
) -> cython.ulonglong:
    part: cython.Py_ssize_t = 0
    while length > 0:
        if length & 0xFF != 0:
            first = _times(first, _SHIFTS[part + (length & 0xFF)])
        length >>= 8
        part += 256
    return first ^ second


def combine_crc(first: int, second: int, second_length: int) -> int:
    """The CRC32C of two byte strings put together, from theirs and the second one's length."""
    if not (0 <= first < 2**32 and 0 <= second < 2**32):
        raise InvalidArgument("first, second", "a CRC is a number of 32 bits")
    if second_length < 0:
        raise InvalidArgument("second_length", f"{second_length} is negative")
    return _combined(first, second, second_length % _PERIOD)


def chain_batch_crc(chained: cython.longlong, batch: Buffer) -> int:
    """The CRC32C of everything before `batch` and the batch, from that of what is before.

    Equals `crc32c(batch, chained)` if the batch's own CRC is right, of which its caller must be
    sure; the records are not looked at, only the bytes in front of what that CRC covers.
    """
    view: _View = _view(batch)
    crc: cython.ulonglong
    index: cython.Py_ssize_t
    if chained < 0 or chained > 0xFFFFFFFF:
        raise InvalidArgument("chained", "a CRC is a number of 32 bits")
    if view.size < _HEADER_BYTES:
        raise InvalidArgument("batch", f"a batch has at least {HEADER_BYTES} bytes")
    crc = chained ^ 0xFFFFFFFF
    for index in range(_CRC_START):
        crc = _times_byte(crc ^ view.p[index])
    return _combined(
        crc ^ 0xFFFFFFFF,
        _integer(view.p, _CRC_START - 4, 4) & 0xFFFFFFFF,
        view.size - _CRC_START,
    )


# ---------------------------------------------------------------- walk


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
    view: _View = _view(buffer)
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
        code = _read_header(view.p, position, stop, span)
        if code == 0 or code == _TRUNCATED:
            if span.size > max_batch_bytes:
                code = _BAD_LENGTH
            elif expected >= 0 and stop - position >= _HEADER_BYTES:
                if span.base_offset != expected:
                    reason = "offset gap"
                    break
        if code != 0:
            reason = _REASONS[code]
            if code == _TRUNCATED:
                result.needed_bytes = span.size
            break
        if must_verify and not _crc_matches(buffer, span):
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


# ---------------------------------------------------------------- one record


@cython.final
@cython.cclass
class _Fields:
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
def _long_varint(
    p: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
    fields: _Fields,
) -> cython.Py_ssize_t:
    """A zigzag varint of at most `bits` bits into `fields.number`; the position after it."""
    raw: cython.ulonglong = 0
    byte: cython.ulonglong
    half: cython.longlong
    shift: cython.int = 0
    while True:
        if at >= end:
            return _PAST_END
        byte = p[at]
        at += 1
        if bits - shift < 7 and (byte >> (bits - shift)) != 0:
            return _LONG_VARINT
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
def _varint(
    p: cython.p_uchar,
    at: cython.Py_ssize_t,
    end: cython.Py_ssize_t,
    bits: cython.int,
    fields: _Fields,
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
def _next_long_record(
    p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, fields: _Fields
) -> cython.Py_ssize_t:
    """`_next_record` for numbers of any length, and for whatever is wrong with a record."""
    stop: cython.Py_ssize_t
    at = _varint(p, at, end, 32, fields)
    if at < 0:
        return at
    if fields.number < _RECORD_BYTES_MIN - 1 or fields.number > end - at:
        return _BAD_RECORD_LENGTH
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
        return _BAD_KEY_LENGTH
    fields.key_at = at
    fields.key_length = fields.number
    if fields.number > 0:
        at += fields.number
    at = _varint(p, at, stop, 32, fields)
    if at < 0:
        return at
    if fields.number < -1 or fields.number > stop - at:
        return _BAD_VALUE_LENGTH
    fields.value_at = at
    fields.value_length = fields.number
    if fields.number > 0:
        at += fields.number
    at = _varint(p, at, stop, 32, fields)
    if at < 0:
        return at
    if fields.number < 0 or fields.number > (stop - at) >> 1:
        return _BAD_HEADER_COUNT
    if fields.number == 0 and at != stop:
        return _BYTES_LEFT
    fields.header_count = fields.number
    fields.headers_at = at
    fields.stop = stop
    return stop


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
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
def _unzigzag(short: cython.longlong) -> cython.longlong:
    """The signed number in a `_short_varint`."""
    return (short >> 3) ^ -((short >> 2) & 1)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _next_record(
    p: cython.p_uchar, at: cython.Py_ssize_t, end: cython.Py_ssize_t, fields: _Fields
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
    if size < _RECORD_BYTES_MIN - 1 or size > end - at:
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
def _next_header(p: cython.p_uchar, at: cython.Py_ssize_t, fields: _Fields) -> cython.Py_ssize_t:
    """Parse one header of the record in `fields`. The position after it, or a code."""
    at = _varint(p, at, fields.stop, 32, fields)
    if at < 0:
        return at
    if fields.number < 0 or fields.number > fields.stop - at:
        return _BAD_NAME_LENGTH
    fields.name_at = at
    fields.name_length = fields.number
    at += fields.number
    at = _varint(p, at, fields.stop, 32, fields)
    if at < 0:
        return at
    if fields.number < -1 or fields.number > fields.stop - at:
        return _BAD_HEADER_LENGTH
    fields.content_at = at
    fields.content_length = fields.number
    return at + fields.number if fields.number > 0 else at


@cython.cfunc
@cython.inline
def _is_tag(p: cython.p_uchar, fields: _Fields, names: tuple) -> cython.bint:
    """Whether the header just parsed is a tag: a name among `names`, and a value."""
    name: Any
    if fields.content_length < 0:
        return False
    for name in names:
        if _equals(p, fields.name_at, fields.name_length, name):
            return True
    return False


@cython.cfunc
@cython.exceptval(check=False)
def _expiry(p: cython.p_uchar, fields: _Fields) -> cython.longlong:
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
def _fits(base: cython.longlong, delta: cython.longlong) -> cython.bint:
    """Whether the sum is a 64-bit number."""
    if delta >= 0:
        return base <= _INT64_MAX - delta
    return base >= _INT64_MIN - delta


# ---------------------------------------------------------------- whose bytes


@cython.final
@cython.cclass
class _Origin:
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
def _checked_span(
    buffer: Any, view: _View, position: cython.Py_ssize_t, verify: cython.bint, origin: _Origin
) -> BatchEntry:
    """The header of a whole batch at `position`."""
    span: BatchEntry = BatchEntry.__new__(BatchEntry)
    code: cython.int = _read_header(view.p, position, view.size, span)
    if code != 0:
        raise origin.refusal(position, _REASONS[code])
    if verify and not _crc_matches(buffer, span):
        raise origin.refusal(position, "crc mismatch")
    return span


@cython.cfunc
def _payload(buffer: Any, view: _View, span: BatchEntry, origin: _Origin, max_bytes: Any) -> _View:
    """The view that holds the batch's records: `view` itself, or one of decompressed bytes."""
    codec: cython.longlong = span.attributes & ATTRIBUTE_CODEC
    if codec == 0 or span.record_count == 0:
        return view
    if codec > 4:
        raise origin.refusal(span.position, f"unknown compression codec {codec}")
    packed = memoryview(buffer)[span.position + _HEADER_BYTES : span.position + span.size]
    try:
        return _view(decompress(Compression(codec), packed, max_bytes=max_bytes))
    except InvalidRecord as bad:
        if not origin.is_disk and isinstance(bad, LimitExceeded):
            raise
        raise origin.refusal(span.position, str(bad)) from bad


# ---------------------------------------------------------------- decode


@cython.final
@cython.cclass
class _Bits:
    """A validity bitmap that exists only from the first null entry on."""

    store: _Store
    null_count: cython.Py_ssize_t

    @cython.cfunc
    @cython.exceptval(-1)
    def put(self, index: cython.Py_ssize_t, is_valid: cython.bint) -> cython.int:
        """Note whether entry `index` is valid. Entries come in order."""
        byte: cython.Py_ssize_t = index >> 3
        bit: cython.int = index & 7
        at: cython.Py_ssize_t
        if self.null_count == 0:
            if is_valid:
                return 0
            self.store = _store(1, byte + 1)
            for at in range(byte):
                self.store.p8[at] = 0xFF
            self.store.p8[byte] = (1 << bit) - 1
        elif bit == 0:
            self.store.reserve(byte + 1)
            self.store.p8[byte] = 0
        if is_valid:
            self.store.p8[byte] |= 1 << bit
        else:
            self.null_count += 1
        return 0

    @cython.cfunc
    def finish(self, count: cython.Py_ssize_t) -> Any:
        """The bitmap of `count` entries, or None if none of them is null."""
        if self.null_count == 0:
            return None
        return self.store.finish((count + 7) >> 3)


@cython.cfunc
def _bits() -> _Bits:
    bits: _Bits = _Bits.__new__(_Bits)
    bits.null_count = 0
    return bits


@cython.final
@cython.cclass
class _Strings:
    """A BinaryColumn in the making."""

    bounds: _Store
    content: _Store
    bits: _Bits
    has_null: cython.bint
    count: cython.Py_ssize_t
    used: cython.Py_ssize_t

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def add(
        self,
        p: cython.p_uchar,
        at: cython.Py_ssize_t,
        length: cython.Py_ssize_t,
        end: cython.Py_ssize_t,
    ) -> cython.int:
        """Append the bytes at `at`, of which those before `end` may be read; a negative length
        appends null."""
        if length > 0:
            if self.used + length > self.content.capacity:
                self.content.reserve(self.used + length)
            if cython.compiled:
                if length <= 16 and end - at >= 16 and self.content.capacity - self.used >= 16:
                    # Copying a constant number of bytes is two instructions, not a call. Those
                    # beyond `length` are overwritten by the next entry or cut off in the end.
                    memcpy(self.content.p8 + self.used, p + at, 16)
                else:
                    memcpy(self.content.p8 + self.used, p + at, length)
            else:
                self.content.p8[self.used : self.used + length] = p[at : at + length]
            self.used += length
        if length < 0 or self.has_null:
            self.has_null = True
            self.bits.put(self.count, length >= 0)
        self.count += 1
        if self.count >= self.bounds.capacity:
            self.bounds.reserve(self.count + 1)
        self.bounds.p32[self.count] = self.used
        return 0

    @cython.cfunc
    def finish(self) -> Any:
        # Arguments by position, here and in _Rows, are a good part of a microsecond faster.
        return BinaryColumn(
            self.count,
            self.bounds.finish(self.count + 1),
            self.content.finish(self.used),
            self.bits.finish(self.count),
            self.bits.null_count,
        )


@cython.cfunc
def _strings(size: cython.Py_ssize_t) -> _Strings:
    """An empty column with room for `size` bytes."""
    strings: _Strings = _Strings.__new__(_Strings)
    strings.bounds = _store(4, 1)
    strings.content = _store(1, size)
    strings.bits = _bits()
    strings.has_null = False
    strings.count = 0
    strings.used = 0
    strings.bounds.p32[0] = 0
    return strings


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _word(p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t) -> cython.int:
    """Up to four bytes, and zeros after them, as they would lie in memory."""
    word: cython.int = 0
    if cython.compiled:
        if length >= 4:
            memcpy(cython.address(word), p + at, 4)
        elif length > 0:
            memcpy(cython.address(word), p + at, length)
        return word
    else:
        content = bytes(p[at : at + min(max(length, 0), 4)]).ljust(4, b"\0")
        return int.from_bytes(content, byteorder, signed=True)


@cython.final
@cython.cclass
class BinaryViews:
    """Byte strings that stay where they are, some of which may be null: Arrow's binary view.

    The views are four 32-bit numbers per entry. The first is its length. Up to twelve bytes follow
    in the view itself; of a longer entry there are its first four bytes, the number of its source
    and where it begins there. The sources stay open, and must not be written to.
    """

    length = cython.declare(cython.Py_ssize_t, visibility="readonly")
    null_count = cython.declare(cython.Py_ssize_t, visibility="readonly")
    validity = cython.declare(object, visibility="readonly")
    content_bytes = cython.declare(cython.longlong, visibility="readonly")
    views: _Store
    bits: _Bits
    sources: list
    # What the sources are part of: the last such object, and the size of all of them.
    held: Any
    held_bytes: cython.longlong

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: cython.Py_ssize_t) -> bytes | None:
        if index < 0 or index >= self.length:
            raise IndexError(index)
        return self.entry(_view(self.views.owner), index)

    @property
    def views_buffer(self) -> Any:
        """The views in Arrow's layout."""
        return memoryview(self.views.owner).toreadonly()

    def source_buffers(self) -> list[Buffer]:
        """The buffers that the views refer to by their number."""
        source: _View
        owners: list = []
        for source in self.sources:
            owners.append(source.owner)
        return owners

    def entries(self) -> list[bytes | None]:
        """All entries."""
        inline: _View = _view(self.views.owner)
        index: cython.Py_ssize_t
        found: list = []
        for index in range(self.length):
            found.append(self.entry(inline, index))
        return found

    def gathered(self) -> BinaryColumn:
        """The same entries copied into one buffer, for what cannot read views."""
        strings: _Strings = _strings(self.content_bytes)
        inline: _View = _view(self.views.owner)
        source: _View
        number: cython.Py_ssize_t = -1
        last_number: cython.Py_ssize_t = -1
        index: cython.Py_ssize_t
        size: cython.Py_ssize_t
        views: cython.p_int = self.views.p32
        source = inline
        strings.bounds.reserve(self.length + 1)
        for index in range(self.length):
            size = views[4 * index]
            if size > 12:
                number = views[4 * index + 2]
                if number != last_number:
                    source = self.sources[number]
                    last_number = number
                strings.add(source.p, views[4 * index + 3], size, source.size)
            elif self.null_count > 0 and self.is_null(index):
                strings.add(inline.p, 0, -1, 0)
            else:
                strings.add(inline.p, 16 * index + 4, size, inline.size)
        return strings.finish()

    @cython.cfunc
    @cython.exceptval(check=False)
    def is_null(self, index: cython.Py_ssize_t) -> cython.bint:
        return (self.bits.store.p8[index >> 3] >> (index & 7)) & 1 == 0

    @cython.cfunc
    def entry(self, inline: _View, index: cython.Py_ssize_t) -> Any:
        source: _View
        size: cython.Py_ssize_t = self.views.p32[4 * index]
        if self.null_count > 0 and self.is_null(index):
            return None
        if size <= 12:
            return _bytes(inline.p, 16 * index + 4, size)
        source = self.sources[self.views.p32[4 * index + 2]]
        return _bytes(source.p, self.views.p32[4 * index + 3], size)

    @cython.cfunc
    @cython.exceptval(-1)
    def open_source(self, source: _View) -> cython.int:
        """What is added from here on lies in `source`."""
        held: Any
        if len(self.sources) == 0 or self.sources[len(self.sources) - 1] is not source:
            self.sources.append(source)
            held = source.owner
            if isinstance(held, memoryview):
                held = held.obj
            if held is not self.held:
                self.held = held
                self.held_bytes += memoryview(held).nbytes
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def add(
        self, p: cython.p_uchar, at: cython.Py_ssize_t, length: cython.Py_ssize_t
    ) -> cython.int:
        """Append the bytes at `at` of the source; a negative length appends null."""
        row: cython.Py_ssize_t = 4 * self.length
        if row + 4 > self.views.capacity:
            self.views.reserve(row + 64)
        if length > 12:
            self.views.p32[row] = length
            self.views.p32[row + 1] = _word(p, at, 4)
            self.views.p32[row + 2] = len(self.sources) - 1
            self.views.p32[row + 3] = at
            self.content_bytes += length
        else:
            self.views.p32[row] = max(length, 0)
            self.views.p32[row + 1] = _word(p, at, length)
            self.views.p32[row + 2] = _word(p, at + 4, length - 4)
            self.views.p32[row + 3] = _word(p, at + 8, length - 8)
            self.content_bytes += max(length, 0)
        if length < 0 or self.bits.null_count > 0:
            self.bits.put(self.length, length >= 0)
        self.length += 1
        return 0

    @cython.cfunc
    def finish(self) -> Any:
        """This column, or a copy of its entries where they are little of what they would hold."""
        self.views.resize(4 * self.length)
        self.null_count = self.bits.null_count
        validity = self.bits.finish(self.length)
        self.validity = None if validity is None else memoryview(validity).toreadonly()
        self.held = None
        if 2 * self.content_bytes < self.held_bytes:
            return self.gathered()
        return self


@cython.cfunc
def _binary_views() -> BinaryViews:
    """A column of views without entries."""
    column: BinaryViews = BinaryViews.__new__(BinaryViews)
    column.length = 0
    column.content_bytes = 0
    column.views = _store(4, 0)
    column.bits = _bits()
    column.sources = []
    column.held = None
    column.held_bytes = 0
    return column


@cython.final
@cython.cclass
class _Lists:
    """The columns that come from headers, in the making. Most batches have none, so this exists
    only from the first record with headers on."""

    header_bounds: _Store
    names: _Strings
    contents: _Strings
    tag_bounds: _Store
    tags: _Strings

    def __init__(self, rows: cython.Py_ssize_t) -> None:
        row: cython.Py_ssize_t
        self.header_bounds = _store(4, rows + 2)
        self.tag_bounds = _store(4, rows + 2)
        for row in range(rows + 1):
            self.header_bounds.p32[row] = 0
            self.tag_bounds.p32[row] = 0
        self.names = _strings(0)
        self.contents = _strings(0)
        self.tags = _strings(0)

    @cython.cfunc
    @cython.exceptval(-1)
    def add(
        self, row: cython.Py_ssize_t, p: cython.p_uchar, fields: _Fields, plan: _Plan
    ) -> cython.int:
        """Append the headers, known to be sound, and the tags of record number `row`."""
        at: cython.Py_ssize_t = fields.headers_at
        while at < fields.stop:
            at = _next_header(p, at, fields)
            if at < 0:  # Only if someone writes to the buffer meanwhile.
                break
            if plan.has_headers:
                self.names.add(p, fields.name_at, fields.name_length, fields.stop)
                self.contents.add(p, fields.content_at, fields.content_length, fields.stop)
            if plan.has_tags and _is_tag(p, fields, plan.tag_headers):
                self.tags.add(p, fields.content_at, fields.content_length, fields.stop)
        self.header_bounds.reserve(row + 2)
        self.header_bounds.p32[row + 1] = self.names.count
        self.tag_bounds.reserve(row + 2)
        self.tag_bounds.p32[row + 1] = self.tags.count
        return 0


@cython.final
@cython.cclass
class _Rows:
    """The columns in the making."""

    count: cython.Py_ssize_t
    encoded_bytes: cython.longlong
    offsets: _Store
    timestamps: _Store
    keys: _Strings
    is_started: cython.bint
    has_views: cython.bint
    values: _Strings
    views: BinaryViews
    has_lists: cython.bint
    lists: _Lists
    has_expiry: cython.bint
    expiries: _Store
    expiry_bits: _Bits

    @cython.cfunc
    @cython.exceptval(-1)
    def start(
        self,
        plan: _Plan,
        payload_bytes: cython.Py_ssize_t,
        batch_bytes: cython.Py_ssize_t,
        record_count: cython.longlong,
    ) -> cython.int:
        """Get ready for batches like the first one, whose records are so long and so many, and
        which takes so many bytes as it is stored."""
        batch_count: cython.Py_ssize_t = plan.total_bytes // (payload_bytes + _HEADER_BYTES)
        self.is_started = True
        if plan.is_sparse:
            return 0
        if plan.has_values:
            if plan.may_view and payload_bytes >= record_count * _VIEWED_BYTES_MIN:
                self.has_views = True
                self.views = _binary_views()
            else:
                # Room that is not enough is copied as it grows; room for one batch's luck with its
                # compression would be too much.
                ratio: cython.Py_ssize_t = min(1 + payload_bytes // batch_bytes, _EXPANSION_MAX)
                self.values.content.reserve(min(plan.total_bytes * ratio, plan.max_bytes))
        # Compressed batches count for less than they hold, so this is never too much.
        self.reserve(min(record_count * batch_count, plan.max_records))
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def reserve(self, rows: cython.Py_ssize_t) -> cython.int:
        self.offsets.reserve(rows)
        self.timestamps.reserve(rows)
        self.keys.bounds.reserve(rows + 1)
        if self.has_views:
            self.views.views.reserve(4 * rows)
        else:
            self.values.bounds.reserve(rows + 1)
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1)
    def add(
        self,
        p: cython.p_uchar,
        fields: _Fields,
        plan: _Plan,
        offset: cython.longlong,
        timestamp: cython.longlong,
        expiry: cython.longlong,
    ) -> cython.int:
        """Append the record in `fields`, whose headers are known to be sound."""
        row: cython.Py_ssize_t = self.count
        if row >= self.offsets.capacity:
            self.reserve(row + 16)
        self.offsets.p64[row] = offset
        self.timestamps.p64[row] = timestamp
        if plan.has_keys:
            self.keys.add(p, fields.key_at, fields.key_length, fields.stop)
        if plan.has_values:
            if self.has_views:
                self.views.add(p, fields.value_at, fields.value_length)
            else:
                self.values.add(p, fields.value_at, fields.value_length, fields.stop)
        if fields.header_count > 0 or self.has_lists:
            if not self.has_lists:
                self.lists = _Lists(row)
                self.has_lists = True
            self.lists.add(row, p, fields, plan)
        if expiry >= 0 or self.has_expiry:
            self.add_expiry(row, expiry)
        self.count = row + 1
        return 0

    @cython.cfunc
    @cython.exceptval(-1)
    def add_expiry(self, row: cython.Py_ssize_t, expiry: cython.longlong) -> cython.int:
        earlier: cython.Py_ssize_t
        if not self.has_expiry:
            self.has_expiry = True
            self.expiries = _store(8, row + 1)
            self.expiry_bits = _bits()
            for earlier in range(row):
                self.expiries.p64[earlier] = 0
                self.expiry_bits.put(earlier, False)
        self.expiries.reserve(row + 1)
        self.expiries.p64[row] = expiry if expiry >= 0 else 0
        self.expiry_bits.put(row, expiry >= 0)
        return 0

    @cython.cfunc
    def finish(self, plan: _Plan) -> Any:
        count: cython.Py_ssize_t = self.count
        header_bounds: Any = None
        tag_bounds: Any = None
        names: Any = None
        contents: Any = None
        tags: Any = None
        values: Any = None
        if plan.has_values:
            values = self.views.finish() if self.has_views else self.values.finish()
        if plan.has_headers:
            header_bounds = (
                self.lists.header_bounds.finish(count + 1)
                if self.has_lists
                else bytes(4 * (count + 1))
            )
            names = self.lists.names.finish() if self.has_lists else NO_ENTRIES
            contents = self.lists.contents.finish() if self.has_lists else NO_ENTRIES
        if plan.has_tags:
            tag_bounds = (
                self.lists.tag_bounds.finish(count + 1)
                if self.has_lists
                else bytes(4 * (count + 1))
            )
            tags = self.lists.tags.finish() if self.has_lists else NO_ENTRIES
        return Columns(
            count,
            self.offsets.finish(count),
            self.timestamps.finish(count),
            self.keys.finish() if plan.has_keys else None,
            values,
            header_bounds,
            names,
            contents,
            tag_bounds,
            tags,
            self.expiries.finish(count) if self.has_expiry else None,
            self.expiry_bits.finish(count) if self.has_expiry else None,
            plan.next_offset,
            bool(plan.is_limited),
            self.encoded_bytes,
        )


@cython.cfunc
def _rows() -> _Rows:
    rows: _Rows = _Rows.__new__(_Rows)
    rows.count = 0
    rows.encoded_bytes = 0
    rows.offsets = _store(8, 0)
    rows.timestamps = _store(8, 0)
    rows.keys = _strings(0)
    rows.is_started = False
    rows.has_views = False
    rows.values = _strings(0)
    rows.has_lists = False
    rows.has_expiry = False
    return rows


@cython.final
@cython.cclass
class _Plan:
    """A Selection in C variables, and how far the decoding has come."""

    start_offset: cython.longlong
    end_offset: cython.longlong
    max_records: cython.Py_ssize_t
    max_bytes: cython.longlong
    tag_headers: tuple
    expire_header: bytes
    has_ttl: cython.bint
    ttl_ms: cython.longlong
    has_now: cython.bint
    now_ms: cython.longlong
    has_filter: cython.bint
    holes: Any
    dead_keys: Any
    key: Any
    tag: Any
    min_timestamp: cython.longlong
    include_control: cython.bint
    has_keys: cython.bint
    has_values: cython.bint
    has_headers: cython.bint
    has_tags: cython.bint
    is_sparse: cython.bint
    may_view: cython.bint
    total_bytes: cython.Py_ssize_t
    next_offset: cython.longlong
    is_limited: cython.bint
    # Facts about the record whose headers were scanned last.
    header_expiry: cython.longlong
    has_tag: cython.bint

    def __init__(self, selection: Any) -> None:
        self.start_offset = selection.start_offset
        self.end_offset = selection.end_offset
        # Arrow's 32-bit bounds hold no more, and no column is larger than the encoded records.
        self.max_records = min(selection.max_records, COLUMN_BYTES_MAX)
        self.max_bytes = min(selection.max_bytes, COLUMN_BYTES_MAX)
        self.tag_headers = selection.tag_headers
        self.expire_header = selection.expire_header
        self.has_ttl = selection.ttl_ms is not None
        self.ttl_ms = selection.ttl_ms if selection.ttl_ms is not None else 0
        self.has_now = selection.now_ms is not None
        self.now_ms = selection.now_ms if selection.now_ms is not None else 0
        self.holes = selection.holes if selection.holes else None
        self.dead_keys = selection.dead_keys if selection.dead_keys else None
        self.key = selection.key
        self.tag = selection.tag
        minimum = selection.min_timestamp
        self.min_timestamp = minimum if minimum is not None else _INT64_MIN
        self.has_filter = (
            self.holes is not None
            or self.dead_keys is not None
            or self.key is not None
            or self.tag is not None
        )
        self.include_control = selection.include_control
        columns = selection.columns
        self.has_keys = "key" in columns
        self.has_values = "value" in columns
        self.has_headers = "headers" in columns
        self.has_tags = "tags" in columns
        # Few records are expected to match, so no room is made for all of them.
        self.is_sparse = self.key is not None or self.tag is not None or self.max_records < 100
        self.total_bytes = 0
        self.next_offset = self.start_offset
        self.is_limited = False

    @cython.cfunc
    @cython.exceptval(-1)
    def keeps(
        self,
        p: cython.p_uchar,
        fields: _Fields,
        offset: cython.longlong,
        expiry: cython.longlong,
    ) -> cython.bint:
        """Whether expiry, tag, key, holes and dead keys let the record through."""
        if self.has_now and 0 <= expiry <= self.now_ms:
            return False
        if self.tag is not None and not self.has_tag:
            return False
        if self.key is not None:
            if fields.key_length < 0:
                return False
            if not _equals(p, fields.key_at, fields.key_length, self.key):
                return False
        if self.holes is not None and offset in self.holes:
            return False
        if self.dead_keys is not None and fields.key_length >= 0:
            below = self.dead_keys.get(_bytes(p, fields.key_at, fields.key_length))
            if below is not None and offset < below:
                return False
        return True

    @cython.cfunc
    @cython.inline
    @cython.exceptval(check=False)
    def expiry(self, timestamp: cython.longlong) -> cython.longlong:
        """When the record whose headers were scanned last expires; -1 if never."""
        limit: cython.longlong
        if not self.has_ttl or timestamp < 0 or timestamp > _INT64_MAX - self.ttl_ms:
            return self.header_expiry
        limit = timestamp + self.ttl_ms
        return limit if self.header_expiry < 0 else min(limit, self.header_expiry)

    @cython.cfunc
    def scan_headers(self, p: cython.p_uchar, fields: _Fields) -> cython.int:
        """Check a record's headers and note its expiry and whether it has the wanted tag."""
        at: cython.Py_ssize_t = fields.headers_at
        index: cython.Py_ssize_t
        for index in range(fields.header_count):
            at = _next_header(p, at, fields)
            if at < 0:
                return at
            if _equals(p, fields.name_at, fields.name_length, self.expire_header):
                self.header_expiry = _expiry(p, fields)
            if self.tag is not None and not self.has_tag:
                if _is_tag(p, fields, self.tag_headers):
                    self.has_tag = _equals(p, fields.content_at, fields.content_length, self.tag)
        return 0 if at == fields.stop else _BYTES_LEFT


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
    plan: _Plan = _Plan(selection)
    origin: _Origin = _Origin(source, where)
    fields: _Fields = _Fields.__new__(_Fields)
    rows: _Rows = _rows()
    view: _View
    span: BatchEntry
    position: cython.Py_ssize_t
    largest: cython.Py_ssize_t = max_decompressed
    must_verify: cython.bint = verify
    is_done: cython.bint = False
    last_offset: cython.longlong = -1
    index: cython.Py_ssize_t
    views: list = []
    for buffer in batches:
        view = _view(buffer)
        views.append(view)
        largest = max(largest, view.size)
        plan.total_bytes += view.size
    plan.may_view = largest <= COLUMN_BYTES_MAX
    for index in range(len(views)):
        buffer = batches[index]
        view = views[index]
        position = 0
        while position < view.size and not is_done:
            span = _checked_span(buffer, view, position, False, origin)
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
                if must_verify and not _crc_matches(buffer, span):
                    raise origin.refusal(span.position, "crc mismatch")
                if span.attributes & 0x20 and not plan.include_control:
                    plan.next_offset = min(span.last_offset + 1, plan.end_offset)
                else:
                    is_done = not _decode_batch(
                        _payload(buffer, view, span, origin, max_decompressed),
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
    view: _View, span: BatchEntry, plan: _Plan, rows: _Rows, fields: _Fields, origin: _Origin
) -> cython.bint:
    """Take the wanted records of one batch; whether to go on with the next one."""
    p: cython.p_uchar = view.p
    is_packed: cython.bint = (span.attributes & 7) != 0
    at: cython.Py_ssize_t = 0 if is_packed else span.position + _HEADER_BYTES
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
    if span.record_count > (end - at) // _RECORD_BYTES_MIN:
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
        at = _next_record(p, at, end, fields)
        if at < 0:
            raise origin.refusal(span.position, f"record {index}: {_REASONS[at]}")
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
            if not _fits(base_timestamp, timestamp):
                raise origin.refusal(span.position, f"record {index}: timestamp out of range")
            timestamp += base_timestamp
        plan.header_expiry = -1
        plan.has_tag = False
        if fields.header_count > 0:
            code = plan.scan_headers(p, fields)
            if code < 0:
                raise origin.refusal(span.position, f"record {index}: {_REASONS[code]}")
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


# ---------------------------------------------------------------- collect


def collect(
    batch: Buffer,
    *,
    tag_headers: tuple[bytes, ...] = (b"tag",),
    verify: bool = False,
    source: Source = "disk",
    where: str = "",
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
) -> BatchTerms:
    """Keys and tags of the one batch that `batch` begins with; none for a control batch.

    The CRC is not checked unless asked for: a batch is indexed right after it was validated or
    scanned.
    """
    origin: _Origin = _Origin(source, where)
    view: _View = _view(batch)
    span: BatchEntry = _checked_span(batch, view, 0, verify, origin)
    keys: dict = {}
    tags: dict = {}
    if span.attributes & 0x20:
        return BatchTerms(keys, tags)
    _collect_terms(
        _payload(batch, view, span, origin, max_decompressed), span, tag_headers, origin, keys, tags
    )
    return BatchTerms(keys, tags)


@cython.cfunc
@cython.exceptval(-1)
def _collect_terms(
    view: _View, span: BatchEntry, tag_headers: tuple, origin: _Origin, keys: dict, tags: dict
) -> cython.int:
    p: cython.p_uchar = view.p
    is_packed: cython.bint = (span.attributes & 7) != 0
    at: cython.Py_ssize_t = 0 if is_packed else _HEADER_BYTES
    end: cython.Py_ssize_t = view.size if is_packed else span.size
    header_at: cython.Py_ssize_t
    fields: _Fields = _Fields.__new__(_Fields)
    index: cython.longlong
    previous_delta: cython.longlong = -1
    last_delta: cython.longlong = span.last_offset - span.base_offset
    header: cython.Py_ssize_t
    tag: bytes
    offset: object
    offsets: list
    # The tags met last, by their length and last byte, with their offsets: most batches have few
    # tags, and comparing bytes is quicker than looking them up.
    recent_tags: list = [b""] * 16
    recent_offsets: list = [None] * 16
    slot: cython.Py_ssize_t
    if span.record_count > (end - at) // _RECORD_BYTES_MIN:
        raise origin.refusal(0, "more records are counted than the batch can hold")
    for index in range(span.record_count):
        at = _next_record(p, at, end, fields)
        if at < 0:
            raise origin.refusal(0, f"record {index}: {_REASONS[at]}")
        if fields.offset_delta <= previous_delta or fields.offset_delta > last_delta:
            raise origin.refusal(0, f"record {index}: offset delta out of order")
        previous_delta = fields.offset_delta
        offset = span.base_offset + fields.offset_delta
        if fields.key_length >= 0:
            keys[_bytes(p, fields.key_at, fields.key_length)] = offset
        header_at = fields.headers_at
        for header in range(fields.header_count):
            header_at = _next_header(p, header_at, fields)
            if header_at < 0:
                raise origin.refusal(0, f"record {index}: {_REASONS[header_at]}")
            if _is_tag(p, fields, tag_headers):
                slot = (fields.content_length + p[header_at - 1]) & 15
                tag = recent_tags[slot]
                if recent_offsets[slot] is not None and _equals(
                    p, fields.content_at, fields.content_length, tag
                ):
                    offsets = recent_offsets[slot]
                else:
                    tag = _bytes(p, fields.content_at, fields.content_length)
                    offsets = tags.get(tag)  # type: ignore[assignment]
                    if offsets is None:
                        tags[tag] = offsets = []
                    recent_tags[slot] = tag
                    recent_offsets[slot] = offsets
                # One record may repeat a tag.
                if len(offsets) == 0 or offsets[len(offsets) - 1] is not offset:
                    offsets.append(offset)
        if header_at != fields.stop:
            raise origin.refusal(0, f"record {index}: {_REASONS[_BYTES_LEFT]}")
    if at != end and (span.record_count > 0 or not is_packed):
        raise origin.refusal(0, "bytes are left over after the last record")
    return 0


# ---------------------------------------------------------------- index entries


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_integer(
    p: cython.p_uchar, at: cython.Py_ssize_t, value: cython.ulonglong, size: cython.Py_ssize_t
) -> cython.Py_ssize_t:
    """Write a big-endian number of `size` bytes; the position after it."""
    index: cython.Py_ssize_t
    for index in range(size - 1, -1, -1):
        p[at + index] = value & 0xFF
        value >>= 8
    return at + size


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _put_raw(p: cython.p_uchar, at: cython.Py_ssize_t, content: bytes) -> cython.Py_ssize_t:
    """Write bytes; the position after them."""
    length: cython.Py_ssize_t = len(content)
    if cython.compiled:
        memcpy(p + at, PyBytes_AS_STRING(content), length)
    else:
        p[at : at + length] = content
    return at + length


@cython.cfunc
@cython.inline
def _blank(size: cython.Py_ssize_t) -> Any:
    """Bytes to be filled before anyone sees them; interpreted, a bytearray to make bytes of."""
    if cython.compiled:
        return PyBytes_FromStringAndSize(cython.NULL, size)
    else:
        return bytearray(size)


@cython.cfunc
@cython.inline
@cython.exceptval(check=False)
def _filling(blank: Any) -> cython.p_uchar:
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyBytes_AS_STRING(blank))
    else:
        return blank


@cython.cfunc
@cython.inline
def _filled(blank: Any) -> Any:
    if cython.compiled:
        return blank
    else:
        return bytes(blank)


def key_entries(
    prefix: bytes,
    keys: Mapping[bytes, int],
    base_offset: cython.longlong,
    place: bytes,
    term: Callable[[bytes], bytes],
    term_bytes_max: cython.Py_ssize_t,
) -> list[tuple[bytes, bytes]]:
    """Entries of the key index, as docs/formats/index.md has them, of one batch.

    Offsets are relative to `base_offset`, `place` is the batch's position as it is stored. A key
    of more than `term_bytes_max` bytes is replaced by its `term`.
    """
    entries: list = []
    key: bytes
    relative: cython.longlong
    for key, relative in keys.items():
        if len(key) > term_bytes_max:
            key = term(key)
        name = _blank(len(prefix) + len(key))
        _put_raw(_filling(name), _put_raw(_filling(name), 0, prefix), key)
        value = _blank(8 + len(place))
        _put_raw(
            _filling(value), _put_integer(_filling(value), 0, base_offset + relative, 8), place
        )
        entries.append((_filled(name), _filled(value)))
    return entries


def tag_entries(
    prefix: bytes,
    tags: Mapping[bytes, Sequence[int]],
    base_offset: cython.longlong,
    place: bytes,
    term: Callable[[bytes], bytes],
    term_bytes_max: cython.Py_ssize_t,
) -> list[tuple[bytes, bytes]]:
    """Entries of the tag index, likewise; `place` begins with its own length."""
    entries: list = []
    tag: bytes
    at: cython.Py_ssize_t
    for tag, offsets in tags.items():
        if len(tag) > term_bytes_max:
            tag = term(tag)
        name = _blank(len(prefix) + 2 + len(tag) + 8)
        at = _put_raw(_filling(name), 0, prefix)
        at = _put_integer(_filling(name), at, len(tag), 2)
        at = _put_raw(_filling(name), at, tag)
        _put_integer(_filling(name), at, base_offset, 8)
        entries.append((_filled(name), _steps(place, offsets)))
    return entries


@cython.cfunc
def _steps(place: bytes, offsets: Any) -> Any:
    """A batch's place, and offsets as differences of the smallest width that will do for all."""
    offset: cython.longlong
    previous: cython.longlong = 0
    largest: cython.longlong = 0
    count: cython.Py_ssize_t = 0
    width: cython.Py_ssize_t = 1
    letter: cython.uchar = 66  # B
    at: cython.Py_ssize_t
    for offset in offsets:
        if offset < previous:
            raise InvalidArgument("offsets", "are not in order")
        largest = max(largest, offset - previous)
        previous = offset
        count += 1
    if largest > 0xFFFFFFFF:
        width, letter = 8, 81  # Q
    elif largest > 0xFFFF:
        width, letter = 4, 73  # I
    elif largest > 0xFF:
        width, letter = 2, 72  # H
    value = _blank(len(place) + 1 + count * width)
    at = _put_raw(_filling(value), 0, place)
    _filling(value)[at] = letter
    at += 1
    previous = 0
    for offset in offsets:
        if count > 0:  # Should there be more than before, there is no room for them.
            at = _put_integer(_filling(value), at, offset - previous, width)
            previous = offset
            count -= 1
    return _filled(value)


# ---------------------------------------------------------------- validate


def validate_header(
    batch: Buffer,
    *,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
) -> BatchHeader:
    """The header of a client's batch, judged without a look at the records.

    Sound are: one whole batch and nothing else, magic, codec, CRC, offset delta and a count of
    records that the bytes can hold. InvalidRecord or LimitExceeded otherwise.
    """
    size = memoryview(batch).nbytes
    if size > max_batch_bytes:
        raise LimitExceeded("batch", size, max_batch_bytes)
    header = parse_header(batch)
    if header.size_bytes != size:
        raise InvalidRecord(
            f"batch of {size:,} bytes says in its header that it has {header.size_bytes:,}"
        )
    if header.magic != MAGIC:
        raise InvalidRecord(f"batch has magic {header.magic}, only {MAGIC} is supported")
    codec = header.attributes & ATTRIBUTE_CODEC
    if codec > 4:
        raise InvalidRecord(f"batch has unknown compression codec {codec}")
    crc = crc32c(memoryview(batch)[CRC_START:])
    if crc != header.crc:
        raise InvalidRecord(f"batch has crc {crc:08x}, its header says {header.crc:08x}")
    count = header.record_count
    room = size - HEADER_BYTES if codec == 0 else max_decompressed
    if not 1 <= count <= room // RECORD_BYTES_MIN:
        raise InvalidRecord(f"batch of {size:,} bytes cannot have {count:,} records")
    if header.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"batch of {count:,} records has last offset delta {header.last_offset_delta:,}"
        )
    return header


def validate(
    batch: Buffer,
    *,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    max_record_bytes: int = RECORD_BYTES_MAX,
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
) -> BatchHeader:
    """The header of a client's batch all of whose bytes have been judged.

    Besides what `validate_header` asks: as many records as counted and nothing after them, offset
    deltas 0 to n - 1, lengths that fit, no record above `max_record_bytes`, header names in UTF-8,
    and a maximal timestamp that is the records' own.
    """
    header = validate_header(
        batch, max_batch_bytes=max_batch_bytes, max_decompressed=max_decompressed
    )
    origin: _Origin = _Origin("client", "")
    view: _View = _view(batch)
    span: BatchEntry = BatchEntry.__new__(BatchEntry)
    # The base offset a client sends means nothing, so it is not judged as an offset.
    span.position = 0
    span.size = view.size
    span.attributes = header.attributes
    span.record_count = header.record_count
    span.base_timestamp = header.base_timestamp
    span.max_timestamp = header.max_timestamp
    _validate_records(_payload(batch, view, span, origin, max_decompressed), span, max_record_bytes)
    return header


def take_plain(
    batch: memoryview,
    base_offset: cython.longlong,
    leader_epoch: cython.longlong,
    chained: cython.longlong,
    max_record_bytes: cython.longlong,
) -> tuple[int, int, int] | None:
    """Sets base offset and leader epoch of a client's batch that `validate` would accept, if it is
    of the plain kind: not compressed, no transaction's and of no producer that counts its batches.

    Returns the count of its records, its newest timestamp and the CRC of the bytes before it with
    the batch behind them. None for any other, good or bad, which is left as it is.
    """
    view: _View = _view(batch)
    p: cython.p_uchar = view.p
    span: BatchEntry = BatchEntry.__new__(BatchEntry)
    if view.size < _HEADER_BYTES or _integer(p, 8, 4) + _LENGTH_END != view.size:
        return None
    # The base offset a client sends means nothing, so it is not judged as an offset.
    span.position = 0
    span.size = view.size
    span.attributes = _integer(p, 21, 2)
    span.base_timestamp = _integer(p, 27, 8)
    span.max_timestamp = _integer(p, 35, 8)
    span.record_count = _integer(p, 57, 4)
    if p[16] != 2 or span.attributes & _ATTRIBUTES_UNUSUAL or _integer(p, 43, 8) >= 0:
        return None
    if span.record_count < 1 or _integer(p, 23, 4) != span.record_count - 1:
        return None
    if crc32c(batch[CRC_START:], 0, _KEEP_LOCK) != _integer(p, 17, 4) & 0xFFFFFFFF:
        return None
    try:
        _validate_records(view, span, max_record_bytes)
    except (InvalidRecord, LimitExceeded):
        return None
    _put_integer(p, 0, base_offset, 8)
    _put_integer(p, _LENGTH_END, leader_epoch, 4)
    return span.record_count, span.max_timestamp, crc32c(batch, chained, _KEEP_LOCK)


@cython.cfunc
@cython.exceptval(-1)
def _validate_records(
    view: _View, span: BatchEntry, max_record_bytes: cython.longlong
) -> cython.int:
    p: cython.p_uchar = view.p
    is_packed: cython.bint = (span.attributes & 7) != 0
    at: cython.Py_ssize_t = 0 if is_packed else _HEADER_BYTES
    end: cython.Py_ssize_t = view.size
    before: cython.Py_ssize_t
    code: cython.int
    fields: _Fields = _Fields.__new__(_Fields)
    index: cython.longlong
    timestamp: cython.longlong
    newest: cython.longlong = _INT64_MIN
    if span.record_count > (end - at) // _RECORD_BYTES_MIN:
        raise InvalidRecord(f"batch cannot hold the {span.record_count:,} records it counts")
    for index in range(span.record_count):
        before = at
        at = _next_record(p, at, end, fields)
        if at < 0:
            raise InvalidRecord(f"record {index} at byte {before:,}: {_REASONS[at]}")
        if at - before > max_record_bytes:
            raise LimitExceeded(f"record {index}", at - before, max_record_bytes)
        if fields.offset_delta != index:
            raise InvalidRecord(f"record {index} has offset delta {fields.offset_delta}")
        timestamp = fields.timestamp_delta
        if not _fits(span.base_timestamp, timestamp):
            raise InvalidRecord(f"record {index}: timestamp out of range")
        newest = max(newest, timestamp + span.base_timestamp)
        if fields.header_count > 0:
            code = _validate_headers(p, fields, index)
            if code < 0:
                raise InvalidRecord(f"record {index} at byte {before:,}: {_REASONS[code]}")
    if at != end:
        raise InvalidRecord(f"{end - at:,} bytes are left over after the last record")
    if (span.attributes & 8) == 0 and newest != span.max_timestamp:
        raise InvalidRecord(
            f"batch has max timestamp {span.max_timestamp}, its newest record {newest}"
        )
    return 0


@cython.cfunc
@cython.exceptval(-100)
def _validate_headers(
    p: cython.p_uchar, fields: _Fields, record_index: cython.longlong
) -> cython.int:
    """0 or a code; InvalidRecord for a name that is not UTF-8."""
    at: cython.Py_ssize_t = fields.headers_at
    index: cython.Py_ssize_t
    position: cython.Py_ssize_t
    is_ascii: cython.bint
    for index in range(fields.header_count):
        at = _next_header(p, at, fields)
        if at < 0:
            return at
        is_ascii = True
        for position in range(fields.name_at, fields.name_at + fields.name_length):
            if p[position] > 127:
                is_ascii = False
                break
        if not is_ascii:
            name = _bytes(p, fields.name_at, fields.name_length)
            try:
                name.decode("utf-8")
            except UnicodeDecodeError:
                raise InvalidRecord(
                    f"record {record_index}: header name {name[:64]!r} is not UTF-8"
                ) from None
    return 0 if at == fields.stop else _BYTES_LEFT


# ---------------------------------------------------------------- encode


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
    out: _Store,
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
    out: _Store = _store(1, 1024)
    at: cython.Py_ssize_t = _HEADER_BYTES
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
            raise LimitExceeded("record", size, max_record_bytes)
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
    out: _Store
    at: cython.Py_ssize_t = _HEADER_BYTES
    count: cython.Py_ssize_t = len(records)
    index: cython.Py_ssize_t = 0
    default: cython.longlong = _time("now_ms", now_ms, TIMESTAMP_MS_MAX)
    timestamp: cython.longlong
    base_timestamp: cython.longlong = 0
    max_timestamp: cython.longlong = 0
    headers: list | None
    if count == 0:
        raise InvalidRecord("a batch needs at least one record")
    out = _store(1, 1024)
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
    out: _Store = _store(1, 1024)
    at: cython.Py_ssize_t = _HEADER_BYTES
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
