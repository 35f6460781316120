"""A data directory as a node of a cluster: its place among the members, and its connections.

A directory has its node number for good, and a number has one directory. Each start takes the next
incarnation, and writes it down in the directory first: so a directory that knows less than the
metadata is an old copy, whose records may be missing, and is refused. So is one with an older mark
(`directory_mark.py`).
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec

from firnmq.adapter import EngineStorageAdapter, TopicCatalog
from firnmq.adapter.forwarding import ClusterDriver, ShardFollower, ShardMover, ShardService
from firnmq.adapter.forwarding.operations import MOVE, TAKE_SNAPSHOT
from firnmq.adapter.holders import HolderService
from firnmq.clock import Clock
from firnmq.cluster.config import ClusterConfig
from firnmq.cluster.nodes.cluster import PING, Cluster
from firnmq.cluster.nodes.registration import Registration
from firnmq.cluster.peers import PeerNetwork
from firnmq.cluster.replication.driving.driver import ReplicationDriver
from firnmq.config import Durability, MetaConfig, TopicConfig
from firnmq.disk import KeyValueStore, run_blocking
from firnmq.disk.private import PRIVATE_FILE
from firnmq.engines import Engine
from firnmq.engines.media.snapshots import SnapshotFiles
from firnmq.engines.replicas import Replicas
from firnmq.errors import Corruption, FirnError, InvalidArgument, NodeUnavailable
from firnmq.health import Health, ProblemKind
from firnmq.meta import (
    Compare,
    MetaCache,
    MetaShards,
    MetaStore,
    NodeIdentity,
    TxnConflict,
    open_meta_store,
)
from firnmq.meta.nodes import take_incarnation
from firnmq.meta.records import (
    CLUSTER,
    ClusterRecord,
    Incarnation,
    MemberRecord,
    NodeRecord,
    decode,
    encode,
    incarnation_key,
    member_key,
    node_key,
)
from firnmq.nodefile import joined_address, reachable_host, split_address
from firnmq.server.directory_mark import DirectoryMark, check_mark
from firnmq.server.identity import (
    DirectoryRecord,
    known_directory,
    single_directory,
    write_down,
)

_SECRET_BYTES = 32
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SECOND_S = 1.0
"""How long a process that is listed as this node has to answer."""
_FORWARD_THREADS = 32
"""Threads that wait for other nodes: for reads of clients that ask the wrong node, and for changes
of topics."""


class ClusterMember:
    """Opened by LocalStore, in order; closed in the opposite order."""

    def __init__(self, config: ClusterConfig, meta: MetaConfig, node: int) -> None:
        self.config = config
        self._meta = meta
        self._certificates = config.certificates()
        self.node = node
        self.secret = b""
        self.cluster_id = ""
        self.cluster: Cluster
        self.mover: ShardMover
        self.holder: HolderService
        self.service: ShardService
        self.mark: DirectoryMark
        self.replication: ReplicationDriver
        self._directory: DirectoryRecord
        self.peer_port = 0

    def open_meta(self, clock: Clock) -> MetaStore:
        """The metadata that all nodes share."""
        path = self.config.meta_file
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=PRIVATE_FILE)
        return open_meta_store(self._meta, path or Path(), clock=clock, is_shared=True)

    def join(self, path: Path, kv: KeyValueStore, meta: MetaStore, clock: Clock) -> NodeIdentity:
        """Takes the node's next incarnation; Corruption if the directory is not the node's."""
        shared = _cluster_record(meta, clock)
        self.secret, self.cluster_id = shared.secret, shared.cluster_id
        known = known_directory(kv)
        entry = meta.get(member_key(self.node))
        if single_directory(meta):
            raise InvalidArgument("cluster.meta_file", "holds the metadata of a node that is alone")
        if entry is None:
            if known is not None:
                text = f"it is node {known.node}'s, and the cluster knows no node {self.node}"
                raise Corruption(text, where=str(path))
            directory_id = uuid.uuid4().hex
        else:
            directory_id = decode(entry, MemberRecord).directory_id
            if known is None:
                text = (
                    f"node {self.node} has another directory, and this one is empty; start it with "
                    "its directory, or give this one a number of its own (kafka.node_id)"
                )
                raise Corruption(text, where=str(path))
            if (known.directory_id, known.node) != (directory_id, self.node):
                raise Corruption(f"it is not the directory of node {self.node}", where=str(path))
        self._refuse_second(meta)
        _check_age(path, meta, known, self.node)
        last = _incarnation(meta, self.node)
        record = self._record(directory_id, last + 1, known)
        write_down(kv, record)
        if entry is None:
            self._enter(meta, directory_id, clock, path)
        identity = take_incarnation(meta, self.node)
        if identity.incarnation != last + 1:  # Another process was faster.
            record = self._record(directory_id, identity.incarnation, known)
            write_down(kv, record)
        self._directory = record
        self.mark = DirectoryMark(kv, meta, identity, record, clock)
        return identity

    def _record(
        self, directory_id: str, incarnation: int, known: DirectoryRecord | None
    ) -> DirectoryRecord:
        """What the directory says of itself from now on: `known` is what it has said before."""
        boot_id = _boot_id()
        if known is None:
            made_in = kept_since = incarnation
        else:
            made_in = known.made_in
            is_kept = known.boot_id in ("", boot_id)
            kept_since = known.kept_since if is_kept else incarnation
        return DirectoryRecord(
            directory_id,
            self.node,
            incarnation,
            made_in=made_in,
            kept_since=kept_since,
            boot_id=boot_id,
        )

    def continuous_since(self, config: TopicConfig) -> int:
        """The incarnation since which nothing was lost of what this node has reported as durable,
        of a topic with these options."""
        is_synced = config.durability is Durability.FSYNC
        return self._directory.made_in if is_synced else self._directory.kept_since

    def _refuse_second(self, meta: MetaStore) -> None:
        """InvalidArgument if a process that is this node answers: it has another directory, or this
        one is a copy."""
        entry = meta.get(node_key(self.node))
        address = "" if entry is None else decode(entry, NodeRecord).peers
        if not address:
            return
        where = split_address(address)
        asking = PeerNetwork(self.node, self.secret, lambda _: where, self._certificates)
        try:
            run_blocking(_answers(asking, self.node))
        except FirnError:
            return  # What is listed has ended, or will not serve any more when it goes on.
        finally:
            asking.close()
        text = (
            f"node {self.node} runs already and answers at {address}; stop it first, or give "
            "this one a number of its own"
        )
        raise InvalidArgument("kafka.node_id", text)

    def _enter(self, meta: MetaStore, directory_id: str, clock: Clock, path: Path) -> None:
        key = member_key(self.node)
        record = MemberRecord(node=self.node, directory_id=directory_id, joined_ms=clock.now_ms())
        try:
            meta.txn([Compare.absent(key)], {key: encode(record)})
        except TxnConflict:
            text = f"another directory has become node {self.node}"
            raise Corruption(text, where=str(path)) from None

    def begin(
        self, meta: MetaStore, cache: MetaCache, shards: MetaShards, identity: NodeIdentity
    ) -> Cluster:
        self.cluster = Cluster(
            meta,
            cache,
            shards,
            identity,
            self.secret,
            self._certificates,
            replication_factor=self.config.replication_factor,
        )
        self._waiting = ThreadPoolExecutor(_FORWARD_THREADS, thread_name_prefix="firn-forward")
        return self.cluster

    def close(self) -> None:
        self.cluster.close()
        self._waiting.shutdown(cancel_futures=True)

    def driver(
        self, local: EngineStorageAdapter, engine: Engine, catalog: TopicCatalog, clock: Clock
    ) -> ClusterDriver:
        return ClusterDriver(local, engine, self.cluster, catalog, self._waiting, clock, self.mover)

    def move_by(
        self, catalog: TopicCatalog, engines: Mapping[str, Engine], snapshots: SnapshotFiles
    ) -> None:
        """Makes what gives shards to other nodes, and takes them."""
        self.mover = ShardMover(self.cluster, catalog, engines, snapshots, self._waiting)

    def replicate(self, replicas: Replicas, catalog: TopicCatalog, clock: Clock) -> None:
        """Begins to keep this node's replicas of shards that several nodes have."""

        def config_of(topic_id: str) -> TopicConfig | None:
            topic = catalog.registered(topic_id)
            return None if topic is None else topic.config

        self.replication = ReplicationDriver(
            self.cluster,
            replicas,
            config_of,
            self.continuous_since,
            clock,
            session_ttl_s=self.config.session_ttl_ms / 1000,
        )
        self.cluster.on_session = self.replication.session_renewed
        self.replication.start()

    def serve(
        self,
        catalog: TopicCatalog,
        drivers: dict[str, EngineStorageAdapter],
        follower: ShardFollower,
        holder: HolderService,
    ) -> None:
        """Begins to answer other nodes."""
        self.service = ShardService(
            self.cluster, catalog, drivers, follower, self.replication.wait_led
        )
        self.holder = holder
        self.service.others |= holder.handlers
        self.service.others[MOVE.name] = self.mover.serve_move
        self.service.others[TAKE_SNAPSHOT.name] = self.mover.serve_snapshot
        self.peer_port = self.cluster.network.listen(
            self.config.host, self.config.port, self.service.begin
        )

    def register(
        self,
        clock: Clock,
        health: Health,
        kafka: str,
        http: str,
        on_superseded: Callable[[], None],
    ) -> None:
        """Lists the node: clients are sent to it, and other nodes reach it."""
        host = self.config.advertised_host or reachable_host(self.config.host).strip("[]")
        identity = self.cluster.identity
        record = NodeRecord(
            node=identity.node,
            incarnation=identity.incarnation,
            registered_ms=clock.now_ms(),
            kafka=kafka,
            peers=joined_address(host, self.peer_port),
            http=http,
        )
        try:
            self.cluster.registration = Registration(
                self.cluster.store,
                identity,
                record,
                on_superseded,
                partial(self._renewed, health),
                ttl_s=self.config.session_ttl_ms / 1000,
            )
            self.cluster.renewed(None)
            self._keep_address(self.cluster.store, kafka)
        except TxnConflict:
            raise NodeUnavailable(self.node, "another process has registered it") from None
        self.cluster.catch_up()

    def _keep_address(self, meta: MetaStore, kafka: str) -> None:
        """Clients are told of the node while it is away, too."""
        entry = meta.get(member_key(self.node))
        record = None if entry is None else decode(entry, MemberRecord)
        if entry is not None and record is not None and record.kafka != kafka:
            changed = msgspec.structs.replace(record, kafka=kafka)
            meta.txn([Compare.unchanged(entry)], {entry.key: encode(changed)})

    def _renewed(self, health: Health, error: FirnError | None) -> None:
        if error is None:
            health.clear(ProblemKind.METADATA_AWAY, "")
        else:
            health.report(ProblemKind.METADATA_AWAY, "", error)
        self.cluster.renewed(error)

    def unregister(self) -> None:
        """Ends the listing, before the node stops to answer."""
        if self.cluster.registration is not None:
            self.cluster.registration.close()


