"""Reading the protocol's primitive types from a frame that cannot be trusted.

Every length is compared with the bytes that remain before anything is allocated for it. Whatever
is wrong gives `MalformedRequest` with the position, and no other exception.
"""

from __future__ import annotations

import struct
from typing import Final
from uuid import UUID

from firnmq.brokers.kafka.protocol.errors import MalformedRequest, RequestTooLong
from firnmq.brokers.kafka.protocol.primitives import (
    ELEMENT_COUNT_MAX,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    STRING_BYTES_MAX,
    UINT32,
    Buffer,
)

NULL: Final = -1
"""What the length and count readers return for null."""


class Reader:
    """A position in a frame, moved on by each call.

    Records come out as views of the frame, so the frame lives as long as they do. Strings and
    bytes are copied, because what they hold (names, group metadata) outlives the frame.
    """

    __slots__ = ("_end", "elements_left", "position", "view")

    def __init__(
        self, data: Buffer, position: int = 0, *, element_count_max: int = ELEMENT_COUNT_MAX
    ) -> None:
        view = memoryview(data)
        if view.format != "B" or view.ndim != 1:
            view = view.cast("B")
        self.view = view
        self._end = len(view)
        self.position = position
        self.elements_left = element_count_max

    @property
    def remaining(self) -> int:
        return self._end - self.position

    # Numbers.

    def int8(self) -> int:
        return self._fixed(INT8)

    def int16(self) -> int:
        return self._fixed(INT16)

    def int32(self) -> int:
        return self._fixed(INT32)

    def int64(self) -> int:
        return self._fixed(INT64)

    def float64(self) -> float:
        return self._fixed(FLOAT64)

    def uint32(self) -> int:
        return self._fixed(UINT32)

    def boolean(self) -> bool:
        return self._fixed(INT8) != 0

    def uuid(self) -> UUID:
        return UUID(bytes=bytes(self._slice(16)))

    def unsigned_varint(self) -> int:
        """At most 32 bits, in at most five bytes."""
        return self._varint(32)

    def varint(self) -> int:
        """A signed 32-bit number in zigzag form: 0, -1, 1, -2 are 0, 1, 2, 3."""
        value = self._varint(32)
        return (value >> 1) ^ -(value & 1)

    def varlong(self) -> int:
        value = self._varint(64)
        return (value >> 1) ^ -(value & 1)

    # Strings.

    def string(self) -> str:
        return self._text(self._required(self.int16()))

    def nullable_string(self) -> str | None:
        length = self.int16()
        return None if length == NULL else self._text(length)

    def compact_string(self) -> str:
        return self._text(self._required(self.unsigned_varint() - 1))

    def compact_nullable_string(self) -> str | None:
        length = self.unsigned_varint() - 1
        return None if length == NULL else self._text(length)

    # Bytes ("blob" because `bytes` is taken), copied.

    def blob(self) -> bytes:
        return bytes(self.records())

    def nullable_blob(self) -> bytes | None:
        records = self.nullable_records()
        return None if records is None else bytes(records)

    def compact_blob(self) -> bytes:
        return bytes(self.compact_records())

    def compact_nullable_blob(self) -> bytes | None:
        records = self.compact_nullable_records()
        return None if records is None else bytes(records)

    # Records: the same layout as bytes, not copied.

    def records(self) -> memoryview:
        return self._slice(self._required(self.int32()))

    def nullable_records(self) -> memoryview | None:
        length = self.int32()
        return None if length == NULL else self._slice(length)

    def compact_records(self) -> memoryview:
        return self._slice(self._required(self.unsigned_varint() - 1))

    def compact_nullable_records(self) -> memoryview | None:
        length = self.unsigned_varint() - 1
        return None if length == NULL else self._slice(length)

    # Arrays and tagged fields.

    def array_count(self, element_bytes_min: int) -> int:
        """How many elements follow, or NULL; each takes at least `element_bytes_min` bytes."""
        return self._count(self.int32(), element_bytes_min)

    def compact_array_count(self, element_bytes_min: int) -> int:
        return self._count(self.unsigned_varint() - 1, element_bytes_min)

    def tagged_field_count(self) -> int:
        """How many tagged fields follow. Each has at least a tag and a size."""
        count = self.unsigned_varint()
        return self._count(count, 2) if count else 0

    def tagged_field(self) -> tuple[int, int]:
        """Tag and size of the next tagged field; its bytes follow and are all there."""
        tag = self.unsigned_varint()
        size = self.unsigned_varint()
        if size > self._end - self.position:
            raise self._overrun(size)
        return tag, size

    def skip(self, size: int) -> None:
        if not 0 <= size <= self._end - self.position:
            raise self._overrun(size)
        self.position += size

    def skip_tagged_fields(self) -> None:
        for _ in range(self.tagged_field_count()):
            self.skip(self.tagged_field()[1])

    # What the above are made of.

    def malformed(self, reason: str) -> MalformedRequest:
        """The error to raise for something wrong at the present position."""
        return MalformedRequest(reason, position=self.position)

    def _fixed(self, layout: struct.Struct) -> int:
        try:
            value: int = layout.unpack_from(self.view, self.position)[0]
        except struct.error:
            raise self._overrun(layout.size) from None
        self.position += layout.size
        return value

    def _varint(self, bits: int) -> int:
        view = self.view
        start = position = self.position
        value = shift = 0
        try:
            while (byte := view[position]) & 0x80:
                value |= (byte & 0x7F) << shift
                shift += 7
                position += 1
                if shift >= bits:
                    raise MalformedRequest("a varint has too many bytes", position=start)
        except IndexError:
            raise self._overrun(position - start + 1) from None
        value |= byte << shift
        if value >> bits:
            raise MalformedRequest(f"a varint has more than {bits} bits", position=start)
        self.position = position + 1
        return value

    def _slice(self, length: int) -> memoryview:
        start = self.position
        if length < 0:
            raise self.malformed(f"length {length:,} is negative")
        if length > self._end - start:
            raise self._overrun(length)
        self.position = start + length
        return self.view[start : start + length]

    def _text(self, length: int) -> str:
        start = self.position
        if length > STRING_BYTES_MAX:
            raise self.malformed(f"a string of {length:,} bytes, the limit is {STRING_BYTES_MAX:,}")
        try:
            return str(self._slice(length), "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedRequest(
                f"a string is not UTF-8: {error.reason}", position=start + error.start
            ) from None

    def _count(self, count: int, element_bytes_min: int) -> int:
        if count <= 0:
            if count < NULL:
                raise self.malformed(f"array length {count:,} is negative")
            return count
        if count * element_bytes_min > self._end - self.position:
            raise self.malformed(
                f"{count:,} elements of at least {element_bytes_min} bytes do not fit into the "
                f"{self._end - self.position:,} bytes that remain"
            )
        if count > self.elements_left:
            raise RequestTooLong(
                f"{count:,} elements, {self.elements_left:,} more are allowed",
                position=self.position,
                limit="request_elements",
            )
        self.elements_left -= count
        return count

    def _required(self, length: int) -> int:
        if length == NULL:
            raise self.malformed("null where a value is required")
        return length

    def _overrun(self, size: int) -> MalformedRequest:
        return self.malformed(f"{size:,} bytes expected, {self._end - self.position:,} remain")
