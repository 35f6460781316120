"""Topic configs by Kafka's names: each is known, judged as Kafka does, shown as Kafka does."""

from __future__ import annotations

import pytest

from firnmq.brokers.kafka.config import KafkaConfig
from firnmq.brokers.kafka.configs import (
    broker_configs,
    changed_config,
    is_topic_config,
    kafka_view,
    key_of,
    topic_config,
)
from firnmq.brokers.kafka.configs.topic import APPEND, DELETE, SET, SUBTRACT
from firnmq.brokers.net.address import Address
from firnmq.config import CleanupPolicy, Tiering, TimestampType, TopicConfig
from firnmq.errors import InvalidArgument

LONG_MAX = str(2**63 - 1)
DEFAULTS = KafkaConfig().topic_defaults
OF_KAFKA_4_3 = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": LONG_MAX,
    "flush.ms": LONG_MAX,
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": LONG_MAX,
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": LONG_MAX,
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}
"""Every topic config with the default that Kafka has."""
OTHER_DEFAULTS = {
    *("max.message.bytes", "message.timestamp.after.max.ms", "retention.ms"),
    "min.insync.replicas",
}
"""FirnMQ takes larger batches, has no limit for the next two, and wants every record acknowledged
with acks=all to outlive a node."""


def test_every_config_of_kafka_is_known_with_its_default() -> None:
    shown = kafka_view(DEFAULTS)
    assert set(OF_KAFKA_4_3) <= set(shown)
    assert {name for name, value in OF_KAFKA_4_3.items() if shown[name] != value} == OTHER_DEFAULTS
    assert all(key_of(name) and key_of(name).documentation for name in shown)  # type: ignore[union-attr]


def test_what_a_topic_of_kafka_has_can_be_set_and_is_shown_again() -> None:
    """As a tool does that copies topics."""
    copied = topic_config(DEFAULTS, OF_KAFKA_4_3)
    shown = kafka_view(copied)
    assert {name: shown[name] for name in OF_KAFKA_4_3} == OF_KAFKA_4_3
    assert topic_config(DEFAULTS, shown) == copied
    assert TopicConfig.from_options(copied.options()) == copied


@pytest.mark.parametrize(
    ("name", "value", "field", "ours", "shown"),
    [
        ("cleanup.policy", "", "cleanup_policy", CleanupPolicy.NONE, ""),
        ("compression.type", "uncompressed", "compression_type", None, "producer"),
        ("remote.storage.enable", "TRUE", "tiering", Tiering.ON, "true"),
        ("retention.ms", LONG_MAX, "retention_ms", None, "-1"),
        ("retention.bytes", "-1", "retention_bytes", None, "-1"),
        ("segment.ms", LONG_MAX, "segment_ms", None, LONG_MAX),
        ("local.retention.ms", "-2", "local_retention_ms", None, "-2"),
        ("local.retention.bytes", "-1", "local_retention_bytes", None, "-2"),
        ("max.message.bytes", "1000", "max_batch_bytes", 1000, "1000"),
        (
            "message.timestamp.type",
            "LogAppendTime",
            "message_timestamp_type",
            TimestampType.LOG_APPEND_TIME,
            "LogAppendTime",
        ),
        (
            "message.timestamp.after.max.ms",
            " 5 ",
            "message_timestamp_after_max_ms",
            5,
            "5",
        ),
        ("segment.jitter.ms", "7", "segment_jitter_ms", 7, "7"),
    ],
)
def test_a_config_with_a_meaning_is_one_of_our_options(
    name: str, value: str, field: str, ours: object, shown: str
) -> None:
    config = topic_config(DEFAULTS, {name: value})
    found = getattr(config, field)
    assert found == (type(found).NONE if name == "compression.type" else ours)
    assert kafka_view(config)[name] == shown
    assert config.kafka_configs == ""


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("compression.gzip.level", ("-1", "1", "9"), ("0", "10", "-2", "x", "1_0", "")),
        ("compression.lz4.level", ("1", "17"), ("0", "18")),
        ("compression.zstd.level", ("-131072", "22"), ("-131073", "23")),
        ("flush.messages", ("1", LONG_MAX), ("0", str(2**63))),
        ("flush.ms", ("0",), ("-1",)),
        ("index.interval.bytes", ("0", str(2**31 - 1)), (str(2**31), "-1")),
        ("segment.index.bytes", ("4",), ("3",)),
        ("min.insync.replicas", ("1", "3"), ("0", "")),
        ("preallocate", ("true", "False"), ("yes", "")),
        ("unclean.leader.election.enable", ("true",), ("1",)),
        ("leader.replication.throttled.replicas", ("", "*", "0:1,1:2"), ("0", "0:1,", "a:b")),
        ("remote.log.copy.disable", ("false",), ("true",)),
        ("remote.storage.enable", ("false",), ("on",)),
        ("max.message.bytes", ("0", "100"), ("-1", "a lot", LONG_MAX)),
        ("message.timestamp.type", ("CreateTime",), ("createtime",)),
        ("segment.jitter.ms", ("0",), ("-1",)),
        ("kafka.configs", (), ("{}",)),
        ("no.such.config", (), ("1",)),
    ],
)
def test_values_are_judged_as_kafka_judges_them(
    name: str, good: tuple[str, ...], bad: tuple[str, ...]
) -> None:
    for value in good:
        topic_config(DEFAULTS, {name: value})
    for value in bad:
        with pytest.raises(InvalidArgument) as refused:
            topic_config(DEFAULTS, {name: value})
        assert refused.value.argument == name


