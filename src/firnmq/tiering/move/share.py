"""Which part of a cluster's tiering a node does.

Every shard's segments are uploaded, dropped and removed by the node that leads the shard. What is
not about one shard is done by one node for all, the keeper: manifests of topics, offsets of groups,
objects of deleted topics, orphans. Leaders and keepers change, and for a moment two nodes may both
believe to be it. That harms nothing: copies are changed by comparing their upload id, manifests are
written under names of their own, and removals can be repeated.
"""

from __future__ import annotations

from typing import Protocol

from firnmq.meta.records import ShardRecord


class Share(Protocol):
    """Safe with threads."""

    @property
    def is_whole(self) -> bool:
        """Whether no other node can do anything: the directory is alone."""

    @property
    def is_keeper(self) -> bool:
        """Whether this node does what is not about one shard."""

    def has(self, shard: ShardRecord) -> bool:
        """Whether this node does what is about the shard."""


class Whole:
    """A directory that is alone does everything."""

    is_whole = True
    is_keeper = True

    def has(self, shard: ShardRecord) -> bool:
        return True
