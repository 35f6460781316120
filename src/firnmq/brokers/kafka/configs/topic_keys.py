"""The topic configs that clients can name: Kafka's, with and without effect here, and ours."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from firnmq.brokers.kafka.configs.keys import LONG_MAX, ConfigKey, ConfigType

_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE, _LIST = ConfigType.LONG, ConfigType.DOUBLE, ConfigType.LIST


def _by_name(keys: Iterable[ConfigKey]) -> dict[str, ConfigKey]:
    return {key.name: key for key in keys}


def _meant(name: str, kind: ConfigType, broker_name: str | None, documentation: str) -> ConfigKey:
    return ConfigKey(name=name, type=kind, documentation=documentation, broker_name=broker_name)


OURS: Final = _by_name(
    (
        _meant(
            "cleanup.policy",
            _LIST,
            "log.cleanup.policy",
            "delete drops old segments by age and size, compact keeps the newest record of each "
            "key; both can be given. Empty keeps everything.",
        ),
        _meant(
            "compression.type",
            _STRING,
            "compression.type",
            "How batches made of single records are compressed. Batches of Kafka clients stay as "
            "their producer compressed them, which is shown as producer.",
        ),
        _meant(
            "delete.retention.ms",
            _LONG,
            "log.cleaner.delete.retention.ms",
            "How long compaction keeps a record without a value.",
        ),
        _meant(
            "local.retention.bytes",
            _LONG,
            "log.local.retention.bytes",
            "Bytes of each partition that stay on the node once they are in the object store; -2 "
            "is the same as retention.bytes.",
        ),
        _meant(
            "local.retention.ms",
            _LONG,
            "log.local.retention.ms",
            "How long records stay on the node once they are in the object store; -2 is the same "
            "as retention.ms.",
        ),
        _meant(
            "max.compaction.lag.ms",
            _LONG,
            "log.cleaner.max.compaction.lag.ms",
            "A segment of this age is compacted however little of it is new.",
        ),
        _meant(
            "max.message.bytes",
            _INT,
            "message.max.bytes",
            "The largest batch that the topic takes. max.record.bytes limits each record.",
        ),
        _meant(
            "message.timestamp.after.max.ms",
            _LONG,
            "log.message.timestamp.after.max.ms",
            "A record whose timestamp lies further in the future than this is refused.",
        ),
        _meant(
            "message.timestamp.before.max.ms",
            _LONG,
            "log.message.timestamp.before.max.ms",
            "A record whose timestamp lies further in the past than this is refused.",
        ),
        _meant(
            "message.timestamp.type",
            _STRING,
            "log.message.timestamp.type",
            "CreateTime keeps the producer's timestamps, LogAppendTime replaces them by the time "
            "of the append.",
        ),
        _meant(
            "min.cleanable.dirty.ratio",
            _DOUBLE,
            "log.cleaner.min.cleanable.ratio",
            "Share of a partition's sealed bytes that must be new before it is compacted.",
        ),
        _meant(
            "min.compaction.lag.ms",
            _LONG,
            "log.cleaner.min.compaction.lag.ms",
            "A record is not compacted before it is this old.",
        ),
        _meant(
            "min.insync.replicas",
            _INT,
            "min.insync.replicas",
            "Appends with acks=all are refused while fewer replicas are in sync, or all of them "
            "where the topic has fewer.",
        ),
        ConfigKey(
            name="remote.storage.enable",
            type=_BOOLEAN,
            documentation="Copies sealed segments to the object store: the option tiering.",
        ),
        _meant(
            "retention.bytes",
            _LONG,
            "log.retention.bytes",
            "Oldest sealed segments of a partition are dropped while the rest has this many "
            "bytes; -1 is no limit.",
        ),
        _meant(
            "retention.ms",
            _LONG,
            "log.retention.ms",
            "Sealed segments whose newest record is older than this are dropped; -1 is no limit.",
        ),
        _meant(
            "segment.bytes",
            _INT,
            "log.segment.bytes",
            "A segment is sealed once it would grow beyond this.",
        ),
        _meant(
            "segment.jitter.ms",
            _LONG,
            "log.roll.jitter.ms",
            "Each segment is sealed up to this much earlier than segment.ms says.",
        ),
        _meant(
            "segment.ms",
            _LONG,
            "log.roll.ms",
            "A segment is sealed this long after its first append.",
        ),
    )
)
"""Kafka's names for our options."""


def _kept(
    name: str,
    kind: ConfigType,
    default: str,
    why: str,
    *,
    low: float | None = None,
    high: float | None = None,
    also: tuple[str, ...] = (),
    broker_name: str | None = None,
) -> ConfigKey:
    return ConfigKey(
        name=name,
        type=kind,
        documentation=f"Kept for Kafka's tools, without effect: {why}",
        default=default,
        low=low,
        high=high,
        also=also,
        broker_name=broker_name,
    )