def test_a_config_without_effect_is_kept_until_it_is_deleted() -> None:
    config = topic_config(DEFAULTS, {"flush.ms": "1000", "preallocate": "TRUE"})
    assert (kafka_view(config)["flush.ms"], kafka_view(config)["preallocate"]) == ("1000", "true")
    assert TopicConfig.from_options(config.options()) == config
    after = changed_config(config, [("flush.ms", DELETE, None)], DEFAULTS)
    assert kafka_view(after)["flush.ms"] == LONG_MAX
    assert kafka_view(after)["preallocate"] == "true"
    assert changed_config(after, [("preallocate", DELETE, None)], DEFAULTS) == DEFAULTS
    # Names of Kafka 3 are shown of topics that have them.
    assert "message.format.version" not in kafka_view(DEFAULTS)
    old = topic_config(DEFAULTS, {"message.format.version": "2.8"})
    assert kafka_view(old)["message.format.version"] == "2.8"


def test_an_unknown_name_can_be_deleted_and_not_set() -> None:
    assert changed_config(DEFAULTS, [("no.such", DELETE, None)], DEFAULTS) == DEFAULTS
    assert not is_topic_config("no.such")
    for operation in (SET, APPEND, SUBTRACT):
        with pytest.raises(InvalidArgument, match=r"no\.such"):
            changed_config(DEFAULTS, [("no.such", operation, "1")], DEFAULTS)


def test_only_lists_grow_and_shrink() -> None:
    both = changed_config(DEFAULTS, [("cleanup.policy", APPEND, "compact")], DEFAULTS)
    assert both.cleanup_policy is CleanupPolicy.COMPACT_DELETE
    none = changed_config(DEFAULTS, [("cleanup.policy", SUBTRACT, "delete")], DEFAULTS)
    assert none.cleanup_policy is CleanupPolicy.NONE
    with pytest.raises(InvalidArgument, match="is not a list"):
        changed_config(DEFAULTS, [("retention.ms", APPEND, "1")], DEFAULTS)


def test_a_request_names_a_bounded_number_of_configs() -> None:
    many = {f"name-{number}": "1" for number in range(1_001)}
    with pytest.raises(InvalidArgument, match="may be 1,000"):
        topic_config(DEFAULTS, many)
    with pytest.raises(InvalidArgument, match="may be 1,000"):
        changed_config(DEFAULTS, [(name, DELETE, None) for name in many], DEFAULTS)


def test_a_broker_has_what_tools_ask_for() -> None:
    configs = broker_configs(KafkaConfig(), Address("here", 9), {"log.dirs": "/data"})
    assert configs["advertised.listeners"].value == "here:9"
    assert configs["log.dirs"].value == "/data"
    assert configs["log.cleanup.policy"].value == "delete"
    assert configs["message.max.bytes"].value == str(DEFAULTS.max_batch_bytes)
    assert {"node.id", "num.partitions", "min.insync.replicas", "log.retention.ms"} <= set(configs)
