"""Puts the RocksDB engine together: logs in rows, written through the I/O pool.

Rows, index entries and checkpoint of a turn are one atomic write, so a log is never torn and its
recovery has nothing to scan.
"""

from __future__ import annotations

from firnmq.config import StorageType
from firnmq.disk import Family, IoPool, KeyValueStore
from firnmq.engines.durable import DurableBackend, DurableKeeper
from firnmq.engines.engine import LogEngine
from firnmq.engines.rocksdb.bytes import RowBytes, rows_of_shard
from firnmq.engines.segments import SegmentMeta
from firnmq.engines.shardlog import Append
from firnmq.engines.state import ShardSpec


class RowLayout:
    """Where this engine's bytes are: a ByteLayout."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> RowBytes:
        return RowBytes(self._kv, spec.uid, meta.seq)

    def drop_shard(self, spec: ShardSpec) -> None:
        with self._kv.batch() as batch:
            batch.delete_range(Family.MESSAGES, *rows_of_shard(spec.uid))


def rocksdb_engine(
    backend: DurableBackend, pool: IoPool[Append], *, producer_expiration_ms: int
) -> LogEngine:
    keeper = DurableKeeper(StorageType.ROCKSDB.value, backend, pool)
    return LogEngine(
        keeper,
        backend.state,
        backend.clock,
        producer_expiration_ms=producer_expiration_ms,
    )
