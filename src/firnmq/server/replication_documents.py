"""What the HTTP interface says of shards with several replicas."""

from __future__ import annotations

import msgspec


class ReplicatedShard(msgspec.Struct, frozen=True, kw_only=True):
    """A shard whose active segment lacks replicas, or is led by no node."""

    topic: str
    shard: int
    leader: int | None
    """None while there is none."""
    replicas: list[int]
    in_sync: list[int]


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How shards with several replicas are, as the metadata have it."""

    controller: int | None
    """The node that seals what lost leaders have led."""
    shard_count: int
    under_replicated: int
    """Shards with fewer replicas in sync than they have."""
    offline: int
    """Those without a leader that is there."""
    lossy_segments: int
    """Sealed though too few replicas were known to have kept everything: records may be lost."""
    lag_records: int
    """By how much the replica that is furthest behind is behind its leader, of shards that the
    answering node leads."""
    shards: list[ReplicatedShard]
    """Under-replicated and offline ones, at most a hundred."""


class LossAccepted(msgspec.Struct, frozen=True, kw_only=True):
    """A shard whose active segment may be sealed although records are lost."""

    topic: str
    shard: int
    controller: int
    """The node that was told, and seals the segment once every replica has answered."""
