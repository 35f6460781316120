"""Puts the RocksDB engine together: logs in rows, written through the I/O pool.

Rows and checkpoint of a turn are one atomic write, with the index entries unless these are many.
So a log is never torn, and its recovery has nothing to scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from firnmq.config import StorageType
from firnmq.disk import Family, IoPool, KeyValueStore
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.compaction.stored_copy import drop_strays_of
from firnmq.engines.engine import LogEngine
from firnmq.engines.gate import AppendGate
from firnmq.engines.media.durable import DurableBackend, DurableKeeper
from firnmq.engines.media.rocksdb.bytes import RowBytes, rows_of_shard
from firnmq.engines.shardlog import Append
from firnmq.engines.shardlog.rolling.driver import RollDriver


class RowLayout:
    """Where this engine's bytes are: a ByteLayout."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> RowBytes:
        return RowBytes(self._kv, spec.uid, meta.place)

    def drop_strays(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        drop_strays_of(self._kv, Family.MESSAGES, spec.uid, metas)

    def drop_shard(self, spec: ShardSpec) -> None:
        with self._kv.batch() as batch:
            batch.delete_range(Family.MESSAGES, *rows_of_shard(spec.uid))

    def drop_range(self, shards: ShardRange) -> None:
        with self._kv.batch() as batch:
            lower, _ = rows_of_shard(shards.first_uid)
            batch.delete_range(Family.MESSAGES, lower, rows_of_shard(shards.end_uid)[0])


def rocksdb_engine(
    backend: DurableBackend,
    pool: IoPool[Append],
    rolls: RollDriver,
    *,
    gate: AppendGate,
    producer_expiration_ms: int,
    compaction_bytes: int,
    judges: Executor | None = None,
) -> LogEngine:
    keeper = DurableKeeper(StorageType.ROCKSDB.value, backend, pool, rolls)
    return LogEngine(
        keeper,
        backend.state,
        backend.clock,
        health=backend.health,
        gate=gate,
        producer_expiration_ms=producer_expiration_ms,
        compaction_bytes=compaction_bytes,
        judges=judges,
    )
