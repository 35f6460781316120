"""Rows of shared files in the key-value store: where frames are, and what is known of each file.

All are in the LOCATIONS family. docs/formats/shared-file.md has the same in prose.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SHARD_KEY = struct.Struct(">I")
SEGMENT_KEY = struct.Struct(
    ">"
    "I"  # shard_uid; from 1 on
    "I"  # place of the segment
)
LOCATION_KEY = struct.Struct(
    ">"
    "I"  # shard_uid
    "I"  # place of the segment
    "Q"  # position of the first batch in the segment
)
_LOCATION = struct.Struct(
    ">"
    "I"  # number of the file
    "I"  # position of the first batch in the file
    "I"  # bytes of the batches
)
_FILE_UID = 0
"""In the place of a shard: rows of files, and of when shards are due."""
_EXTENT, _DEAD, _DUE, _LIMITS, _DUE_OF = range(5)
_DUE_KEY = struct.Struct(
    ">"
    "I"  # 0
    "I"  # 2
    "Q"  # when upkeep has to visit a shard, in milliseconds of the wall clock
    "I"  # uid of the shard
)
_DUE_OF_KEY = struct.Struct(
    ">"
    "I"  # 0
    "I"  # 4
    "I"  # uid of a shard
)
_DUE_TIME = struct.Struct(">Q")
_EXTENT_ROW = struct.Struct(
    ">"
    "B"  # 1: nothing is appended to the file any more
    "Q"  # end of the frames that the rows of locations know
    "Q"  # end of what was on the device when the row was written
)
_DEAD_ROW = struct.Struct(">Q")


class Location(NamedTuple):
    """Where a frame's batches are."""

    file: int
    file_position: int
    length: int

    def pack(self) -> bytes:
        return _LOCATION.pack(*self)


class Extent(NamedTuple):
    """How far a file is written; nothing behind that belongs to any segment."""

    is_sealed: bool
    written: int
    synced: int

    def pack(self) -> bytes:
        return _EXTENT_ROW.pack(*self)


def location_key(shard_uid: int, place: int, position: int) -> bytes:
    return LOCATION_KEY.pack(shard_uid, place, position)


def position_of(key: bytes) -> int:
    """Of the frame in its segment."""
    return int(LOCATION_KEY.unpack(key)[2])


def unpack_location(packed: bytes) -> Location:
    return Location._make(_LOCATION.unpack(packed))


def place_rows(shard_uid: int, place: int) -> tuple[bytes, bytes]:
    """Every location of a segment is in [first, second)."""
    prefix = SEGMENT_KEY.pack(shard_uid, place)
    return prefix, prefix + b"\xff" * 9


def shard_rows(shard_uid: int) -> tuple[bytes, bytes]:
    """Every location of a shard is in [first, second)."""
    return SEGMENT_KEY.pack(shard_uid, 0), SEGMENT_KEY.pack(shard_uid + 1, 0)


ALL_LOCATIONS = SEGMENT_KEY.pack(1, 0), b"\xff" * 17


def extent_key(number: int) -> bytes:
    return LOCATION_KEY.pack(_FILE_UID, _EXTENT, number)


def dead_key(number: int) -> bytes:
    return LOCATION_KEY.pack(_FILE_UID, _DEAD, number)


EXTENTS = place_rows(_FILE_UID, _EXTENT)
DEAD = place_rows(_FILE_UID, _DEAD)


def unpack_extent(packed: bytes) -> Extent:
    is_sealed, written, synced = _EXTENT_ROW.unpack(packed)
    return Extent(bool(is_sealed), written, synced)


def pack_dead(dead_bytes: int) -> bytes:
    return _DEAD_ROW.pack(dead_bytes)


def unpack_dead(packed: bytes) -> int:
    return int(_DEAD_ROW.unpack(packed)[0])


def due_rows(uid: int, due_ms: int) -> list[tuple[bytes, bytes]]:
    """The rows that say when a shard is due."""
    return [(due_key(uid, due_ms), b""), (due_of_key(uid), _DUE_TIME.pack(due_ms))]


def due_key(uid: int, due_ms: int) -> bytes:
    return _DUE_KEY.pack(_FILE_UID, _DUE, due_ms, uid)


def unpack_due_key(key: bytes) -> tuple[int, int]:
    """The uid and the time."""
    _, _, due_ms, uid = _DUE_KEY.unpack(key)
    return uid, due_ms


def due_upto(now_ms: int) -> tuple[bytes, bytes]:
    """Every row of a shard that is due by then is in [first, second)."""
    return due_key(0, 0), due_key(0, now_ms + 1)


def due_of_key(uid: int) -> bytes:
    return _DUE_OF_KEY.pack(_FILE_UID, _DUE_OF, uid)


def unpack_due_of(packed: bytes) -> int:
    return int(_DUE_TIME.unpack(packed)[0])


def limits_key(topic_id: str) -> bytes:
    return SEGMENT_KEY.pack(_FILE_UID, _LIMITS) + topic_id.encode()
