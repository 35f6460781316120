"""One data directory in one process: everything wired together, opened and closed in order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from firnmq.adapter import (
    AdapterFactory,
    DriverFactory,
    EngineStorageAdapter,
    OffsetCacheManager,
    OffsetManager,
    OffsetRows,
    OffsetStorageManager,
    StorageDriverManager,
    Topic,
    TopicCatalog,
)
from firnmq.adapter.catalog import TOPIC_WAIT_S
from firnmq.adapter.forwarding import ShardFollower
from firnmq.adapter.holders import HolderService, PeerMedium
from firnmq.adapter.manager import check_alone
from firnmq.clock import Clock, SystemClock
from firnmq.config import StorageType, StoreConfig, TieringConfig
from firnmq.disk import (
    DirectoryLock,
    FileCache,
    FileStatistics,
    IoPool,
    KeyValueStore,
    run_blocking,
    sync_directory,
)
from firnmq.disk.pool import PoolLimits, PoolStatistics
from firnmq.disk.private import PRIVATE_DIRECTORY, PRIVATE_FILE, make_private
from firnmq.disk.reserve import Reserve, disk_bytes
from firnmq.engines import CompactionCounts, Engine, ShardState
from firnmq.engines.catalog.segments import SegmentState
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.due import DueTimes
from firnmq.engines.engine import LogEngine
from firnmq.engines.media.durable import ByteLayout, DurableBackend
from firnmq.engines.media.files import segment_engine, segment_layout
from firnmq.engines.media.files.engine import SEGMENT_DIRECTORY, SHARED_DIRECTORY
from firnmq.engines.media.layouts import LayoutByMedium, SharedFile
from firnmq.engines.media.memory import memory_engine
from firnmq.engines.media.rocksdb import RowLayout, rocksdb_engine
from firnmq.engines.media.snapshots import SnapshotFiles
from firnmq.engines.replicas.node import NodeReplicas
from firnmq.engines.shardlog import Append, LogTurnHandler
from firnmq.engines.shardlog.rolling.driver import RollDriver
from firnmq.engines.shardlog.watermark import Replication
from firnmq.engines.tiering.api import ColdMedium
from firnmq.engines.verify.verifier import Verifier
from firnmq.errors import FirnError, NoTiering, SeveralProcesses
from firnmq.eventlog import EventLogger
from firnmq.health import Health
from firnmq.meta import MetaCache, MetaShards, MetaStore, SqliteMetaStore
from firnmq.meta.records import NODES, SEGMENTS, SegmentRecord, decode, shard_of_segment
from firnmq.nodefile import LOCK_NAME, META_NAME, process_count
from firnmq.server.diskguard import DiskGuard
from firnmq.server.housekeeper import Housekeeper
from firnmq.server.identity import register_directory
from firnmq.server.member import ClusterMember
from firnmq.server.strays import sweep_strays
from firnmq.server.tier import CACHE_DIRECTORY, Tier, open_object_store
from firnmq.tiering.move.mover import TierMover
from firnmq.tiering.stores import ObjectStore

_FILE_DIRECTORIES = (SEGMENT_DIRECTORY, SHARED_DIRECTORY)
DATABASE_DIRECTORY = "db"
_SHARED_FILES_MIN = 128
"""A small disk has room for so many shared files, each of which is freed as a whole: the reserve,
an eighth of the disk, must have space for what is copied out of one."""
_JUDGE_THREADS = min(os.cpu_count() or 1, 4)
"""Threads that validate large batches of clients. Each holds one decompressed batch, so that their
number bounds the memory that clients can make the node allocate: 128 MiB each."""
_log = EventLogger("store")


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
        files: FileCache | None = None,
        open_kv: Callable[[Path], KeyValueStore] = KeyValueStore,
        open_meta: Callable[[Path], MetaStore] = SqliteMetaStore,
        node: int | None = None,
        cold: ColdMedium | None = None,
        tiering: TieringConfig | None = None,
        moves: bool | None = None,
        open_objects: Callable[[TieringConfig], ObjectStore] = open_object_store,
        open_reserve: Callable[[Path, int], Reserve] = Reserve,
        replication: Replication | None = None,
        member: ClusterMember | None = None,
    ) -> None:
        """`files`, `open_kv`, `open_meta` and `open_reserve` access the disk: tests pass failing
        ones. `node` is the number of the registration, by default the last one. `cold` reads
        segments that are only in the object store; with `tiering` the store opens one, and a mover.
        The mover runs in the background unless `moves` or `background` is False. `replication`
        advances the high watermarks of logs; without it, durable records are visible. `member` is
        the directory's place in a cluster, by default it is alone."""
        self.member = member
        self._replication = replication
        self._cold = cold
        self.peers: PeerMedium | None = None
        """Reads segments that other nodes hold."""
        self._tiering = tiering or TieringConfig()
        self._open_objects = open_objects
        self._tells_of_no_store = False
        self.tier: Tier | None = None
        self.path = path
        self.config = config or StoreConfig()
        self.clock: Clock = clock or SystemClock()
        self.health = Health(self.clock)
        """The present problems of the storage."""
        self.files = files or FileCache(open_max=self.config.open_files)
        count = process_count(path)
        if count:
            raise SeveralProcesses(str(path), count)
        with ExitStack() as opened:
            opened.callback(DirectoryLock(path).release)
            reserve = open_reserve(path, self.config.disk_reserve_bytes)
            self.guard = DiskGuard(reserve, self.health)
            self._make_private()
            if member is None:
                self.meta = open_meta(path / META_NAME)
            else:
                self.meta = member.open_meta(self.clock)
            opened.callback(self.meta.close)
            self.kv = open_kv(path / DATABASE_DIRECTORY)
            opened.callback(self.kv.close)
            if isinstance(self.meta, SqliteMetaStore) and member is None:
                self.guard.watch(META_NAME, self.meta)
            self.guard.watch(DATABASE_DIRECTORY, self.kv)
            self.guard.reclaim_from(self.kv)
            sync_directory(path)  # RocksDB syncs its directory, but not that there is one.
            if member is None:
                self.node = register_directory(path, self.kv, self.meta, self.clock, node)
            else:
                self.node = member.join(path, self.kv, self.meta, self.clock)
                opened.callback(member.mark.close)
            self._open(opened, adapters or {}, cache_offsets=cache_offsets)
            self.guard.look()
            if background:
                opened.callback(Housekeeper(self).stop)
            self._begin_tiering(opened, moves=background if moves is None else moves)
            # Closed in the opposite order of opening: now if opening failed, otherwise by `close`.
            self._opened = opened.pop_all()

    def _make_private(self) -> None:
        """Makes a directory private that an earlier version, or mkdir, has left accessible to other
        users: it holds password hashes."""
        count = make_private(
            self.path,
            META_NAME,
            DATABASE_DIRECTORY,
            *_FILE_DIRECTORIES,
            CACHE_DIRECTORY,
            LOCK_NAME,
        )
        if count:
            _log.info("permissions_tightened", path=self.path, entries=count)
        # RocksDB and SQLite create files by the umask, which belongs to the embedding program. The
        # directory's mode protects those of RocksDB; SQLite uses the mode of its database file.
        (self.path / DATABASE_DIRECTORY).mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        if self.member is None:
            (self.path / META_NAME).touch(mode=PRIVATE_FILE)

    def file_statistics(self) -> FileStatistics:
        return self.files.statistics()

    def pool_statistics(self) -> PoolStatistics:
        return self.pool.statistics()

    def housekeep(self, is_stopping: Callable[[], bool] = lambda: False) -> None:
        """One round of rolling by age, retention, spilling and compaction.

        A defect is raised once every engine has had its turn.
        """
        run_blocking(self.manager.clean_up())
        with ExitStack() as turns:
            turns.callback(self.manager.follow_topics)
            turns.callback(self.shared.housekeep, is_stopping)
            turns.callback(self.replicas.housekeep)
            for engine in reversed(self.engines.values()):
                turns.callback(engine.housekeep, is_stopping)

    @property
    def mover(self) -> TierMover:
        """The mover to the object store; NoTiering if there is none."""
        if self.tier is None:
            raise NoTiering
        return self.tier.mover

    def stored_bytes(self) -> int:
        """Bytes of the segments that this node has. An active one counts once its log is open."""
        total = 0
        sealed: dict[str, int] = {}
        for entry in self.cache.below(SEGMENTS):
            record = decode(entry, SegmentRecord)
            if record.state is not SegmentState.DELETED:
                shard = shard_of_segment(entry.key)
                sealed[shard] = sealed.get(shard, 0) + record.length
                if self.shards.has_here(record):
                    total += record.length
        for engine in self.engines.values():
            for shard in engine.opened():
                with suppress(FirnError):  # It is being deleted, or cannot be read.
                    length = engine.status(shard).length_bytes
                    total += max(length - sealed.get(shard, 0), 0)
        return total

    def _find_shard(self, name: str) -> ShardSpec | None:
        """A shard of this node."""
        found = (engine.find_shard(name) for engine in self.engines.values())
        return next((spec for spec in found if spec is not None), None)

    def report_load(self) -> None:
        """Tells the other nodes of a cluster, now and then, how much this one holds."""
        if self.member is None:
            return
        cluster = self.member.cluster
        if cluster.registration is not None and cluster.loads.is_due:
            free_bytes = self.guard.free_bytes
            cluster.loads.report(cluster.registration, self.stored_bytes(), free_bytes)

    def roll_tiered(self, topic: str | None = None) -> None:
        """Seals the active segments of topics with tiering, or of one of them, in shards that this
        node leads."""
        for each in self.catalog.topics():
            if each.config.is_tiered and topic in (None, each.name):
                engine = self.engines[each.config.storage_type]
                for shard in filter(engine.has_shard, each.shard_names()):
                    engine.roll(shard)

    def compaction_counts(self) -> dict[str, CompactionCounts]:
        """Compaction statistics by storage type."""
        return {name: engine.compaction_counts() for name, engine in self.engines.items()}

    def close(self) -> None:
        """Serves queued requests, then releases everything. Closing twice is no error."""
        self._opened.close()

    def _open(
        self, opened: ExitStack, adapters: Mapping[str, AdapterFactory], *, cache_offsets: bool
    ) -> None:
        path, config, clock = self.path, self.config, self.clock
        shards = self._open_catalog(opened)
        opened.callback(self.kv.sync_late)
        opened.callback(self.files.close)
        self._readers = ThreadPoolExecutor(config.read_threads, thread_name_prefix="firn-read")
        opened.callback(self._readers.shutdown)
        self._open_remote(opened)
        self._cold_readers = ThreadPoolExecutor(
            config.cold_read_threads, thread_name_prefix="firn-cold"
        )
        opened.callback(partial(self._cold_readers.shutdown, cancel_futures=True))
        self.state = ShardState(self.kv, shards)
        layout = segment_layout(path, self.files)
        self._open_shared(opened)
        layouts: dict[str, ByteLayout] = {
            StorageType.SEGMENT.value: LayoutByMedium(layout, self.shared),
            StorageType.ROCKSDB.value: RowLayout(self.kv),
        }
        self._snapshots = SnapshotFiles(path / SEGMENT_DIRECTORY, self.files)
        backend = self._durable_backend = self._backend(layouts)
        self._open_pool(opened, backend)
        judges = ThreadPoolExecutor(_JUDGE_THREADS, thread_name_prefix="firn-judge")
        opened.callback(judges.shutdown)
        memory = memory_engine(
            kv=self.kv,
            state=self.state,
            layout=layout,
            clock=clock,
            health=self.health,
            memory_bytes=config.memory_bytes,
            producer_expiration_ms=config.producer_expiration_ms,
            compaction_bytes=config.compaction_bytes,
            cold=self._cold,
            judges=judges,
            replication=self._replication,
        )
        self._log_engines = {
            StorageType.MEMORY.value: memory,
            StorageType.ROCKSDB.value: self._durable(rocksdb_engine, backend, judges),
            StorageType.SEGMENT.value: self._durable(
                partial(segment_engine, open_max=config.open_shards), backend, judges
            ),
        }
        self.engines: dict[str, Engine] = {**self._log_engines}
        segments = self._log_engines[StorageType.SEGMENT.value]
        self.replicas = NodeReplicas(backend, self.state, self.pool, segments.logs, judges)
        """Logs of shards with other replicas, for the driver of replication."""
        if self.member is not None:
            self.member.move_by(self.catalog, self.engines, self._snapshots)
            self.rolls.placing = self.member.mover
        self.verifier = Verifier(
            kv=self.kv,
            state=self.state,
            find=self._find_shard,
            layouts=layouts,
            directory=path / SEGMENT_DIRECTORY,
            shared=self.shared,
            memory_log=memory.log,
            wait_for_roll=self._wait_for_roll,
            shown_length=self._shown_length,
        )
        self._open_manager(opened, cache_offsets=cache_offsets)
        for engine in self.engines.values():
            opened.callback(engine.close)
        if self.member is not None:
            self._serve_others(self.member, opened)
        for name, factory in adapters.items():
            self.manager.register(name, factory)
        if self.member is None:
            for topic in run_blocking(self.manager.finish_interrupted()):
                _log.info("unfinished_topic_removed", topic=topic)
        self.cache.wait_for_revision(self.meta.range(NODES).revision, TOPIC_WAIT_S)

    def _open_remote(self, opened: ExitStack) -> None:
        """What reads segments that are not here: from the object store, and from other nodes."""

        def is_appending() -> bool:
            return self.pool.is_busy

        def append_count() -> int:
            return self.pool.turn_count

        if self._tiering.is_on:
            self.tier = Tier(
                self._tiering,
                self.path,
                self._open_objects,
                is_appending=is_appending,
                append_count=append_count,
            )
            opened.callback(self.tier.close)
            self._cold = self.tier.cold
        if self.member is not None:
            self.peers = PeerMedium(self.member.cluster, self.path, is_appending, append_count)
            opened.callback(self.peers.close)

    def _backend(self, layouts: dict[str, ByteLayout]) -> DurableBackend:
        return DurableBackend(
            self.kv,
            self.state,
            self.clock,
            layouts,
            self.health,
            self._cold,
            self._replication,
            shared=self.shared,
            due=DueTimes(self.kv, self.config.producer_expiration_ms),
            snapshots=self._snapshots,
            peers=self.peers,
        )

    def _open_shared(self, opened: ExitStack) -> None:
        """The files of topics with segment.layout=shared-file, recovered."""
        self.shared = SharedFile(
            self.path / SHARED_DIRECTORY,
            self.files,
            self.kv,
            lane_count=self.config.io_workers,
            shard_uids=self.shards.uids(),
            file_bytes=min(
                self.config.shared_file_bytes, disk_bytes(self.path) // _SHARED_FILES_MIN
            ),
        )
        self.guard.reclaim_from(self.shared)
        opened.callback(self.shared.close)

    def _open_catalog(self, opened: ExitStack) -> MetaShards:
        """What exists, as the metadata has it."""
        self.cache = MetaCache(self.meta)
        opened.callback(self.cache.close)
        self.catalog = TopicCatalog(self.meta, self.cache)
        self.health.shown = self.catalog.shown
        is_shared = self.member is not None
        self.shards = MetaShards(self.meta, self.cache, self.node, self.clock, is_shared=is_shared)
        if self.member is not None:
            self.member.begin(self.meta, self.cache, self.shards, self.node)
            opened.callback(self.member.close)
        return self.shards

    def _serve_others(self, member: ClusterMember, opened: ExitStack) -> None:
        """Follows the metadata, and answers other nodes."""
        kept = self.shards.kept_here()
        names, uids = kept.keys(), set(kept.values())
        sweep_strays(self.path / SEGMENT_DIRECTORY, self.kv, self.state, names, uids)
        self.shared.drop_others(uids)
        follower = ShardFollower(
            self.node.node,
            self.cache,
            self.catalog,
            self.engines,
            self.offsets.forget_shards,
        )
        opened.callback(follower.close)
        drivers = {name: self._local_driver(name) for name in self.engines}
        member.mark.start(lambda: self.pool.turn_count, lambda: self.replicas.has_failed)
        backend = self._durable_backend
        assert backend.snapshots is not None
        holder = HolderService(
            member.cluster, self.catalog, backend.open_segment, backend.snapshots.read_packed
        )
        opened.callback(holder.close)
        member.replicate(self.replicas, self.catalog, self.clock)
        opened.callback(member.replication.close)
        member.serve(self.catalog, drivers, follower, holder)

    def _open_pool(self, opened: ExitStack, backend: DurableBackend) -> None:
        """What writes the logs. Closing serves what is queued, with the rolls that it waits for."""
        self.rolls = RollDriver()
        opened.callback(self.rolls.close)
        self.pool: IoPool[Append] = IoPool(
            worker_count=self.config.io_workers,
            handler=lambda _: LogTurnHandler(backend, self.rolls.want),
            limits=PoolLimits(
                queue_bytes=self.config.queue_bytes, turn_bytes=self.config.turn_bytes
            ),
        )
        opened.callback(self._fail_pending)
        opened.callback(self.pool.close)

    def _fail_pending(self) -> None:
        for engine in self._log_engines.values():
            engine.fail_pending()

    def _wait_for_roll(self, spec: ShardSpec) -> None:
        self._log_engines[spec.config.storage_type].wait_for_roll(spec.name)

    def _shown_length(self, spec: ShardSpec) -> int | None:
        return self._log_engines[spec.config.storage_type].shown_length(spec.name)

    def _durable(
        self, make: Callable[..., LogEngine], backend: DurableBackend, judges: Executor
    ) -> LogEngine:
        return make(
            backend,
            self.pool,
            self.rolls,
            gate=self.guard.gate,
            producer_expiration_ms=self.config.producer_expiration_ms,
            compaction_bytes=self.config.compaction_bytes,
            judges=judges,
        )

    def _open_manager(self, opened: ExitStack, *, cache_offsets: bool) -> None:
        strategy = OffsetCacheManager if cache_offsets else OffsetStorageManager
        self.offset_rows = OffsetRows(self.kv)
        self.offsets = OffsetManager(strategy(self.offset_rows), self.clock)
        self.manager = StorageDriverManager(
            self.catalog,
            self.offsets,
            self.clock,
            {name: self._factory(name) for name in self.engines},
            on_options=self._judge_tiering,
            shard_count_max=self.config.shard_count_max,
            shared_shard_count_max=self._shared_shard_count_max(),
            cluster_claim=None if self.member is None else self.member.cluster.claim_topic,
            with_replicas=(
                check_alone if self.member is None else self.member.cluster.with_replicas
            ),
        )
        opened.callback(self.manager.close)

    def _shared_shard_count_max(self) -> int:
        """In a cluster each of these shards has its own records too."""
        config = self.config
        return config.shard_count_max if self.member else config.shared_shard_count_max

    def _begin_tiering(self, opened: ExitStack, *, moves: bool) -> None:
        if self.tier is not None:
            mover = self.tier.mover_for(self)
            opened.callback(mover.stop)
            if moves:
                mover.start()
            return
        self._tells_of_no_store = moves
        self._judge_tiering(*self.catalog.topics())

    def _judge_tiering(self, *topics: Topic) -> None:
        """Says so if segments of topics are to be copied and there is nowhere to."""
        names = [topic.name for topic in topics if topic.config.is_tiered]
        if names and self._tells_of_no_store:
            _log.warning(
                "tiering_without_store",
                topics=len(names),
                first=names[0],
                effect="segments are not uploaded, and those only in the store cannot be read",
                hint="set url in [tiering], or FIRN_TIERING_URL, and start again",
            )

    def _factory(self, storage_type: str) -> DriverFactory:
        member, engine = self.member, self.engines[storage_type]
        if member is None:
            return lambda: self._local_driver(storage_type)
        return lambda: member.driver(
            self._local_driver(storage_type), engine, self.catalog, self.clock
        )

    def _local_driver(self, storage_type: str) -> EngineStorageAdapter:
        engine = self.engines[storage_type]
        return EngineStorageAdapter(engine, self.offsets, self._readers, self._cold_readers)
