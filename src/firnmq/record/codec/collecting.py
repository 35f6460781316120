"""The keys and tags of a batch, and their entries in the indexes (docs/formats/index.md)."""

from collections.abc import Callable, ItemsView, Mapping, Sequence
from typing import Any

import cython

from firnmq.errors import InvalidArgument, LimitExceeded
from firnmq.record.batch import DECOMPRESSED_BYTES_MAX, Buffer
from firnmq.record.types import BatchTerms, Keys

if not cython.compiled:
    from firnmq.record.codec.constants import (
        BYTES_LEFT,
        HEADER_SIZE,
        INT64_MAX,
        REASONS,
        RECORD_SIZE_MIN,
        RECORDS_PER_TURN,
    )
    from firnmq.record.codec.fields import Fields, is_tag, next_header, next_record
    from firnmq.record.codec.headers import BatchEntry, Origin, Source, checked_header, payload_of
    from firnmq.record.codec.memory import (
        Store,
        View,
        bytes_at,
        equals,
        new_store,
        put_integer,
        view_of,
    )
    from firnmq.record.codec.strings import Strings, new_strings

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
    from cython.cimports.libc.string import memcpy


@cython.final
@cython.cclass
class BatchKeys:
    """Keys of a batch's records in their order, each with its record's offset; of a key that occurs
    again the last counts. It has no object per key, unlike a dictionary, and is made in half the
    time."""

    names: Strings
    offsets: Store

    def __len__(self) -> int:
        return self.names.count

    def items(self) -> ItemsView[bytes, int]:
        return self.by_name().items()

    @cython.cfunc
    def by_name(self) -> dict:
        found: dict = {}
        at: cython.Py_ssize_t
        start: cython.Py_ssize_t
        p: cython.p_uchar = self.names.content.p8
        for at in range(self.names.count):
            start = self.names.bounds.p32[at]
            name = bytes_at(p, start, self.names.bounds.p32[at + 1] - start)
            found[name] = self.offsets.p64[at]
        return found

    @cython.cfunc
    @cython.exceptval(-1)
    def add(self, p: cython.p_uchar, fields: Fields, offset: cython.longlong) -> cython.int:
        if self.names.count >= self.offsets.capacity:
            self.offsets.reserve(self.names.count + 64)
        self.offsets.p64[self.names.count] = offset
        self.names.add(p, fields.key_at, fields.key_length, fields.stop)
        return 0


@cython.cfunc
def _new_keys(count: cython.Py_ssize_t) -> BatchKeys:
    keys: BatchKeys = BatchKeys.__new__(BatchKeys)
    keys.names = new_strings(0)
    keys.offsets = new_store(8, count)
    return keys


def collect(
    batch: Buffer,
    *,
    tag_headers: tuple[bytes, ...] = (b"tag",),
    verify: bool = False,
    source: Source = "disk",
    where: str = "",
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
    max_terms: int = INT64_MAX,
    is_packed: bool = False,
) -> BatchTerms:
    """Keys and tags of the one batch that `batch` begins with; none for a control batch. Keys are
    `BatchKeys` if they are to be packed.

    The CRC is not checked unless asked for: a batch is indexed right after it was validated or
    scanned. LimitExceeded if there are more than `max_terms`, each counted as often as it occurs.
    """
    origin: Origin = Origin(source, where)
    view: View = view_of(batch)
    span: BatchEntry = checked_header(batch, view, 0, verify, origin)
    keys: BatchKeys = _new_keys(0)
    tags: dict = {}
    if span.attributes & 0x20:
        return BatchTerms({}, tags)
    payload: View = payload_of(batch, view, span, origin, max_decompressed)
    _collect_terms(payload, span, tag_headers, origin, keys, tags, max_terms)
    return BatchTerms(keys if is_packed else keys.by_name(), tags)


