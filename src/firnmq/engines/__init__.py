"""Engines: three ways to keep shards, with one meaning."""

from firnmq.engines.api import (
    AdapterOffsetStrategy,
    Appended,
    Engine,
    Page,
    RawPage,
    ShardStatus,
)
from firnmq.engines.state import ShardCatalog, ShardSpec, ShardState

__all__ = [
    "AdapterOffsetStrategy",
    "Appended",
    "Engine",
    "Page",
    "RawPage",
    "ShardCatalog",
    "ShardSpec",
    "ShardState",
    "ShardStatus",
]
