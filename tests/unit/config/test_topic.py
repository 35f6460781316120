"""Topic options: what is taken, what is refused, and that they come back."""

import pytest

from firnmq.config import (
    CleanupPolicy,
    CompressionType,
    Durability,
    MemoryOverflow,
    TopicConfig,
    check_topic_name,
)
from firnmq.config.names import check_group_name
from firnmq.errors import InvalidArgument


def test_options_are_parsed_from_text_and_from_values() -> None:
    config = TopicConfig.from_options(
        {
            "storage.type": "EngineMemory",
            "segment.bytes": "2048",
            "segment.ms": "none",
            "retention.ms": -1,
            "retention.bytes": 5,
            "durability": "os",
            "index.key": "false",
            "index.tag": True,
            "tag.headers": "a, b",
            "compression.type": CompressionType.ZSTD,
            "memory.overflow": "spill",
        }
    )
    assert config == TopicConfig(
        storage_type="EngineMemory",
        segment_bytes=2048,
        segment_ms=None,
        retention_ms=None,
        retention_bytes=5,
        durability=Durability.OS,
        index_key=False,
        tag_headers=("a", "b"),
        compression_type=CompressionType.ZSTD,
        memory_overflow=MemoryOverflow.SPILL,
    )


def test_options_of_compaction_and_expiry() -> None:
    config = TopicConfig.from_options(
        {
            "cleanup.policy": " delete , compact",
            "min.cleanable.dirty.ratio": "0.25",
            "delete.retention.ms": "0",
            "min.compaction.lag.ms": 5,
            "max.compaction.lag.ms": str(2**63 - 1),
            "expire.header": "none",
        }
    )
    assert config.cleanup_policy is CleanupPolicy.COMPACT_DELETE
    assert (config.min_cleanable_dirty_ratio, config.max_compaction_lag_ms) == (0.25, 2**63 - 1)
    assert config.expire_header is None
    assert TopicConfig.from_options(config.options()) == config
    assert [(each.compacts, each.deletes) for each in CleanupPolicy] == [
        (False, True),
        (True, False),
        (True, True),
        (False, False),
    ]


def test_options_come_back_as_text() -> None:
    config = TopicConfig.from_options({"segment.ms": None, "tag.headers": ["x", "y"], "ttl.ms": 5})
    assert TopicConfig.from_options(config.options()) == config
    assert config.options()["tag.headers"] == "x,y"
    assert config.options()["segment.ms"] is None


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("segment.byte", 5),
        ("", 5),
        ("segment.bytes", 5),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,shred"),
        ("cleanup.policy", None),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", -0.1),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", True),
        ("delete.retention.ms", -1),
        ("delete.retention.ms", "none"),
        ("max.compaction.lag.ms", 0),
        ("segment.bytes", None),
        ("segment.bytes", "many"),
        ("segment.bytes", True),
        ("segment.bytes", 2.5),
        ("segment.bytes", 2**40),
        ("segment.ms", 0),
        ("retention.ms", -2),
        ("ttl.ms", 0),
        ("durability", "sometimes"),
        ("durability", ["fsync"]),
        ("durability.interval.ms", 0),
        ("index.key", "yes"),
        ("index.key", 1),
        ("tag.headers", ""),
        ("tag.headers", "a,,b"),
        ("tag.headers", [1]),
        ("expire.header", ""),
        ("storage.type", ""),
        ("storage.type", 5),
        ("compression.type", "rar"),
        ("max.record.bytes", 0),
        ("max.record.bytes", 128 * 1024 * 1024),
        ("max.batch.bytes", -1),
        ("message.timestamp.type", "Whenever"),
        ("message.timestamp.before.max.ms", -2),
        ("segment.jitter.ms", -1),
        ("kafka.configs", "flush.ms=1"),
        ("kafka.configs", '{"flush.ms": 1}'),
        ("max.batch.bytes", 100 * 1024 * 1024),
        ("memory.overflow", "explode"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(option: str, value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        TopicConfig.from_options({option: value})
    assert caught.value.argument == option


def test_some_options_can_be_changed() -> None:
    config = TopicConfig(segment_bytes=2048)
    assert config.with_options({"ttl.ms": 7}) == TopicConfig(segment_bytes=2048, ttl_ms=7)


@pytest.mark.parametrize("unit", ["ms", "bytes"])
def test_nothing_stays_here_longer_than_it_is_kept(unit: str) -> None:
    local, total = f"local.retention.{unit}", f"retention.{unit}"
    config = TopicConfig.from_options({local: 1001, total: 1000})  # As a topic may have it.
    with pytest.raises(InvalidArgument, match=rf"above retention\.{unit}, which") as caught:
        config.check_new()
    assert caught.value.argument == local
    for good in ({local: 1000}, {local: None}, {total: None}, {total: 1001}):
        config.with_options(good).check_new()


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "x" * 249, "..."])
def test_good_names(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "a b", "a\0", "ä", "x" * 250, "a\n", "../x", 5, None, b"a"]
)
def test_bad_names(name: object) -> None:
    with pytest.raises(InvalidArgument):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "a\nb", 5, None])
def test_bad_groups(name: object) -> None:
    with pytest.raises(InvalidArgument):
        check_group_name(name)
    assert check_group_name("grüppe/1 x") == "grüppe/1 x"
