"""Configuration of topics, stores and nodes, with defaults and limits."""

from firnmq.config.lake import LakeConfig, LakeTopicConfig, load_lake_config
from firnmq.config.meta import EtcdConfig, MetaConfig, MetaServiceConfig
from firnmq.config.names import check_topic_name
from firnmq.config.node import (
    AdminConfig,
    LogConfig,
    SecurityConfig,
    is_loopback,
    parsed_address,
)
from firnmq.config.object_store import StoreOptions
from firnmq.config.sections import Settings
from firnmq.config.store import NodeStoreConfig, StoreConfig, load_store_config
from firnmq.config.tiering import TieringConfig, load_tiering_config
from firnmq.config.topic import (
    AcksAll,
    CleanupPolicy,
    CompressionType,
    Durability,
    MemoryOverflow,
    SegmentLayout,
    StorageType,
    Tiering,
    TimestampType,
    TopicConfig,
    unknown_option,
)

__all__ = [
    "AcksAll",
    "AdminConfig",
    "CleanupPolicy",
    "CompressionType",
    "Durability",
    "EtcdConfig",
    "LakeConfig",
    "LakeTopicConfig",
    "LogConfig",
    "MemoryOverflow",
    "MetaConfig",
    "MetaServiceConfig",
    "NodeStoreConfig",
    "SecurityConfig",
    "SegmentLayout",
    "Settings",
    "StorageType",
    "StoreConfig",
    "StoreOptions",
    "Tiering",
    "TieringConfig",
    "TimestampType",
    "TopicConfig",
    "check_topic_name",
    "is_loopback",
    "load_lake_config",
    "load_store_config",
    "load_tiering_config",
    "parsed_address",
    "unknown_option",
]
