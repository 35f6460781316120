"""Control batches: one record that speaks of the log itself. No client is shown it as a record.

The record's key says what kind it is, in the form that every Kafka client knows; clients pass over
the kinds that they do not know.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from firnmq.errors import Corruption
from firnmq.record.batch import (
    ATTRIBUTE_CONTROL,
    HEADER_BYTES,
    LENGTH_END,
    MAGIC,
    BatchHeader,
    Buffer,
)
from firnmq.record.codec import decode
from firnmq.record.rewrite import with_header
from firnmq.record.selection import Selection

_KEY = struct.Struct(
    ">"
    "h"  # version
    "h"  # type
)
assert _KEY.size == 4
_VERSION = 0
_NO_TIMESTAMP = -1
_WITH_CONTROL = Selection(include_control=True)


class ControlRecord(NamedTuple):
    """The record of a control batch."""

    kind: int
    """The type in its key."""
    value: bytes


def control_batch(
    kind: int,
    value: bytes,
    *,
    attributes: int = ATTRIBUTE_CONTROL,
    producer_id: int = -1,
    producer_epoch: int = -1,
) -> bytearray:
    """A control batch without a timestamp."""
    key = _KEY.pack(_VERSION, kind)
    # Attributes, two deltas and the count of headers are 0.
    record = b"".join((bytes(3), _varint(len(key)), key, _varint(len(value)), value, bytes(1)))
    payload = _varint(len(record)) + record
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_BYTES - LENGTH_END + len(payload),
        leader_epoch=0,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=0,
        base_timestamp=_NO_TIMESTAMP,
        max_timestamp=_NO_TIMESTAMP,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=-1,
        record_count=1,
    )
    return with_header(bytearray(header.pack() + payload), header)


def control_record(batch: Buffer) -> ControlRecord:
    """The record of a control batch; Corruption if it has none in the known form."""
    for record in decode([batch], _WITH_CONTROL, verify=False).records():
        if record.key is not None and len(record.key) == _KEY.size:
            return ControlRecord(_KEY.unpack(record.key)[1], bytes(record.value or b""))
    raise Corruption("a control batch holds no control record")


def _varint(number: int) -> bytes:
    """A length as records have it: zigzag, seven bits a byte."""
    rest = 2 * number
    parts = bytearray()
    while rest > 0x7F:
        parts.append(rest & 0x7F | 0x80)
        rest >>= 7
    parts.append(rest)
    return bytes(parts)
