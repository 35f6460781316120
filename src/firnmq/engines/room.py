"""Room: zeros that are written ahead of small durable appends, behind the last batch of a file.

A file without room grows with each append, and the file system then has something of its own to
write before the append is durable.
"""

from __future__ import annotations

from firnmq.config import Durability, TopicConfig
from firnmq.disk.files import BLANK_BYTES_MAX

ROOM_BYTES_MIN = 32 * 1024
"""A file gets half of its length as room, so one of less than twice this has none."""
SMALL_TURN_BYTES = 32 * 1024
"""Up to here the file system's own part of a durable append is most of it."""


def room_bytes(position: int) -> int:
    """What a file that ends here gets when there is too little left; 0 for none."""
    size = min(BLANK_BYTES_MAX, position // 2)
    return size if size >= ROOM_BYTES_MIN else 0


def least_left(size: int) -> int:
    """With less than this left of so much room there is more made."""
    return size // 4


def may_be_room(config: TopicConfig, position: int, size: int) -> bool:
    """Whether so many zeros behind a segment's last batch can have been written ahead.

    Where appends are not synced, zeros are what a power cut leaves of them.
    """
    given = room_bytes(position)
    return config.durability is Durability.FSYNC and 0 < size <= given + least_left(given)