def _cluster_record(meta: MetaStore, clock: Clock) -> ClusterRecord:
    """What all nodes share; the first one makes it."""
    while True:
        entry = meta.get(CLUSTER)
        if entry is not None:
            return decode(entry, ClusterRecord)
        record = ClusterRecord(
            cluster_id=uuid.uuid4().hex, secret=os.urandom(_SECRET_BYTES), made_ms=clock.now_ms()
        )
        try:
            meta.txn([Compare.absent(CLUSTER)], {CLUSTER: encode(record)})
        except TxnConflict:
            continue
        return record


def _check_age(path: Path, meta: MetaStore, known: DirectoryRecord | None, node: int) -> None:
    last = _incarnation(meta, node)
    if known is not None and known.incarnation < last:
        text = (
            f"it is an old copy of node {node}'s directory: it was last started as incarnation "
            f"{known.incarnation}, the node as {last}; start the node with its present directory"
        )
        raise Corruption(text, where=str(path))
    if known is not None:
        check_mark(path, meta, known)


def _incarnation(meta: MetaStore, node: int) -> int:
    entry = meta.get(incarnation_key(node))
    return 0 if entry is None else decode(entry, Incarnation).incarnation


async def _answers(asking: PeerNetwork, node: int) -> None:
    await asking.call(node, PING, b"", lambda value, raw: None, timeout_s=_SECOND_S)


def _boot_id() -> str:
    """Of the machine's present boot; another one at every call where the system does not tell."""
    try:
        return _BOOT_ID.read_text("ascii").strip()
    except OSError:
        return uuid.uuid4().hex
