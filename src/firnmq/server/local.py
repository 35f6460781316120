"""One data directory in one process: everything wired together, opened and closed in order."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from firnmq.adapter import (
    AdapterFactory,
    EngineStorageAdapter,
    OffsetCacheManager,
    OffsetManager,
    OffsetStorageManager,
    StorageDriverManager,
    TopicCatalog,
)
from firnmq.clock import Clock, SystemClock
from firnmq.config import StorageType, StoreConfig
from firnmq.disk import (
    DirectoryLock,
    FileCache,
    FileStatistics,
    IoPool,
    KeyValueStore,
    run_blocking,
)
from firnmq.disk.pool import PoolLimits, PoolStatistics
from firnmq.engines import Engine, ShardState
from firnmq.engines.durable import DurableBackend
from firnmq.engines.memory import memory_engine
from firnmq.engines.rocksdb import RowLayout, rocksdb_engine
from firnmq.engines.segment import segment_engine, segment_layout
from firnmq.engines.shardlog import Append, LogTurnHandler
from firnmq.server.housekeeper import Housekeeper

_DATABASE_DIRECTORY = "db"
_log = structlog.get_logger("firnmq.store")


class LocalStore:
    """The stack from the directory lock to the driver manager. Close it when done."""

    def __init__(
        self,
        path: Path,
        *,
        config: StoreConfig | None = None,
        clock: Clock | None = None,
        adapters: Mapping[str, AdapterFactory] | None = None,
        cache_offsets: bool = False,
        background: bool = True,
    ) -> None:
        self.path = path
        self.config = config = config or StoreConfig()
        self.clock = clock = clock or SystemClock()
        self._lock = DirectoryLock(path)
        try:
            self.kv = KeyValueStore(path / _DATABASE_DIRECTORY)
        except BaseException:
            self._lock.release()
            raise
        self.files = FileCache(open_max=config.open_files)
        self.state = ShardState(self.kv)
        layout = segment_layout(path, self.files)
        backend = DurableBackend(
            self.kv,
            self.state,
            clock,
            {
                StorageType.SEGMENT.value: layout,
                StorageType.ROCKSDB.value: RowLayout(self.kv),
            },
        )
        self.pool: IoPool[Append] = IoPool(
            worker_count=config.io_workers,
            handler=lambda _: LogTurnHandler(backend),
            limits=PoolLimits(queue_bytes=config.queue_bytes, turn_bytes=config.turn_bytes),
        )
        self.engines: dict[str, Engine] = {
            StorageType.MEMORY.value: memory_engine(
                kv=self.kv,
                state=self.state,
                layout=layout,
                clock=clock,
                memory_bytes=config.memory_bytes,
            ),
            StorageType.ROCKSDB.value: rocksdb_engine(backend, self.pool),
            StorageType.SEGMENT.value: segment_engine(backend, self.pool),
        }
        self._readers = ThreadPoolExecutor(config.read_threads, thread_name_prefix="firn-read")
        strategy = OffsetCacheManager if cache_offsets else OffsetStorageManager
        self.offsets = OffsetManager(strategy(self.kv), clock)
        self.catalog = TopicCatalog(self.kv)
        self.manager = StorageDriverManager(
            self.catalog, self.offsets, clock, {name: self._factory(name) for name in self.engines}
        )
        for name, factory in (adapters or {}).items():
            self.manager.register(name, factory)
        for topic in run_blocking(self.manager.finish_interrupted()):
            _log.info("unfinished_topic_removed", topic=topic)
        self._housekeeper = Housekeeper(self) if background else None
        self._is_closed = False

    def file_statistics(self) -> FileStatistics:
        return self.files.statistics()

    def pool_statistics(self) -> PoolStatistics:
        return self.pool.statistics()

    def housekeep(self) -> None:
        """One round of rolling by age, retention and spilling."""
        for engine in self.engines.values():
            engine.housekeep()

    def close(self) -> None:
        """Serves what is queued, then lets go of everything. Closing twice is no error."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._housekeeper is not None:
            self._housekeeper.stop()
        for engine in self.engines.values():
            engine.close()
        self.manager.close()
        self.pool.close()
        self._readers.shutdown()
        self.files.close()
        try:
            self.kv.sync()
        finally:
            self.kv.close()
            self._lock.release()

    def _factory(self, storage_type: str) -> AdapterFactory:
        engine = self.engines[storage_type]
        return lambda: EngineStorageAdapter(engine, self.offsets, self._readers)
