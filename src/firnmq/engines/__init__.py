"""Engines: three ways to keep shards, with one meaning."""

from firnmq.engines.api import (
    Acks,
    AdapterOffsetStrategy,
    Appended,
    CompactionCounts,
    Engine,
    Page,
    ProducerStatus,
    RawPage,
    ShardStatus,
    StoredPage,
)
from firnmq.engines.catalog.state import ShardCatalog, ShardSpec, ShardState
from firnmq.engines.inline import InlineAppends
from firnmq.engines.keeper import LogKeeper
from firnmq.engines.open_log import OpenLog
from firnmq.engines.shardlog.append import Append, check_append
from firnmq.engines.shardlog.view import View
from firnmq.engines.shardlog.watchers import BatchWatcher, ShownBatch

__all__ = [
    "Acks",
    "AdapterOffsetStrategy",
    "Append",
    "Appended",
    "BatchWatcher",
    "CompactionCounts",
    "Engine",
    "InlineAppends",
    "LogKeeper",
    "OpenLog",
    "Page",
    "ProducerStatus",
    "RawPage",
    "ShardCatalog",
    "ShardSpec",
    "ShardState",
    "ShardStatus",
    "ShownBatch",
    "StoredPage",
    "View",
    "check_append",
]
