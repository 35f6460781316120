"""Engines: three ways to keep shards, with one meaning."""

from firnmq.engines.api import (
    AdapterOffsetStrategy,
    Appended,
    Engine,
    Page,
    RawPage,
    ShardStatus,
    StoredPage,
)
from firnmq.engines.shardlog.append import Append
from firnmq.engines.state import ShardSpec, ShardState

__all__ = [
    "AdapterOffsetStrategy",
    "Append",
    "Appended",
    "Engine",
    "Page",
    "RawPage",
    "ShardSpec",
    "ShardState",
    "ShardStatus",
    "StoredPage",
]
