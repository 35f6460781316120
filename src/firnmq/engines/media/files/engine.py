"""Puts the segment engine together: logs in files, written through the I/O pool."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path

from firnmq.config import StorageType
from firnmq.disk import FileCache, IoPool
from firnmq.engines.engine import LogEngine
from firnmq.engines.gate import AppendGate
from firnmq.engines.logs import OPEN_MAX
from firnmq.engines.media.durable import DurableBackend, DurableKeeper
from firnmq.engines.media.layouts import PartitionPerFile
from firnmq.engines.shardlog import Append
from firnmq.engines.shardlog.rolling.driver import RollDriver

SEGMENT_DIRECTORY = "segments"
SHARED_DIRECTORY = "shared"


def segment_layout(data_directory: Path, files: FileCache) -> PartitionPerFile:
    """Where this engine's files are in a data directory."""
    return PartitionPerFile(data_directory / SEGMENT_DIRECTORY, files)


def segment_engine(
    backend: DurableBackend,
    pool: IoPool[Append],
    rolls: RollDriver,
    *,
    gate: AppendGate,
    producer_expiration_ms: int,
    compaction_bytes: int,
    judges: Executor | None = None,
    open_max: int = OPEN_MAX,
) -> LogEngine:
    keeper = DurableKeeper(StorageType.SEGMENT.value, backend, pool, rolls)
    return LogEngine(
        keeper,
        backend.state,
        backend.clock,
        health=backend.health,
        gate=gate,
        producer_expiration_ms=producer_expiration_ms,
        compaction_bytes=compaction_bytes,
        judges=judges,
        open_max=open_max,
        due=backend.due,
    )
