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
from firnmq.engines.direct import NOT_TAKEN, BatchWatcher, DirectLog
from firnmq.engines.shardlog.append import Append
from firnmq.engines.shardlog.view import View
from firnmq.engines.state import ShardCatalog, ShardSpec, ShardState

__all__ = [
    "NOT_TAKEN",
    "AdapterOffsetStrategy",
    "Append",
    "Appended",
    "BatchWatcher",
    "CompactionCounts",
    "DirectLog",
    "Engine",
    "Page",
    "RawPage",
    "ShardCatalog",
    "ShardSpec",
    "ShardState",
    "ShardStatus",
    "StoredPage",
    "View",
]
