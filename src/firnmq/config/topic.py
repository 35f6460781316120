"""A topic's configuration. Each field is also an option, written with dots: `segment.bytes`."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from typing import Any

from firnmq.errors import InvalidArgument

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class StorageType(Enum):
    """The engines that come with FirnMQ. A registered adapter adds further names."""

    MEMORY = "EngineMemory"
    ROCKSDB = "EngineRocksDB"
    SEGMENT = "EngineSegment"


class SegmentLayout(Enum):
    """How the segment engine lays segments into files."""

    PARTITION_PER_FILE = "partition-per-file"
    """Each segment is a file."""
    SHARED_FILE = "shared-file"
    """Segments of many shards share files."""


class Durability(Enum):
    """When an append is acknowledged."""

    FSYNC = "fsync"
    """After it is on the device."""
    INTERVAL = "interval"
    """After the write; synced every `durability.interval.ms`."""
    OS = "os"
    """After the write; the operating system decides."""


class AcksAll(Enum):
    """What a client's acks=all waits for, in a cluster."""

    ISR = "isr"
    """Every replica in sync has the records, and they can be read."""
    QUORUM = "quorum"
    """A majority of all replicas has them; a slow replica in sync is not waited for. They can be
    read a moment later."""


class MemoryOverflow(Enum):
    """What becomes of a sealed segment of a memory topic."""

    DROP = "drop"
    """It stays in memory until the limit is reached, then the oldest goes."""
    SPILL = "spill"
    """It is written to disk in the background and survives a restart."""


class Tiering(Enum):
    """Whether sealed segments are copied to the node's object store."""

    OFF = "off"
    ON = "on"


