"""A store's configuration: a TOML file, then environment variables, read once at start-up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from firnmq.config.sections import Settings
from firnmq.errors import InvalidArgument

_SHARED_FILE_BYTES_MAX = 1024**3
"""Positions in a shared file have four bytes, and a turn may go beyond the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """Settings of one data directory's store."""

    io_workers: int = 2
    """Threads that write and sync. More help only where devices sync in parallel: on one device
    their syncs queue behind each other and every turn gets smaller. With 16 shards on two cores,
    1, 2, 4 and 16 threads wrote 184, 221, 220 and 202 MB/s."""
    queue_bytes: int = 64 * 1024 * 1024
    """Bytes a worker may hold; callers wait beyond it."""
    turn_bytes: int = 4 * 1024 * 1024
    """Bytes written and synced as one. A larger turn saves no more time per byte, and with a
    smaller one callers encode their next requests while the worker syncs those of others."""
    open_files: int = 1000
    """Descriptors kept open for segment files."""
    read_threads: int = 4
    """Threads that read for asynchronous callers."""
    cold_read_threads: int = 16
    """Threads that read from the object store for asynchronous callers. They wait most of the time,
    and those who read what is here do not wait for them."""
    shared_file_bytes: int = 64 * 1024 * 1024
    """Bytes of one file of topics with segment.layout=shared-file. A smaller file is free of live
    records sooner."""
    open_shards: int = 20_000
    """Shards of topics with segment.layout=shared-file that are held in memory, at some nine
    kilobytes each. Others are on disk alone, and are opened when they are used."""
    memory_bytes: int = 1024 * 1024 * 1024
    """Bytes all memory topics together may hold."""
    housekeeping_ms: int = 5_000
    """Time between rounds of rolling by age, retention, spilling and compaction."""
    compaction_bytes: int = 64 * 1024 * 1024
    """Memory that a compaction may take for keys, at 192 bytes each, for each storage type. With
    more keys in what is new than fit, the shard is gone through several times."""
    state_sync_ms: int = 1_000
    """Time between syncs of the index log: bounds what is scanned after a power failure."""

    disk_reserve_bytes: int = 96 * 1024 * 1024
    """Room that is kept on a disk that is nearly full, at most an eighth of the disk. With it a
    node whose disk is full opens, reads and deletes. 96 MiB: when the databases are opened
    after a crash, they may write half of that."""

    producer_expiration_ms: int = 24 * 60 * 60 * 1000
    """Time after which a shard forgets an idempotent producer that wrote nothing to it and has no
    transaction open there; a batch it sends again later is stored again. A day, as in Kafka."""
    shard_count_max: int = 100_000
    """Shards of all topics together; each costs memory and two records of the metadata. A node has
    a lower default, because a client can ask for any number in one request."""
    shared_shard_count_max: int = 4_000_000
    """The same of topics with segment.layout=shared-file, on a store of one node: their shards cost
    nothing before they are used, and only disk afterwards. Measured with a million."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InvalidArgument(field.name, f"must be a whole number above 0, not {value!r}")
        if self.shared_file_bytes > _SHARED_FILE_BYTES_MAX:
            raise InvalidArgument(
                "shared_file_bytes", f"must be at most {_SHARED_FILE_BYTES_MAX:,}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStoreConfig(StoreConfig):
    """Settings of the store of a node, which strangers can ask for topics."""

    shard_count_max: int = 20_000
    """Shards of all topics together; a request for more is refused with POLICY_VIOLATION."""


def load_store_config(
    path: Path | None = None, environment: Mapping[str, str] | None = None
) -> StoreConfig:
    """Defaults, overlaid by the file's [store] table, overlaid by FIRN_* variables."""
    settings = Settings(path, environment)
    settings.refuse_unknown({"store"})
    return settings.section("store", StoreConfig, prefix="")
