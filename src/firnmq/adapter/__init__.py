"""The storage adapter: what brokers and embedded users call, whatever engine is underneath."""

from firnmq.adapter.api import ShardBounds, StorageAdapter
from firnmq.adapter.catalog import Topic, TopicCatalog, shown_shard
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.adapter.manager import AdapterFactory, StorageDriverManager, Written
from firnmq.adapter.offsets import (
    CommittedOffset,
    OffsetCacheManager,
    OffsetManager,
    OffsetStorageManager,
    put_offsets,
)

__all__ = [
    "AdapterFactory",
    "CommittedOffset",
    "EngineStorageAdapter",
    "OffsetCacheManager",
    "OffsetManager",
    "OffsetStorageManager",
    "ShardBounds",
    "StorageAdapter",
    "StorageDriverManager",
    "Topic",
    "TopicCatalog",
    "Written",
    "put_offsets",
    "shown_shard",
]
