"""Configuration: what a topic and a store can be told, with defaults and limits."""

from firnmq.config.names import check_topic_name
from firnmq.config.store import StoreConfig, load_store_config
from firnmq.config.topic import (
    CompressionType,
    Durability,
    MemoryOverflow,
    StorageType,
    TopicConfig,
)

__all__ = [
    "CompressionType",
    "Durability",
    "MemoryOverflow",
    "StorageType",
    "StoreConfig",
    "TopicConfig",
    "check_topic_name",
    "load_store_config",
]
