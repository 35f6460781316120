"""What the hand-written parsers share: lengths in both families, and the way to give up.

The functions take the frame and a position and return a value and the next position. They raise
one of `GIVE_UP` on bytes they do not want to handle; slicing past the end of a view does not
raise, so each parser makes sure that something is unpacked from behind every slice, or compares.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from firnmq.brokers.kafka.protocol.primitives import INT16, STRING_BYTES_MAX


class Unusual(Exception):
    """Something the hand-written path leaves to the table-driven codec."""


GIVE_UP: Final = (struct.error, IndexError, UnicodeDecodeError, Unusual)

ELEMENT_COUNT_MAX: Final = 4_000
"""Frames with more elements take the slower path, which knows the real limit and does not keep the
event loop that long."""

unpack_int16: Final = INT16.unpack_from


def varint(view: memoryview, position: int) -> tuple[int, int]:
    """An unsigned varint of at most four bytes; no length on this path needs more."""
    byte = view[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    for shift in (7, 14, 21):
        position += 1
        byte = view[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
    raise Unusual


def string(view: memoryview, position: int) -> tuple[str, int]:
    """A classic string that is not null."""
    (length,) = unpack_int16(view, position)
    start = position + 2
    end = start + length
    if length < 0 or end > len(view):
        raise Unusual
    return str(view[start:end], "utf-8"), end


def nullable_string(view: memoryview, position: int) -> tuple[str | None, int]:
    if view[position] == 0xFF and view[position + 1] == 0xFF:
        return None, position + 2
    return string(view, position)


def compact_string(view: memoryview, position: int) -> tuple[str, int]:
    """A compact string that is not null."""
    length = view[position]
    if length < 0x80:
        start = position + 1
    else:
        length, start = varint(view, position)
    end = start + length - 1
    if length == 0 or length > STRING_BYTES_MAX or end > len(view):
        raise Unusual
    return str(view[start:end], "utf-8"), end


def compact_nullable_string(view: memoryview, position: int) -> tuple[str | None, int]:
    if view[position] == 0:
        return None, position + 1
    return compact_string(view, position)


def uuid(view: memoryview, position: int) -> tuple[UUID, int]:
    end = position + 16
    if end > len(view):
        raise Unusual
    return UUID(bytes=bytes(view[position:end])), end


def compact_count(view: memoryview, position: int) -> tuple[int, int]:
    """The count of a compact array that is not null."""
    count = view[position]
    if count < 0x80:
        position += 1
    else:
        count, position = varint(view, position)
    if count == 0 or count > ELEMENT_COUNT_MAX:
        raise Unusual
    return count - 1, position
