"""Which of a topic's shards one description has."""

from __future__ import annotations

from firnmq.errors import InvalidArgument

DESCRIBED_SHARDS_MAX = 1_000
"""Shards of one description: each may have to be opened."""


def described_shards(shard_count: int, first: int | None, count: int | None) -> range:
    """The shards that a description of a topic has; InvalidArgument if that cannot be."""
    first, count = first or 0, DESCRIBED_SHARDS_MAX if count is None else count
    if not 0 <= first < shard_count:
        raise InvalidArgument("first", f"must be 0 to {shard_count - 1}, not {first}")
    if not 0 <= count <= DESCRIBED_SHARDS_MAX:
        raise InvalidArgument("count", f"must be 0 to {DESCRIBED_SHARDS_MAX:,}, not {count:,}")
    return range(first, min(first + count, shard_count))