class CompressionType(Enum):
    """How batches made from single records are compressed. Client batches stay as they come."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


class CleanupPolicy(Enum):
    """What becomes of old records."""

    DELETE = "delete"
    """Whole segments go when `retention.ms` or `retention.bytes` says so."""
    COMPACT = "compact"
    """The newest record of each key stays, whatever its age; every record needs a key."""
    COMPACT_DELETE = "compact,delete"
    """Both."""
    NONE = "none"
    """Neither: everything is kept. Kafka writes it as an empty value."""

    @property
    def compacts(self) -> bool:
        return self in (CleanupPolicy.COMPACT, CleanupPolicy.COMPACT_DELETE)

    @property
    def deletes(self) -> bool:
        return self in (CleanupPolicy.DELETE, CleanupPolicy.COMPACT_DELETE)


class TimestampType(Enum):
    """Whose clock gives a record its timestamp."""

    CREATE_TIME = "CreateTime"
    """The producer's."""
    LOG_APPEND_TIME = "LogAppendTime"
    """The node's, when the record is appended; the producer's timestamp is not kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's options. None means: no limit."""

    storage_type: str = StorageType.SEGMENT.value
    """Engine or registered adapter that keeps the topic."""
    segment_layout: SegmentLayout = SegmentLayout.PARTITION_PER_FILE
    """A change counts for each shard from its next segment on."""
    segment_bytes: int = GIB
    """A segment is sealed once it would grow beyond this. It takes up to a tenth more until it is
    sealed; one larger batch gets its own segment."""
    segment_ms: int | None = 7 * 24 * 3600 * 1000
    """A segment is sealed this long after its first append."""
    segment_jitter_ms: int = 0
    """Each segment is sealed up to this much earlier than `segment.ms` says, so that the shards of
    a topic do not all start a segment at the same moment."""
    retention_ms: int | None = None
    """Sealed segments whose newest record is older than this are dropped. None keeps all."""
    retention_bytes: int | None = None
    """Oldest sealed segments are dropped while the rest still has this many bytes per shard."""
    ttl_ms: int | None = None
    """A record expires this long after its timestamp, unless its own expiry comes first."""
    cleanup_policy: CleanupPolicy = CleanupPolicy.DELETE
    min_cleanable_dirty_ratio: float = 0.5
    """Share of a shard's sealed bytes that must be new before they are compacted."""
    delete_retention_ms: int = 24 * 3600 * 1000
    """How long compaction keeps a record without a value after it first came by: as long as a
    reader may take from the beginning to the end without missing that the key is gone."""
    min_compaction_lag_ms: int = 0
    """A record is not compacted before it is this old."""
    max_compaction_lag_ms: int | None = None
    """A segment is sealed, and compacted however little is new, when it is this old."""
    durability: Durability = Durability.FSYNC
    durability_interval_ms: int = 100
    """Time between syncs with durability=interval: what a power failure may cost."""
    index_key: bool = True
    """Keep the key index, for read_by_key."""
    index_tag: bool = True
    """Keep the tag index, for read_by_tag."""
    tag_headers: tuple[str, ...] = ("tag",)
    """Headers whose values are a record's tags; records written with tags use the first."""
    expire_header: str | None = "expire-at"
    """Header that holds a record's expiry in milliseconds, as decimal digits. None: records have
    no expiry of their own, and appends do not look for one."""
    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int | None = None
    """A record whose timestamp lies further in the past than this is refused."""
    message_timestamp_after_max_ms: int | None = None
    """A record whose timestamp lies further in the future than this is refused."""
    compression_type: CompressionType = CompressionType.NONE
    check_compressed: bool = True
    """Decompress batches of clients and judge their records before acknowledging them. Without it
    a topic that has no index, no compaction and no expiry header takes whatever is in a compressed
    batch, and a client with a defect can store what no consumer can read."""
    max_record_bytes: int = MIB
    """A larger record is refused."""
    max_batch_bytes: int = 16 * MIB
    """A larger batch is refused; stays well below a segment so that segments can roll."""
    memory_overflow: MemoryOverflow = MemoryOverflow.DROP
    tiering: Tiering = Tiering.OFF
    """Copy sealed segments to the object store, from where they can be read once the local copies
    are gone. Of a memory topic, only those that were spilled."""
    tiering_upload_delay_ms: int = 0
    """A segment is copied this long after it was sealed."""
    local_retention_ms: int | None = None
    """A segment that is in the object store is dropped here when its newest record is older than
    this. None: it stays here for as long as `retention` keeps it at all."""
    local_retention_bytes: int | None = None
    """Oldest segments that are in the object store are dropped here while the rest of what is here
    still has this many bytes per shard."""

    replication_factor: int | None = None
    """On how many nodes of a cluster each record is. None: decided when the topic is made, 3 where
    there are so many nodes and else 1. Fixed from then on."""
    min_insync_replicas: int = 2
    """Appends with acks=all are refused while fewer replicas are in sync, or all of them where the
    topic has fewer."""
    acks_all: AcksAll = AcksAll.ISR
    lake_required: bool = False
    """A segment is not dropped by retention before the lake's table has its records."""
    kafka_configs: str = ""
    """Configs of Kafka that are kept for its clients and have no effect here, as a JSON object of
    texts; empty without any."""

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InvalidArgument(
                    option_name(name), f"is {value:,}, allowed are {low:,} to {high:,}"
                )
        if not self.tag_headers or not all(self.tag_headers):
            raise InvalidArgument("tag.headers", "needs at least one header name, none empty")
        if self.is_tiered and self.compacts:
            raise InvalidArgument(
                "tiering",
                "cannot be on with cleanup.policy=compact: objects in the store are never changed, "
                "and compaction rewrites segments; use cleanup.policy=delete",
            )
        if self.shares_files and self.storage_type != StorageType.SEGMENT.value:
            raise InvalidArgument(
                "segment.layout",
                f"shared-file is for storage.type={StorageType.SEGMENT.value}, "
                f"not {self.storage_type}",
            )
        is_memory = self.storage_type == StorageType.MEMORY.value
        if self.lake_required and is_memory and self.memory_overflow is MemoryOverflow.DROP:
            raise InvalidArgument(
                "lake.required",
                "cannot hold for a memory topic, which drops its oldest records when memory is "
                "full; use memory.overflow=spill",
            )
        self._check_replicas()
        lag = self.max_compaction_lag_ms
        if lag is not None and lag < self.min_compaction_lag_ms:
            raise InvalidArgument(
                "max.compaction.lag.ms", "must not be below min.compaction.lag.ms"
            )

    def _check_replicas(self) -> None:
        if not self.is_replicated:
            return
        reason = self.not_replicable
        if reason is not None:
            text = f"must be 1 for a topic with {reason}: only one node can have it"
            raise InvalidArgument("replication.factor", text)

    @property
    def is_replicated(self) -> bool:
        """Whether each record is on several nodes."""
        return self.replication_factor is not None and self.replication_factor > 1

    @property
    def not_replicable(self) -> str | None:
        """The option that keeps the topic's records on one node; None if there is none."""
        if self.storage_type != StorageType.SEGMENT.value:
            return f"storage.type={self.storage_type}"
        if self.shares_files:
            return f"segment.layout={self.segment_layout.value}"
        if self.compacts:
            return f"cleanup.policy={self.cleanup_policy.value}"
        if self.is_tiered:
            return "tiering=on"
        return None

    def check_new(self) -> None:
        """InvalidArgument if a topic cannot be given these options now.

        Topics that have them from before are opened all the same: what is kept longest decides.
        """
        for local, total in _LOCAL_LIMITS:
            here, kept = getattr(self, local), getattr(self, total)
            if here is not None and kept is not None and here > kept:
                raise InvalidArgument(
                    option_name(local),
                    f"is {here:,}, above {option_name(total)}, which is {kept:,}: what is kept no "
                    f"longer than that cannot stay here longer; lower it, or raise "
                    f"{option_name(total)}",
                )

    @property
    def segment_bytes_max(self) -> int:
        """What a segment of more than one batch never exceeds."""
        return self.segment_bytes + self.segment_bytes // 10

    @property
    def shares_files(self) -> bool:
        """Whether its segments share files with those of other shards."""
        return self.segment_layout is SegmentLayout.SHARED_FILE

    @property
    def is_tiered(self) -> bool:
        return self.tiering is Tiering.ON

    @property
    def compacts(self) -> bool:
        """Whether the newest record of each key is all that is kept in the end."""
        return self.cleanup_policy.compacts

    @property
    def has_append_time(self) -> bool:
        """Whether records get the node's time."""
        return self.message_timestamp_type is TimestampType.LOG_APPEND_TIME

    @property
    def limits_timestamps(self) -> bool:
        """Whether a record can be refused because of its timestamp."""
        limits = (self.message_timestamp_before_max_ms, self.message_timestamp_after_max_ms)
        return not self.has_append_time and limits != (None, None)

    @property
    def expire_header_bytes(self) -> bytes:
        """The header's name as it stands in a record; one that no header has if there is none."""
        return _NO_HEADER if self.expire_header is None else self.expire_header.encode()

    @classmethod
    def from_options(cls, options: Mapping[str, object]) -> TopicConfig:
        """A configuration from dotted options; unknown names are refused by name."""
        return cls().with_options(options)

    def with_options(self, options: Mapping[str, object]) -> TopicConfig:
        """This configuration with some options changed."""
        changes: dict[str, Any] = {}
        for option, value in options.items():
            field = option.replace(".", "_")
            if field not in _PARSERS:
                raise unknown_option(option, map(option_name, _PARSERS))
            changes[field] = _parse(option, value, _PARSERS[field])
        return dataclasses.replace(self, **changes) if changes else self

    def options(self) -> dict[str, str | None]:
        """Every option with its value as text, None where there is no limit."""
        return {option_name(f.name): _text(getattr(self, f.name)) for f in dataclasses.fields(self)}


