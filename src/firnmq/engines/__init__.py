"""Engines: three ways to keep shards, with one meaning."""

from firnmq.engines.api import (
    AdapterOffsetStrategy,
    Appended,
    CompactionCounts,
    Engine,
    Page,
    RawPage,
    ShardStatus,
    StoredPage,
)
from firnmq.engines.shardlog.append import Append
from firnmq.engines.state import ShardCatalog, ShardSpec, ShardState

__all__ = [
    "AdapterOffsetStrategy",
    "Append",
    "Appended",
    "CompactionCounts",
    "Engine",
    "Page",
    "RawPage",
    "ShardCatalog",
    "ShardSpec",
    "ShardState",
    "ShardStatus",
    "StoredPage",
]
