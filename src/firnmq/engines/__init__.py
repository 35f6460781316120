"""Engines: three ways to keep shards, with one meaning."""

from firnmq.engines.api import (
    AdapterOffsetStrategy,
    Appended,
    CompactionCounts,
    Engine,
    Page,
    RawPage,
    ShardStatus,
)
from firnmq.engines.state import ShardSpec, ShardState

__all__ = [
    "AdapterOffsetStrategy",
    "Appended",
    "CompactionCounts",
    "Engine",
    "Page",
    "RawPage",
    "ShardSpec",
    "ShardState",
    "ShardStatus",
]
