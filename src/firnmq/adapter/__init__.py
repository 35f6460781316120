"""The storage adapter: what brokers and embedded users call, whatever engine is underneath."""

from firnmq.adapter.api import BatchStorage, Driver, LogAdmin, ShardBounds, StorageAdapter
from firnmq.adapter.catalog import Topic, TopicCatalog, shown_shard
from firnmq.adapter.engine_adapter import EngineStorageAdapter
from firnmq.adapter.manager import (
    AdapterFactory,
    ConfigChange,
    DriverFactory,
    StorageDriverManager,
    Written,
)
from firnmq.adapter.offset_rows import CommittedOffset, OffsetLimits, OffsetRows
from firnmq.adapter.offsets import (
    OffsetCacheManager,
    OffsetManager,
    OffsetsLeft,
    OffsetStorageManager,
)
from firnmq.adapter.under_way import SHARDS_MAX
from firnmq.adapter.watching import wait_for_append

__all__ = [
    "SHARDS_MAX",
    "AdapterFactory",
    "BatchStorage",
    "CommittedOffset",
    "ConfigChange",
    "Driver",
    "DriverFactory",
    "EngineStorageAdapter",
    "LogAdmin",
    "OffsetCacheManager",
    "OffsetLimits",
    "OffsetManager",
    "OffsetRows",
    "OffsetStorageManager",
    "OffsetsLeft",
    "ShardBounds",
    "StorageAdapter",
    "StorageDriverManager",
    "Topic",
    "TopicCatalog",
    "Written",
    "shown_shard",
    "wait_for_append",
]
