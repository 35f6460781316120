"""Bytes of index entries. docs/formats/index.md has the same in prose.

The codec encodes the entries of keys and tags, of which there are many.

Every key starts with shard and segment, so that a segment's entries are one range: they are
dropped with one range deletion and can travel with the segment.
"""

from __future__ import annotations

import hashlib
import struct
from array import array
from itertools import accumulate
from sys import byteorder

PREFIX = struct.Struct(
    ">"
    "I"  # shard_uid
    "I"  # segment_seq
    "B"  # kind
)
assert PREFIX.size == 9
U64 = struct.Struct(">Q")
TIME_KEY = struct.Struct(
    ">"
    "Q"  # greatest timestamp before the point, plus 2**63 so that bytes sort like numbers
    "Q"  # offset of the point
)

CHECKPOINT, OFFSET, TIME, KEY, TAG, PRODUCER, ABORTED, DELETION, FENCE = range(9)
NO_SEGMENT = 2**32 - 1
"""In place of a segment: entries of the shard as a whole."""
KIND_END = 255

TERM_BYTES_MAX = 128
"""Keys and tags up to this length are stored as they are, longer ones end in a hash."""
_TERM_KEPT_BYTES = 96

_BIAS = 2**63


def place_prefix(shard_uid: int, place: int) -> bytes:
    """The prefix of the keys of a segment's entries and rows; they sort by it."""
    return PREFIX.pack(shard_uid, place, 0)[:-1]


def segment_range(shard_uid: int, segment_seq: int) -> tuple[bytes, bytes]:
    """Every index entry of a segment is in [first, second)."""
    return PREFIX.pack(shard_uid, segment_seq, 0), PREFIX.pack(shard_uid, segment_seq, KIND_END)


def shard_range(shard_uid: int) -> tuple[bytes, bytes]:
    """Every index entry of a shard is in [first, second)."""
    return PREFIX.pack(shard_uid, 0, 0), PREFIX.pack(shard_uid + 1, 0, 0)


def checkpoint_key(shard_uid: int, place: int) -> bytes:
    return PREFIX.pack(shard_uid, place, CHECKPOINT)


def producer_key(shard_uid: int, producer_id: int) -> bytes:
    return PREFIX.pack(shard_uid, NO_SEGMENT, PRODUCER) + U64.pack(producer_id)


def producer_range(shard_uid: int) -> tuple[bytes, bytes]:
    """Every producer of a shard is in [first, second)."""
    return (
        PREFIX.pack(shard_uid, NO_SEGMENT, PRODUCER),
        PREFIX.pack(shard_uid, NO_SEGMENT, PRODUCER + 1),
    )


def producer_id_of(key: bytes) -> int:
    return int(U64.unpack_from(key, PREFIX.size)[0])


def aborted_key(shard_uid: int, last_offset: int) -> bytes:
    return PREFIX.pack(shard_uid, NO_SEGMENT, ABORTED) + U64.pack(last_offset)


def lost_key(shard_uid: int, last_offset: int, producer_id: int) -> bytes:
    """The key of an aborted transaction without a marker: several may end at one offset."""
    return aborted_key(shard_uid, last_offset) + U64.pack(producer_id)


def is_lost(key: bytes) -> bool:
    """Whether an aborted transaction's key is of one without a marker."""
    return len(key) == PREFIX.size + 2 * U64.size


def last_offset_of(key: bytes) -> int:
    """The offset at which an aborted transaction ends, from its key."""
    return int(U64.unpack_from(key, PREFIX.size)[0])


def aborted_range(
    shard_uid: int, start_offset: int = 0, end_offset: int = 2**64 - 1
) -> tuple[bytes, bytes]:
    """Every aborted transaction that ends in [start, end) is in [first, second)."""
    return aborted_key(shard_uid, start_offset), aborted_key(shard_uid, end_offset)


def deletion_key(shard_uid: int, offset: int) -> bytes:
    """The key of the deletion whose entry is at the offset."""
    return PREFIX.pack(shard_uid, NO_SEGMENT, DELETION) + U64.pack(offset)


def deletion_range(
    shard_uid: int, start_offset: int = 0, end_offset: int = 2**64 - 1
) -> tuple[bytes, bytes]:
    """Every deletion with an entry in [start, end) is in [first, second)."""
    return deletion_key(shard_uid, start_offset), deletion_key(shard_uid, end_offset)


def fence_key(shard_uid: int, segment_seq: int) -> bytes:
    """The key of the fence of a segment's replica. It stays when the segment's index is emptied."""
    return PREFIX.pack(shard_uid, NO_SEGMENT, FENCE) + U64.pack(segment_seq)


def entry_offset_of(key: bytes) -> int:
    """The offset of a deletion's entry, from the deletion's key."""
    return int(U64.unpack_from(key, PREFIX.size)[0])


def time_key(timestamp_ms: int, offset: int) -> bytes:
    biased = min(max(timestamp_ms + _BIAS, 0), 2**64 - 1)
    return TIME_KEY.pack(biased, offset)


def term(raw: bytes) -> bytes:
    """A key or tag as it stands in the index: bounded, so that entries stay small."""
    if len(raw) <= TERM_BYTES_MAX:
        return raw
    digest = hashlib.blake2b(raw, digest_size=TERM_BYTES_MAX + 1 - _TERM_KEPT_BYTES).digest()
    return raw[:_TERM_KEPT_BYTES] + digest  # One byte longer than any term stored as it is.


def short_number(number: int) -> bytes:
    """A number in as few big-endian bytes as it needs."""
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def pack_place(position: int) -> bytes:
    """How a tag entry begins: its batch's position with the length of that."""
    place = short_number(position)
    return bytes((len(place),)) + place


def unpack_offsets(entry: bytes) -> tuple[int, list[int]]:
    """The position and the relative offsets of a tag entry."""
    place_end = 1 + entry[0]
    steps = array(chr(entry[place_end]))
    steps.frombytes(entry[place_end + 1 :])
    if byteorder == "little":
        steps.byteswap()
    offsets = list(accumulate(steps))
    return int.from_bytes(entry[1:place_end], "big"), offsets