@cython.cfunc
@cython.exceptval(-1)
def _collect_terms(
    view: View,
    span: BatchEntry,
    tag_headers: tuple,
    origin: Origin,
    keys: BatchKeys,
    tags: dict,
    max_terms: cython.longlong,
) -> cython.int:
    p: cython.p_uchar = view.p
    is_compressed: cython.bint = (span.attributes & 7) != 0
    at: cython.Py_ssize_t = 0 if is_compressed else HEADER_SIZE
    end: cython.Py_ssize_t = view.size if is_compressed else span.size
    header_at: cython.Py_ssize_t
    fields: Fields = Fields.__new__(Fields)
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
    term_count: cython.longlong = 0
    if span.record_count > (end - at) // RECORD_SIZE_MIN:
        raise origin.refusal(0, "more records are counted than the batch can hold")
    for index in range(span.record_count):
        if index % RECORDS_PER_TURN == 0:
            with cython.nogil:  # Other threads have their turn.
                pass
        at = next_record(p, at, end, fields)
        if at < 0:
            raise origin.refusal(0, f"record {index}: {REASONS[at]}")
        if fields.offset_delta <= previous_delta or fields.offset_delta > last_delta:
            raise origin.refusal(0, f"record {index}: offset delta out of order")
        previous_delta = fields.offset_delta
        offset = span.base_offset + fields.offset_delta
        if fields.key_length >= 0:
            keys.add(p, fields, span.base_offset + fields.offset_delta)
            term_count += 1
            if term_count > max_terms:
                raise LimitExceeded("batch", term_count, max_terms, unit="keys and tags")
        header_at = fields.headers_at
        for header in range(fields.header_count):
            header_at = next_header(p, header_at, fields)
            if header_at < 0:
                raise origin.refusal(0, f"record {index}: {REASONS[header_at]}")
            if is_tag(p, fields, tag_headers):
                term_count += 1
                if term_count > max_terms:
                    raise LimitExceeded("batch", term_count, max_terms, unit="keys and tags")
                slot = (fields.content_length + p[header_at - 1]) & 15
                tag = recent_tags[slot]
                if recent_offsets[slot] is not None and equals(
                    p, fields.content_at, fields.content_length, tag
                ):
                    offsets = recent_offsets[slot]
                else:
                    tag = bytes_at(p, fields.content_at, fields.content_length)
                    offsets = tags.get(tag)  # type: ignore[assignment]
                    if offsets is None:
                        tags[tag] = offsets = []
                    recent_tags[slot] = tag
                    recent_offsets[slot] = offsets
                # One record may repeat a tag.
                if len(offsets) == 0 or offsets[len(offsets) - 1] is not offset:
                    offsets.append(offset)
        if header_at != fields.stop:
            raise origin.refusal(0, f"record {index}: {REASONS[BYTES_LEFT]}")
    if at != end and (span.record_count > 0 or not is_compressed):
        raise origin.refusal(0, "bytes are left over after the last record")
    return 0


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
    """Uninitialised bytes, to be filled before use; interpreted, a bytearray to copy from."""
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
    keys: Keys,
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
    if isinstance(keys, BatchKeys):
        return _packed_entries(prefix, keys, base_offset, place, term, term_bytes_max)
    for key, relative in keys.items():
        if len(entries) % RECORDS_PER_TURN == 0:
            with cython.nogil:  # Other threads have their turn.
                pass
        if len(key) > term_bytes_max:
            key = term(key)
        name = _blank(len(prefix) + len(key))
        _put_raw(_filling(name), _put_raw(_filling(name), 0, prefix), key)
        value = _blank(8 + len(place))
        _put_raw(_filling(value), put_integer(_filling(value), 0, base_offset + relative, 8), place)
        entries.append((_filled(name), _filled(value)))
    return entries


@cython.cfunc
def _packed_entries(
    prefix: bytes,
    keys: BatchKeys,
    base_offset: cython.longlong,
    place: bytes,
    term: Callable[[bytes], bytes],
    term_bytes_max: cython.Py_ssize_t,
) -> list[tuple[bytes, bytes]]:
    entries: list = []
    key: bytes
    number: cython.Py_ssize_t
    start: cython.Py_ssize_t
    at: cython.Py_ssize_t
    length: cython.Py_ssize_t
    p: cython.p_uchar = keys.names.content.p8
    for number in range(keys.names.count):
        if number % RECORDS_PER_TURN == 0:
            with cython.nogil:  # Other threads have their turn.
                pass
        start = keys.names.bounds.p32[number]
        length = keys.names.bounds.p32[number + 1] - start
        if length > term_bytes_max:
            key = term(bytes_at(p, start, length))
            name = _blank(len(prefix) + len(key))
            _put_raw(_filling(name), _put_raw(_filling(name), 0, prefix), key)
        else:
            name = _blank(len(prefix) + length)
            at = _put_raw(_filling(name), 0, prefix)
            if cython.compiled:
                memcpy(_filling(name) + at, p + start, length)
            else:
                _filling(name)[at : at + length] = p[start : start + length]
        value = _blank(8 + len(place))
        at = put_integer(_filling(value), 0, base_offset + keys.offsets.p64[number], 8)
        _put_raw(_filling(value), at, place)
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
        at = put_integer(_filling(name), at, len(tag), 2)
        at = _put_raw(_filling(name), at, tag)
        put_integer(_filling(name), at, base_offset, 8)
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
            at = put_integer(_filling(value), at, offset - previous, width)
            previous = offset
            count -= 1
    return _filled(value)
