"""Kafka's names for configs of topics and brokers: their types, limits and meanings here."""

from firnmq.brokers.kafka.configs.broker import LOG_DIRS, REPLICATION_FACTOR, broker_configs
from firnmq.brokers.kafka.configs.keys import ConfigKey, ConfigSource, ConfigType
from firnmq.brokers.kafka.configs.topic import (
    DELETE,
    UNCHANGEABLE,
    changed_config,
    check_length,
    is_own,
    is_topic_config,
    kafka_view,
    key_of,
    topic_config,
)

__all__ = [
    "DELETE",
    "LOG_DIRS",
    "REPLICATION_FACTOR",
    "UNCHANGEABLE",
    "ConfigKey",
    "ConfigSource",
    "ConfigType",
    "broker_configs",
    "changed_config",
    "check_length",
    "is_own",
    "is_topic_config",
    "kafka_view",
    "key_of",
    "topic_config",
]