def unknown_option(option: str, known: Iterable[str]) -> InvalidArgument:
    """The error that names the closest options, or else all of them."""
    names = sorted(known)
    close = get_close_matches(option, names)
    advice = f"did you mean {' or '.join(close)}?" if close else f"there are: {', '.join(names)}"
    return InvalidArgument(option, f"is not a topic option; {advice}")


def option_name(field: str) -> str:
    """`segment_bytes` → `segment.bytes`."""
    return field.replace("_", ".")


_NO_HEADER = b"\xff"
"""Names of headers are UTF-8, and this is not."""

_LOCAL_LIMITS = (
    ("local_retention_ms", "retention_ms"),
    ("local_retention_bytes", "retention_bytes"),
)
_BOUNDS: dict[str, tuple[int, int]] = {
    "segment_bytes": (KIB, 4 * GIB),
    "segment_ms": (1, 2**53),
    "segment_jitter_ms": (0, 2**63 - 1),
    "retention_ms": (0, 2**53),
    "retention_bytes": (0, 2**53),
    "replication_factor": (1, 15),
    "min_insync_replicas": (1, 15),
    "tiering_upload_delay_ms": (0, 2**53),
    "local_retention_ms": (0, 2**53),
    "local_retention_bytes": (0, 2**53),
    "ttl_ms": (1, 2**53),
    "min_cleanable_dirty_ratio": (0, 1),
    "delete_retention_ms": (0, 2**63 - 1),
    "min_compaction_lag_ms": (0, 2**63 - 1),
    "max_compaction_lag_ms": (1, 2**63 - 1),
    "durability_interval_ms": (1, 3_600_000),
    "max_record_bytes": (1, 64 * MIB),
    "message_timestamp_before_max_ms": (0, 2**63 - 1),
    "message_timestamp_after_max_ms": (0, 2**63 - 1),
    "max_batch_bytes": (0, 96 * MIB),  # Records merged up to this still fit a 100 MiB frame.
}


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError("must be a whole number")
    try:
        return int(value)
    except ValueError:
        raise ValueError(f"must be a whole number, not {value!r}") from None


