"""Where a shard begins and ends, whatever keeps it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firnmq.config import StorageType
from firnmq.errors import OffsetOutOfRange, ShardNotFound

if TYPE_CHECKING:
    from firnmq.adapter import ShardBounds
    from firnmq.server import TopicHandle

_ENGINES = frozenset(kind.value for kind in StorageType)


def has_engine(handle: TopicHandle) -> bool:
    """Whether the topic is kept by an engine of ours, which has segments and a status."""
    return handle.topic.config.storage_type in _ENGINES


def shard_bounds(handle: TopicHandle, seq: int) -> ShardBounds:
    """The shard's readable range."""
    from firnmq.adapter import ShardBounds

    if has_engine(handle):
        status = handle.status(seq)
        start, end = status.start_offset, status.end_offset
    else:
        try:
            page = handle.read(0, shard=seq, max_records=1)
            start, end = page.start_offset, page.end_offset
        except OffsetOutOfRange as error:  # It starts later, and says where.
            start, end = error.start, error.end
    return ShardBounds(name=handle.topic.shard_name(seq), start_offset=start, end_offset=end)


def chosen_shards(handle: TopicHandle, shard: int | None) -> list[int]:
    """The shard asked for, or all of them."""
    if shard is None:
        return list(range(handle.topic.shard_count))
    if not 0 <= shard < handle.topic.shard_count:
        raise ShardNotFound(str(shard), within=f"topic {handle.name!r}")
    return [shard]
