"""Writing the protocol's primitive types, with large pieces taken by reference.

A frame becomes a list of parts: our own small fields gathered in bytearrays, and between them the
record data as it was handed in. Nothing is joined; the parts go to the socket in one system call.
"""

from __future__ import annotations

import sys
from uuid import UUID

from firnmq.brokers.kafka.protocol.primitives import (
    COPY_BYTES_MAX,
    FLOAT64,
    FRAME_BYTES_MAX,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING_BYTES_MAX,
    UINT32,
    Part,
    Parts,
    varint_bytes,
)
from firnmq.disk import FileRange
from firnmq.errors import InvalidArgument

_SIZE_BYTES = INT32.size


class TooManyElements(Exception):
    """A message has more elements than its writer was to write. It never reaches a client."""


class Writer:
    """Gathers a frame. A framed writer leaves room in front for the frame's size."""

    __slots__ = ("_elements_left", "_is_framed", "_parts", "_tail")

    def __init__(self, *, is_framed: bool = False, element_count_max: int = sys.maxsize) -> None:
        self._is_framed = is_framed
        self._elements_left = element_count_max
        self._parts: list[Part] = []
        self._tail = bytearray(_SIZE_BYTES if is_framed else 0)

    def parts(self) -> list[Part]:
        """What was written, in order. The writer must not be used afterwards."""
        parts = self._parts
        if self._tail or not parts:
            parts.append(self._tail)
        if self._is_framed:
            size = sum(map(len, parts)) - _SIZE_BYTES
            if size > FRAME_BYTES_MAX:
                raise InvalidArgument("frame", f"{size:,} bytes do not fit an int32 size")
            head = parts[0]
            assert isinstance(head, bytearray)
            INT32.pack_into(head, 0, size)
        return parts

    def raw(self, data: bytes) -> None:
        self._tail += data

    # Numbers.

    def int8(self, value: int) -> None:
        self._tail += INT8.pack(value)

    def int16(self, value: int) -> None:
        self._tail += INT16.pack(value)

    def int32(self, value: int) -> None:
        self._tail += INT32.pack(value)

    def int64(self, value: int) -> None:
        self._tail += INT64.pack(value)

    def float64(self, value: float) -> None:
        self._tail += FLOAT64.pack(value)

    def uint32(self, value: int) -> None:
        self._tail += UINT32.pack(value)

    def boolean(self, value: bool) -> None:
        self._tail.append(1 if value else 0)

    def uuid(self, value: UUID) -> None:
        self._tail += value.bytes

    def unsigned_varint(self, value: int) -> None:
        if not 0 <= value <= 0xFFFF_FFFF:
            raise InvalidArgument("varint", f"{value} is not an unsigned 32-bit number")
        self._tail += varint_bytes(value)

    def varint(self, value: int) -> None:
        if not -(2**31) <= value < 2**31:
            raise InvalidArgument("varint", f"{value} is not a signed 32-bit number")
        self._tail += varint_bytes((value << 1) ^ (value >> 31))

    def varlong(self, value: int) -> None:
        if not -(2**63) <= value < 2**63:
            raise InvalidArgument("varlong", f"{value} is not a signed 64-bit number")
        self._tail += varint_bytes((value << 1) ^ (value >> 63))

    # Strings.

    def string(self, value: str) -> None:
        encoded = _encoded(value)
        self._tail += INT16.pack(len(encoded))
        self._tail += encoded

    def nullable_string(self, value: str | None) -> None:
        if value is None:
            self._tail += b"\xff\xff"
        else:
            self.string(value)

    def compact_string(self, value: str) -> None:
        encoded = _encoded(value)
        self._tail += varint_bytes(len(encoded) + 1)
        self._tail += encoded

    def compact_nullable_string(self, value: str | None) -> None:
        if value is None:
            self._tail.append(0)
        else:
            self.compact_string(value)

    # Bytes and records: one piece or several, large ones by reference.

    def records(self, value: Parts) -> None:
        pieces = _pieces(value)
        self._tail += INT32.pack(sum(map(len, pieces)))
        self._extend(pieces)

    def nullable_records(self, value: Parts | None) -> None:
        if value is None:
            self._tail += b"\xff\xff\xff\xff"
        else:
            self.records(value)

    def compact_records(self, value: Parts) -> None:
        pieces = _pieces(value)
        self.unsigned_varint(sum(map(len, pieces)) + 1)
        self._extend(pieces)

    def compact_nullable_records(self, value: Parts | None) -> None:
        if value is None:
            self._tail.append(0)
        else:
            self.compact_records(value)

    # Arrays and tagged fields. A count of None is a null array.

    def array_count(self, count: int | None) -> None:
        if count:
            self._count(count)
        self._tail += INT32.pack(-1 if count is None else count)

    def compact_array_count(self, count: int | None) -> None:
        if count:
            self._count(count)
        self.unsigned_varint(0 if count is None else count + 1)

    def tagged_field(self, tag: int, content: Writer) -> None:
        """The tag, the size and the bytes of what `content` gathered."""
        pieces = content.parts()
        self.unsigned_varint(tag)
        self.unsigned_varint(sum(map(len, pieces)))
        self._extend(pieces)

    def _count(self, count: int) -> None:
        self._elements_left -= count
        if self._elements_left < 0:
            raise TooManyElements

    def _extend(self, pieces: list[Part]) -> None:
        for piece in pieces:
            if isinstance(piece, FileRange) or len(piece) > COPY_BYTES_MAX:
                if self._tail:
                    self._parts.append(self._tail)
                    self._tail = bytearray()
                self._parts.append(piece)
            else:
                self._tail += piece


def _encoded(value: str) -> bytes:
    encoded = value.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise InvalidArgument(
            "string", f"{len(encoded):,} bytes, the limit is {STRING_BYTES_MAX:,}"
        )
    return encoded


def _pieces(value: Parts) -> list[Part]:
    """The pieces of record data, those without bytes left out."""
    if isinstance(value, (bytes, bytearray, memoryview, FileRange)):
        return [value] if len(value) else []
    return [piece for piece in value if len(piece)]
