"""A data directory's object store: cold reads from it, and the mover to it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firnmq.adapter import OffsetManager
from firnmq.config import TieringConfig
from firnmq.server.cluster_tier import (
    OPERATION,
    ClusterGroups,
    ClusterShare,
    OwnGroups,
    claiming_directory,
)
from firnmq.tiering.archive.group_offsets import GroupOffsets, GroupSource
from firnmq.tiering.archive.ownership import cluster_of
from firnmq.tiering.cold.medium import ColdStorage
from firnmq.tiering.cold.throttle import ColdThrottle
from firnmq.tiering.format.manifest import StoredOffset
from firnmq.tiering.move.mover import TierMover
from firnmq.tiering.rate_limit import RateLimiter
from firnmq.tiering.stores import ObjectStore, open_store

if TYPE_CHECKING:
    from firnmq.server.local import LocalStore

CACHE_DIRECTORY = "tier-cache"


def open_object_store(config: TieringConfig) -> ObjectStore:
    """Opens the configured store. No request is made yet."""
    assert config.url is not None, "there is a store only where there is a URL"
    return open_store(config.url, config)


def existing_object_store(config: TieringConfig) -> ObjectStore:
    """Opens the configured store for reading: a missing directory is not created, and every
    request to it raises StoreUnavailable."""
    assert config.url is not None, "there is a store only where there is a URL"
    return open_store(config.url, config, creates=False)


class Tier:
    """The object store with its cold reads; close it after the last read."""

    def __init__(
        self,
        config: TieringConfig,
        path: Path,
        open_objects: Callable[[TieringConfig], ObjectStore] = open_object_store,
        *,
        is_appending: Callable[[], bool] = lambda: False,
        append_count: Callable[[], int] = lambda: 0,
    ) -> None:
        """`is_appending` says whether an append is running, and `append_count` changes with every
        append: cold reads wait for running appends, and scans are throttled while there are any."""
        self.config = config
        self.store = open_objects(config)
        self.cold = ColdStorage(
            self.store,
            config.cache_directory or path / CACHE_DIRECTORY,
            cache_bytes=config.cache_bytes,
            throttle=ColdThrottle(
                is_appending,
                append_count=append_count,
                bytes_per_s=config.read_bytes_per_s_beside_appends,
                fetch_limiter=RateLimiter(config.read_bytes_per_s),
            ),
        )
        self.mover: TierMover

    def mover_for(self, local: LocalStore) -> TierMover:
        """The mover of an open data directory; the caller starts and stops it."""
        own = partial(_committed, local.offsets)
        share: ClusterShare | None = None
        groups: GroupSource = OwnGroups(own)
        if local.member is not None:
            cluster = local.member.cluster
            of_all = ClusterGroups(cluster, own)
            local.member.service.others[OPERATION] = of_all.serve
            share, groups = ClusterShare(cluster), of_all
        self.mover = TierMover(
            store=self.store,
            cluster=cluster_of(local.meta, self.config.cluster),
            directory_id=claiming_directory(local.meta),
            meta=local.meta,
            cache=local.cache,
            graves=local.shards,
            state=local.state,
            engines=local.engines,
            config=self.config,
            clock=local.clock,
            cold=self.cold,
            groups=groups,
            share=share,
        )
        return self.mover

    def close(self) -> None:
        self.cold.close()
        self.store.close()


def _committed(offsets: OffsetManager) -> GroupOffsets:
    return {
        group: {
            shard: StoredOffset(
                offset=entry.offset,
                committed_ms=entry.committed_ms,
                leader_epoch=entry.leader_epoch,
                metadata=entry.metadata,
            )
            for shard, entry in offsets.committed(group).items()
        }
        for group in offsets.groups()
    }
