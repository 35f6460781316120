"""A data directory's object store: what reads from it, and what moves segments to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from firnmq.adapter import OffsetManager
from firnmq.config import TieringConfig
from firnmq.server.identity import directory_id
from firnmq.tiering.cold import ColdStorage
from firnmq.tiering.courtesy import Courtesy
from firnmq.tiering.groups import GroupOffsets
from firnmq.tiering.manifest import StoredOffset
from firnmq.tiering.mover import TierMover
from firnmq.tiering.ownership import cluster_of
from firnmq.tiering.rate import RateLimiter
from firnmq.tiering.stores import ObjectStore, open_store

if TYPE_CHECKING:
    from firnmq.server.local import LocalStore

CACHE_DIRECTORY = "tier-cache"


def open_object_store(config: TieringConfig) -> ObjectStore:
    """The store of a configuration that names one. Nothing is asked of it yet."""
    assert config.url is not None, "there is a store only where there is a URL"
    return open_store(config.url, config)


def existing_object_store(config: TieringConfig) -> ObjectStore:
    """The same, for those who only look: a directory that is not there is not made, and whatever
    is asked of it raises StoreUnavailable."""
    assert config.url is not None, "there is a store only where there is a URL"
    return open_store(config.url, config, creates=False)


class Tier:
    """The object store with what reads from it; close it when nothing reads any more."""

    def __init__(
        self,
        config: TieringConfig,
        path: Path,
        open_objects: Callable[[TieringConfig], ObjectStore] = open_object_store,
        *,
        is_appending: Callable[[], bool] = lambda: False,
        append_count: Callable[[], int] = lambda: 0,
    ) -> None:
        """`is_appending` says whether appends are under way, and `append_count` changes with them:
        cold reads let them go first, and scan less beside them."""
        self.config = config
        self.store = open_objects(config)
        self.cold = ColdStorage(
            self.store,
            config.cache_directory or path / CACHE_DIRECTORY,
            cache_bytes=config.cache_bytes,
            rate=RateLimiter(config.read_bytes_per_s),
            courtesy=Courtesy(
                is_appending,
                append_count=append_count,
                bytes_per_s=config.read_bytes_per_s_beside_appends,
            ),
        )
        self.mover: TierMover

    def mover_for(self, local: LocalStore) -> TierMover:
        """The mover of a data directory that is open; it is begun and stopped by the caller."""
        self.mover = TierMover(
            store=self.store,
            cluster=cluster_of(local.meta, self.config.cluster),
            directory_id=directory_id(local.meta),
            meta=local.meta,
            cache=local.cache,
            graves=local.shards,
            state=local.state,
            engines=local.engines,
            config=self.config,
            clock=local.clock,
            cold=self.cold,
            groups=lambda: _committed(local.offsets),
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
