"""What the reader, the writer and the hand-written paths share: layouts, limits, buffers.

Two families of encodings exist side by side. The classic one has fixed-width lengths (int16 for
strings, int32 for bytes and arrays, -1 for null). The compact one, of the "flexible" versions, has
unsigned varints that hold the length plus one (0 for null) and ends every structure with tagged
fields.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from typing import Final, TypeAlias

from firnmq.disk import FileRange

Buffer: TypeAlias = bytes | bytearray | memoryview

Part: TypeAlias = Buffer | FileRange
"""A piece of an outgoing frame."""

Parts: TypeAlias = Part | Sequence[Part]
"""Record data: one piece, or several that follow each other."""

INT8: Final = struct.Struct(">b")
INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
UINT32: Final = struct.Struct(">I")
FLOAT64: Final = struct.Struct(">d")

ZERO_UUID: Final = uuid.UUID(int=0)
"""The protocol's way to say "no id"."""

STRING_BYTES_MAX: Final = 0x7FFF
"""The classic length is an int16; the protocol keeps the same bound for compact strings."""

FRAME_BYTES_MAX: Final = 0x7FFF_FFFF
"""The size in front of a frame is an int32."""

ELEMENT_COUNT_MAX: Final = 50_000
"""Array elements and tagged fields that one message may hold, all together.

The bytes that remain bound each array, but an element of three bytes becomes an object of a
hundred, so a large frame of tiny elements would still take thirty times its size. The garbage
collector looks at all of them at once, while everything else waits. The limit is above the 20,000
partitions that a node may have by default; clients that use more ask in several requests.
"""

COPY_BYTES_MAX: Final = 512
"""Record data up to this size is copied into its neighbours: cheaper than one more buffer in the
system call that sends the frame."""


def varint_bytes(value: int) -> bytes:
    """`value`, which is not negative, as an unsigned varint."""
    if value < 0x80:
        return _SINGLE[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SINGLE: Final = [bytes((value,)) for value in range(0x80)]
