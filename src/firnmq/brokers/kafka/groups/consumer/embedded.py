"""What classic members say and are told in bytes of their own: subscriptions and assignments.

Members of a classic group agree on partitions among themselves, in messages that the coordinator
passes on unread. Where such members are in a group that the coordinator assigns, it reads what they
subscribe to and what they still have, and writes what they get.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from firnmq.brokers.kafka.protocol.errors import MalformedRequest
from firnmq.brokers.kafka.protocol.reader import Reader

_OWNED_SINCE, _RACK_SINCE = 1, 3
_GENERATION_SINCE = 2
_TOPIC_BYTES_MIN = 2
_PLACES_BYTES_MIN = 6
_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


class Subscription(NamedTuple):
    version: int
    topics: frozenset[str]
    owned: tuple[tuple[str, int], ...]
    """Topic and partition of what the member has; empty where its assignor has it give up all."""
    rack_id: str | None


def read_subscription(data: bytes) -> Subscription | None:
    """None if the bytes are something else."""
    try:
        reader = Reader(data)
        version = reader.int16()
        topics = frozenset(reader.string() for _ in range(reader.array_count(_TOPIC_BYTES_MIN)))
        reader.nullable_blob()  # The assignor's own.
        owned, rack_id = [], None
        if version >= _OWNED_SINCE:
            owned = _read_places(reader)
        if version >= _GENERATION_SINCE:
            reader.int32()
        if version >= _RACK_SINCE:
            rack_id = reader.nullable_string()
    except MalformedRequest:
        return None
    if version < 0:
        return None
    return Subscription(version, topics, tuple(owned), rack_id)


def read_assignment(data: bytes) -> list[tuple[str, int]] | None:
    """Topic and partition of what a member was given; None if the bytes are something else."""
    if not data:
        return []
    try:
        reader = Reader(data)
        reader.int16()  # The version; later ones only add to the end.
        return _read_places(reader)
    except MalformedRequest:
        return None


def _read_places(reader: Reader) -> list[tuple[str, int]]:
    places = []
    for _ in range(reader.array_count(_PLACES_BYTES_MIN)):
        topic = reader.string()
        places += [(topic, reader.int32()) for _ in range(reader.array_count(4))]
    return places


def write_assignment(partitions: Mapping[str, Iterable[int]], version: int = 0) -> bytes:
    """The assignment that the classic consumers of all clients read."""
    written = bytearray(_INT16.pack(version))
    written += _INT32.pack(len(partitions))
    for topic, indexes in partitions.items():
        name, numbers = topic.encode(), sorted(indexes)
        written += _INT16.pack(len(name)) + name + _INT32.pack(len(numbers))
        for number in numbers:
            written += _INT32.pack(number)
    written += _INT32.pack(-1)  # No bytes of the assignor's own.
    return bytes(written)
