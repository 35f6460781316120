"""Batches made of a stored batch: without some of its records, or not compressed.

Offsets and timestamps of records are relative to their batch, so a record that stays is copied as
it is and the header keeps what it is relative to: base offset, last offset, base timestamp,
producer, epoch, sequence, and whether it is part of a transaction.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TypeVar

from crc32c import crc32c

from firnmq.record.batch import (
    ATTRIBUTE_CODEC,
    CRC_START,
    DECOMPRESSED_BYTES_MAX,
    HEADER,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    Buffer,
    Compression,
    parse_header,
)
from firnmq.record.compression import compress, decompress

_Writable = TypeVar("_Writable", bytearray, bytearray | memoryview)
_ATTRIBUTES_BYTES = 1
_NO_TIMESTAMP = -1


def with_header(batch: _Writable, header: BatchHeader) -> _Writable:
    """The batch with another header and the CRC that goes with it."""
    HEADER.pack_into(batch, 0, *header)
    crc = crc32c(memoryview(batch)[CRC_START:])
    batch[CRC_START - 4 : CRC_START] = crc.to_bytes(4, "big")
    return batch


def unpacked(batch: Buffer, *, max_bytes: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The batch with its records not compressed, to be looked at more than once.

    Its CRC is still that of the batch it was made of. LimitExceeded if the records have more than
    `max_bytes`, InvalidRecord if they cannot be decompressed.
    """
    header = parse_header(batch)
    if header.compression is Compression.NONE:
        return batch
    stored = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    plain = decompress(header.compression, stored, max_bytes=max_bytes, space_before=HEADER_BYTES)
    header = header._replace(
        attributes=header.attributes & ~ATTRIBUTE_CODEC, batch_length=len(plain) - LENGTH_END
    )
    HEADER.pack_into(plain, 0, *header)
    return plain


def filtered(batch: Buffer, kept_offsets: Container[int]) -> bytearray:
    """The batch with only those of its records whose offsets are kept; it may have none left.

    The batch must have been decoded before: its bytes are believed.
    """
    header = parse_header(batch)
    records = _records(batch, header)
    pieces: list[memoryview] = []
    kept_count = 0
    newest_delta: int | None = None
    position = 0
    for _ in range(header.record_count):
        begin = position
        length, body = _varint(records, begin)
        position = body + length
        timestamp_delta, at = _varint(records, body + _ATTRIBUTES_BYTES)
        offset_delta, _ = _varint(records, at)
        if header.base_offset + offset_delta in kept_offsets:
            pieces.append(records[begin:position])
            kept_count += 1
            if newest_delta is None or timestamp_delta > newest_delta:
                newest_delta = timestamp_delta
    header = header._replace(record_count=kept_count)
    if newest_delta is None:
        return _without_records(header)
    if not header.is_append_time:
        header = header._replace(max_timestamp=header.base_timestamp + newest_delta)
    payload: Buffer = b"".join(pieces)
    if header.compression is not Compression.NONE:
        payload = compress(header.compression, payload)
    header = header._replace(batch_length=HEADER_BYTES - LENGTH_END + len(payload))
    return with_header(bytearray().join((bytes(HEADER_BYTES), payload)), header)


def empty_batch(base_offset: int, last_offset: int) -> bytearray:
    """A batch of no records that takes a reader past some offsets at which there are none."""
    return _without_records(
        BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=0,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=last_offset - base_offset,
            base_timestamp=_NO_TIMESTAMP,
            max_timestamp=_NO_TIMESTAMP,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=0,
        )
    )


def _without_records(header: BatchHeader) -> bytearray:
    header = header._replace(
        attributes=header.attributes & ~ATTRIBUTE_CODEC, batch_length=HEADER_BYTES - LENGTH_END
    )
    return with_header(bytearray(HEADER_BYTES), header)


def _records(batch: Buffer, header: BatchHeader) -> memoryview:
    """The bytes of a batch's records, decompressed."""
    stored = memoryview(batch)[HEADER_BYTES : header.size_bytes]
    if header.compression is Compression.NONE:
        return stored
    return memoryview(decompress(header.compression, stored))


def _varint(data: memoryview, position: int) -> tuple[int, int]:
    """The zigzag number at a position, and the position after it."""
    byte = data[position]
    position += 1
    number = byte & 0x7F
    shift = 7
    while byte & 0x80:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
    return (number >> 1) ^ -(number & 1), position