_LEVEL = "batches of Kafka clients stay as their producer compressed them."
_FLUSH = "the option durability says when records are on the device, by default before each answer."
_INDEX = "FirnMQ's index of offsets has a layout of its own."
_THROTTLE = "no replicas are moved at a limited rate."

KEPT: Final = _by_name(
    (
        _kept("compression.gzip.level", _INT, "-1", _LEVEL, low=1, high=9, also=("-1",)),
        _kept("compression.lz4.level", _INT, "9", _LEVEL, low=1, high=17),
        _kept("compression.zstd.level", _INT, "3", _LEVEL, low=-131072, high=22),
        _kept(
            "file.delete.delay.ms",
            _LONG,
            "60000",
            "a dropped segment's file goes when its last reader is done.",
            low=0,
            broker_name="log.segment.delete.delay.ms",
        ),
        _kept(
            "flush.messages",
            _LONG,
            str(LONG_MAX),
            _FLUSH,
            low=1,
            broker_name="log.flush.interval.messages",
        ),
        _kept("flush.ms", _LONG, str(LONG_MAX), _FLUSH, low=0, broker_name="log.flush.interval.ms"),
        _kept("follower.replication.throttled.replicas", _LIST, "", _THROTTLE),
        _kept(
            "index.interval.bytes",
            _INT,
            "4096",
            _INDEX,
            low=0,
            broker_name="log.index.interval.bytes",
        ),
        _kept("leader.replication.throttled.replicas", _LIST, "", _THROTTLE),
        _kept(
            "preallocate",
            _BOOLEAN,
            "false",
            "FirnMQ allocates files ahead where that saves time.",
            broker_name="log.preallocate",
        ),
        _kept(
            "remote.log.copy.disable",
            _BOOLEAN,
            "false",
            "it can only be false, as a topic is tiered with all its segments or not at all.",
        ),
        _kept(
            "remote.log.delete.on.disable",
            _BOOLEAN,
            "false",
            "it can only be false, as a topic is tiered with all its segments or not at all.",
        ),
        _kept(
            "segment.index.bytes",
            _INT,
            "10485760",
            _INDEX,
            low=4,
            broker_name="log.index.size.max.bytes",
        ),
        _kept(
            "unclean.leader.election.enable",
            _BOOLEAN,
            "false",
            "acknowledged records are never given up for a faster start.",
            broker_name="unclean.leader.election.enable",
        ),
    )
)
"""Kafka's configs that have no effect here."""

OLD: Final = _by_name(
    (
        _kept("message.downconversion.enable", _BOOLEAN, "true", "Kafka 4 does not have it."),
        _kept(
            "message.timestamp.difference.max.ms",
            _LONG,
            str(LONG_MAX),
            "Kafka 4 does not have it; there are message.timestamp.before.max.ms and after.",
            low=0,
        ),
        _kept("message.format.version", _STRING, "3.0-IV1", "Kafka 4 does not have it."),
    )
)
"""Configs of Kafka 3 that Kafka 4 does not have. Shown for topics that set them only."""


def _own(name: str, kind: ConfigType, documentation: str) -> ConfigKey:
    return ConfigKey(name=name, type=kind, documentation=f"FirnMQ: {documentation}")


OWN: Final = _by_name(
    (
        _own("storage.type", _STRING, "which engine or adapter keeps the topic."),
        _own("segment.layout", _STRING, "partition-per-file, or shared-file for many shards."),
        _own("ttl.ms", _LONG, "a record expires this long after its timestamp."),
        _own("replication.factor", _INT, "nodes that have each record; fixed when it is made."),
        _own("acks.all", _STRING, "what acks=all waits for: isr or quorum."),
        _own("durability", _STRING, "when an append is acknowledged: fsync, interval or os."),
        _own("durability.interval.ms", _LONG, "time between syncs with durability=interval."),
        _own("index.key", _BOOLEAN, "keep the index for reads by key."),
        _own("index.tag", _BOOLEAN, "keep the index for reads by tag."),
        _own("tag.headers", _LIST, "headers whose values are a record's tags."),
        _own("expire.header", _STRING, "header with a record's own expiry, or none."),
        _own("check.compressed", _BOOLEAN, "judge the records of compressed batches."),
        _own("max.record.bytes", _LONG, "a larger record is refused."),
        _own("max.batch.bytes", _LONG, "a larger batch is refused: max.message.bytes in Kafka."),
        _own("memory.overflow", _STRING, "a memory topic's sealed segments: drop or spill."),
        _own("tiering", _STRING, "on copies sealed segments to the object store."),
        _own("tiering.upload.delay.ms", _LONG, "a segment is copied this long after its end."),
        _own("lake.required", _BOOLEAN, "retention waits until the lake's table has a segment."),
    )
)
"""Our options that Kafka has no name for."""