def _limit(value: object) -> int | None:
    if value is None or value in ("none", "-1", -1):
        return None
    return _number(value)


def _ratio(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError("must be a number")
    try:
        number = float(value)
    except ValueError:
        raise ValueError(f"must be a number, not {value!r}") from None
    if not 0 <= number <= 1:  # Which is also false for what is no number.
        raise ValueError(f"must be 0 to 1, not {value!r}")
    return number


def _policy(value: object) -> CleanupPolicy:
    if isinstance(value, CleanupPolicy):
        return value
    words = {word.strip() for word in value.split(",")} if isinstance(value, str) else set()
    for policy in CleanupPolicy:
        if words == set(policy.value.split(",")):
            return policy
    raise ValueError(f"must be delete, compact, both separated by a comma, or none, not {value!r}")


def _flag(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ValueError(f"must be true or false, not {value!r}")


def _one_of(kind: type[Enum]) -> Callable[[object], Enum]:
    def parse(value: object) -> Enum:
        try:
            return kind(value.value if isinstance(value, Enum) else value)
        except ValueError:
            names = ", ".join(str(member.value) for member in kind)
            raise ValueError(f"must be one of {names}, not {value!r}") from None

    return parse


def _name(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a name")
    return value


def _optional_name(value: object) -> str | None:
    return None if value is None or value in ("none", "-1") else _name(value)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(","))
    if isinstance(value, (tuple, list)) and all(isinstance(part, str) for part in value):
        return tuple(value)
    raise ValueError("must be names separated by commas")


def _json_texts(value: object) -> str:
    """A JSON object of texts in one spelling, so that equal ones are equal texts."""
    try:
        texts = json.loads(value) if isinstance(value, str) and value else {}
    except ValueError:
        texts = None
    if not isinstance(texts, dict) or not all(isinstance(each, str) for each in texts.values()):
        raise ValueError(f"must be a JSON object of texts, not {value!r}")
    return json.dumps(texts, sort_keys=True) if texts else ""


_PARSERS: dict[str, Callable[[object], object]] = {
    "storage_type": _name,
    "replication_factor": _limit,
    "min_insync_replicas": _number,
    "acks_all": _one_of(AcksAll),
    "segment_layout": _one_of(SegmentLayout),
    "segment_bytes": _number,
    "segment_ms": _limit,
    "segment_jitter_ms": _number,
    "retention_ms": _limit,
    "retention_bytes": _limit,
    "ttl_ms": _limit,
    "cleanup_policy": _policy,
    "min_cleanable_dirty_ratio": _ratio,
    "delete_retention_ms": _number,
    "min_compaction_lag_ms": _number,
    "max_compaction_lag_ms": _limit,
    "durability": _one_of(Durability),
    "durability_interval_ms": _number,
    "index_key": _flag,
    "index_tag": _flag,
    "tag_headers": _names,
    "expire_header": _optional_name,
    "message_timestamp_type": _one_of(TimestampType),
    "message_timestamp_before_max_ms": _limit,
    "message_timestamp_after_max_ms": _limit,
    "compression_type": _one_of(CompressionType),
    "check_compressed": _flag,
    "max_record_bytes": _number,
    "max_batch_bytes": _number,
    "memory_overflow": _one_of(MemoryOverflow),
    "tiering": _one_of(Tiering),
    "tiering_upload_delay_ms": _number,
    "local_retention_ms": _limit,
    "local_retention_bytes": _limit,
    "lake_required": _flag,
    "kafka_configs": _json_texts,
}


def _parse(option: str, value: object, parser: Callable[[object], object]) -> object:
    try:
        return parser(value)
    except ValueError as error:
        raise InvalidArgument(option, str(error)) from None


def _text(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)
