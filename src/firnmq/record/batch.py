"""The header of a RecordBatch v2: its layout, its limits and the two fields the broker sets.

A batch is 61 bytes of header followed by its records, compressed or not. The CRC covers byte 21
to the end, so the base offset and the leader epoch in front of it can be set by the broker
without touching anything else.
"""

from __future__ import annotations

import enum
import struct
from typing import Final, NamedTuple, Self, TypeAlias

from firnmq.errors import InvalidRecord

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Bytes in any form; anything else that has a buffer is wrapped in a memoryview by its owner."""

HEADER: Final = struct.Struct(
    ">"  # Big-endian, no padding.
    "q"  # 0   base_offset: offset of the first record; set by the broker.
    "i"  # 8   batch_length: bytes that follow this field.
    "i"  # 12  leader_epoch: set by the broker.
    "b"  # 16  magic: 2.
    "I"  # 17  crc: CRC32C of everything from `attributes` to the end of the batch.
    "h"  # 21  attributes: codec (bits 0-2), log append time (3), transactional (4), control (5).
    "i"  # 23  last_offset_delta: offset of the last record minus base_offset.
    "q"  # 27  base_timestamp: what the records' timestamp deltas are added to.
    "q"  # 35  max_timestamp: largest timestamp, or the append time if bit 3 is set.
    "q"  # 43  producer_id: -1 if the producer is not idempotent.
    "h"  # 51  producer_epoch: -1 likewise.
    "i"  # 53  base_sequence: -1 likewise.
    "i"  # 57  record_count.
)
PREFIX: Final = struct.Struct(
    ">"
    "q"  # 0   base_offset.
    "i"  # 8   batch_length.
    "i"  # 12  leader_epoch.
)

_BASE_OFFSET: Final = struct.Struct(">q")
_LEADER_EPOCH: Final = struct.Struct(">i")

HEADER_BYTES: Final = 61
PREFIX_BYTES: Final = 16
assert HEADER.size == HEADER_BYTES
assert PREFIX.size == PREFIX_BYTES

LENGTH_END: Final = 12
"""Where `batch_length` ends and what it counts begins."""
CRC_START: Final = 21
"""First byte covered by the CRC."""
_ATTRIBUTES_LOW_BYTE: Final = 22
MAGIC: Final = 2

RECORD_BYTES_MIN: Final = 7
"""Length, attributes, two deltas, key length, value length and header count, one byte each. It
bounds how many records a number of bytes can hold."""
RECORD_BYTES_MAX: Final = 1024 * 1024
"""Default limit of one record, the same as Kafka's: larger things belong in an object store."""
BATCH_BYTES_MAX: Final = 100 * 1024 * 1024
"""No batch is larger than the frame it arrived in, and a frame is at most this large. A scan
takes a greater length for garbage instead of reading on for it."""
DECOMPRESSED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Default limit of a batch's records once decompressed: above every uncompressed batch, small
enough that a crafted batch cannot take the memory of the process."""
OFFSET_MAX: Final = 2**62
"""Base offsets stay below this, so that adding a delta can never overflow 64 bits."""

ATTRIBUTE_CODEC: Final = 0b000_0111
ATTRIBUTE_APPEND_TIME: Final = 0b000_1000
ATTRIBUTE_TRANSACTIONAL: Final = 0b001_0000
ATTRIBUTE_CONTROL: Final = 0b010_0000


class Compression(enum.IntEnum):
    """How a batch's records are compressed; the numbers are those of the attributes field."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class BatchHeader(NamedTuple):
    """A batch's header as it stands in the bytes, in the order of the layout.

    A named tuple because `struct` fills it in one step; it is made for every produced batch.
    """

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def compression(self) -> Compression:
        """The codec; InvalidRecord if the number means none that we know."""
        number = self.attributes & ATTRIBUTE_CODEC
        if number > Compression.ZSTD:
            raise InvalidRecord(f"unknown compression codec {number}")
        return Compression(number)

    @property
    def is_append_time(self) -> bool:
        """All records carry `max_timestamp`, the time of the append, instead of their own."""
        return bool(self.attributes & ATTRIBUTE_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & ATTRIBUTE_TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """The records are transaction markers, never shown to readers of the log."""
        return bool(self.attributes & ATTRIBUTE_CONTROL)

    def pack(self) -> bytes:
        """The 61 bytes of this header."""
        return HEADER.pack(*self)

    def at(self, base_offset: int, leader_epoch: int) -> Self:
        """The same header with the two fields that the broker sets."""
        return self._replace(base_offset=base_offset, leader_epoch=leader_epoch)


def attributes_of(batch: Buffer) -> int:
    """The low byte of a batch's attributes, which is all of them that mean something; 0 if the
    header is not whole. For a look at a client's batch before it is judged."""
    return batch[_ATTRIBUTES_LOW_BYTE] if len(batch) >= HEADER_BYTES else 0


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unjudged; InvalidRecord if fewer than 61 bytes are there."""
    if position >= 0:
        try:
            return tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))
        except struct.error:
            pass  # Fewer bytes than it takes.
    raise InvalidRecord(f"a batch header needs {HEADER_BYTES} bytes at byte {position:,}")


def patch_base(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Set base offset and leader epoch of the batch at `position` of a writable buffer."""
    if position < 0 or len(buffer) - position < HEADER_BYTES:
        raise InvalidRecord(f"a batch header needs {HEADER_BYTES} bytes at byte {position:,}")
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _LEADER_EPOCH.pack_into(buffer, position + LENGTH_END, leader_epoch)


def patched_prefix(batch: Buffer, base_offset: int, leader_epoch: int) -> bytes:
    """The first 16 bytes of `batch` with another base offset and leader epoch.

    Writing `[patched_prefix(batch, …), memoryview(batch)[PREFIX_BYTES:]]` stores a client's
    immutable bytes without copying them.
    """
    if memoryview(batch).nbytes < HEADER_BYTES:
        raise InvalidRecord(f"a batch header needs {HEADER_BYTES} bytes")
    _, batch_length, _ = PREFIX.unpack_from(batch, 0)
    return PREFIX.pack(base_offset, batch_length, leader_epoch)
