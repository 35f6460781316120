"""Up to where a segment is verified, synced and indexed. docs/formats/index.md has the layout."""

from __future__ import annotations

import struct
from dataclasses import dataclass

_LAYOUT = struct.Struct(
    ">"
    "Q"  # next_offset: first offset after the last synced batch
    "Q"  # position: bytes synced
    "I"  # crc: CRC32C of those bytes
    "q"  # max_timestamp of those records
    "I"  # records_since_point
    "Q"  # indexed_upto: first offset that is not indexed, >= next_offset
    "q"  # first_expiry_ms: no record expires by its own header before this
)
assert _LAYOUT.size == 48
_LAYOUT_BEFORE_EXPIRY_BYTES = 40
_UNKNOWN_EXPIRY = bytes(8)
"""Records of a checkpoint that does not say may have expired at any time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A segment's last synced end, with the running state needed to go on from there."""

    next_offset: int
    position: int
    crc: int
    max_timestamp: int
    records_since_point: int
    indexed_upto: int
    first_expiry_ms: int

    def indexed_to(self, offset: int) -> Checkpoint:
        """The same end, indexed up to another offset."""
        return Checkpoint(
            next_offset=self.next_offset,
            position=self.position,
            crc=self.crc,
            max_timestamp=self.max_timestamp,
            records_since_point=self.records_since_point,
            indexed_upto=offset,
            first_expiry_ms=self.first_expiry_ms,
        )

    def pack(self) -> bytes:
        return _LAYOUT.pack(
            self.next_offset,
            self.position,
            self.crc,
            self.max_timestamp,
            self.records_since_point,
            self.indexed_upto,
            self.first_expiry_ms,
        )

    @classmethod
    def unpack(cls, data: bytes) -> Checkpoint:
        if len(data) == _LAYOUT_BEFORE_EXPIRY_BYTES:
            data += _UNKNOWN_EXPIRY
        next_offset, position, crc, max_timestamp, since_point, upto, expiry = _LAYOUT.unpack(data)
        return cls(
            next_offset=next_offset,
            position=position,
            crc=crc,
            max_timestamp=max_timestamp,
            records_since_point=since_point,
            indexed_upto=upto,
            first_expiry_ms=expiry,
        )
