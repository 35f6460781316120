"""The meta service in real processes in front of a real etcd: any of them may die."""

from __future__ import annotations

import os
import random
import signal
import threading
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from firnmq.errors import (
    AlreadyExists,
    CreationTimedOut,
    FirnError,
    InvalidArgument,
    StaleIncarnation,
    StorageFailed,
    TimedOut,
    TopicNotFound,
)
from firnmq.meta import MetaCache, SessionLapsed
from firnmq.meta.etcd import EtcdMetaStore
from firnmq.meta.records import SHARDS, TOPICS, ShardRecord, TopicRecord, TopicState, decode
from firnmq.meta.service import meta_service_pb2 as pb
from firnmq.meta.service.client import MetaServiceClient
from firnmq.meta.service.election import CONTROLLER_KEY
from firnmq.meta.service.server import ServiceFiles
from firnmq.testing.etcd import EtcdCluster, free_ports
from firnmq.testing.tcp_proxy import TcpProxy
from tests.integration.meta.etcds import etcd_program
from tests.integration.meta.following import Checker
from tests.integration.meta.meta_role import MetaProcess
from tests.integration.security.conftest import Authority

SOON_S = 60.0
_OPTIONS = {"storage.type": "EngineSegment"}


class Cluster:
    """Processes of the service, each with its own directory and port, and one etcd."""

    def __init__(self, path: Path, etcd: EtcdCluster, count: int) -> None:
        self._path = path
        self._etcd = etcd
        self.ports = free_ports(count)
        self.processes: dict[int, MetaProcess] = {}
        for number in range(count):
            self.start(number)
        self.store = etcd.store()
        self.addresses = [f"127.0.0.1:{port}" for port in self.ports]
        self.client = MetaServiceClient(self.addresses, call_s=20.0)

    def start(self, number: int) -> None:
        settings = {
            "FIRN_ETCD_ENABLED": "false",
            "FIRN_META_ENDPOINTS": ",".join(self._etcd.endpoints),
            "FIRN_META_CALL_TIMEOUT_MS": 2_000,
            "FIRN_SERVICE_ENABLED": "true",
            "FIRN_SERVICE_PORT": self.ports[number],
            "FIRN_SERVICE_NAME": f"p{number}",
        }
        self.processes[number] = MetaProcess(self._path / f"p{number}", settings)

    def controller(self, *, other_than: str = "") -> int:
        """The process that is the controller."""
        revision = self.store.range("none").revision
        watch = self.store.watch(CONTROLLER_KEY, revision + 1)
        try:
            while True:
                entry = self.store.get(CONTROLLER_KEY)
                if entry is not None and entry.value.decode() != other_than:
                    return int(entry.value.decode()[1:])
                watch.take(1.0)
        finally:
            watch.close()

    def stop(self) -> None:
        self.client.close()
        for process in self.processes.values():
            process.stop()
        self.store.close()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(etcd_program(), tmp_path_factory.mktemp("etcd"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def cluster(etcd: EtcdCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("service"), etcd, 3)
    yield cluster
    cluster.stop()


@pytest.fixture
def cache(cluster: Cluster) -> Iterator[MetaCache]:
    cache = MetaCache(cluster.client)
    yield cache
    cache.close()


def registered(cluster: Cluster, node: int, ttl_s: float = 600.0) -> pb.RegisteredNode:
    request = pb.RegisterNodeRequest(node=node, ttl_ms=int(ttl_s * 1000))
    made: pb.RegisteredNode = cluster.client.call("RegisterNode", request)
    return made


def beat(node: pb.RegisteredNode) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        node=node.node, incarnation=node.incarnation, session_id=node.session_id
    )


def test_a_topic_from_its_making_to_its_end(cluster: Cluster, cache: MetaCache) -> None:
    client = cluster.client
    for node in (1, 2):
        registered(cluster, node)
    topic = client.create_topic("t1", 5, _OPTIONS, cache)
    assert (topic.state, topic.shard_count) == ("ready", 5)
    assert topic.options["storage.type"] == "EngineSegment"
    # The node's cache has all of it.
    names = [f"{topic.topic_id}_{seq}" for seq in range(5)]
    assert all(cache.get(f"shards/{name}") for name in names)
    assert all(cache.get(f"segments/{name}/0000000000") for name in names)
    shards = client.call("ListShards", pb.TopicRequest(name="t1")).shards
    assert [each.name for each in shards] == names
    assert {each.leader for each in shards} == {1, 2}
    segments = client.call("ListSegments", pb.SegmentsRequest(shard=names[0])).segments
    assert [(each.state, each.start, each.end) for each in segments] == [("active", 0, -1)]
    assert "t1" in {each.name for each in client.call("ListTopics", pb.ListRequest()).topics}
    with pytest.raises(AlreadyExists):
        client.create_topic("t1", 1, _OPTIONS, cache)
    with pytest.raises(InvalidArgument, match="not a topic option"):
        client.create_topic("t2", 1, {"colour": "red"}, cache)
    # A call whose answer was lost is made again.
    again = pb.CreateTopicRequest(name="t1", topic_id=topic.topic_id, shard_count=5)
    assert client.call("CreateTopic", again).topic_id == topic.topic_id
    client.call("DeleteTopic", pb.TopicRequest(name="t1"))
    with pytest.raises(TopicNotFound):
        client.call("DeleteTopic", pb.TopicRequest(name="t1"))
    with pytest.raises(TopicNotFound):
        client.call("DescribeTopic", pb.TopicRequest(name="t9"))


def test_nodes_register_and_lapse(cluster: Cluster) -> None:
    client = cluster.client
    first = registered(cluster, 7)
    client.call("Heartbeat", beat(first))
    second = registered(cluster, 7)
    assert second.incarnation == first.incarnation + 1
    with pytest.raises(StaleIncarnation) as caught:
        client.call("Heartbeat", beat(first))
    assert (caught.value.node, caught.value.current) == (7, second.incarnation)
    assert 7 in {each.node for each in client.call("ListNodes", pb.ListRequest()).nodes}
    client.call("LeaveNode", beat(second))
    assert 7 not in {each.node for each in client.call("ListNodes", pb.ListRequest()).nodes}
    with pytest.raises(SessionLapsed):
        client.call("Heartbeat", beat(second))
    with pytest.raises(InvalidArgument):
        client.call("RegisterNode", pb.RegisterNodeRequest(node=7))


def test_offsets_of_groups(cluster: Cluster) -> None:
    client = cluster.client
    group = "readers of α/β %"
    offsets = {f"shard_{seq}": pb.Offset(offset=seq, metadata="m") for seq in range(300)}
    client.call("CommitOffsets", pb.CommitOffsetsRequest(group=group, offsets=offsets))
    found = client.call("GetOffsets", pb.GetOffsetsRequest(group=group)).offsets
    assert {shard: each.offset for shard, each in found.items()} == {
        shard: each.offset for shard, each in offsets.items()
    }
    assert not client.call("GetOffsets", pb.GetOffsetsRequest(group="readers")).offsets
    with pytest.raises(InvalidArgument):
        client.call("GetOffsets", pb.GetOffsetsRequest(group=""))


@pytest.mark.slow
def test_any_process_may_be_killed_and_no_topic_is_half_made(
    cluster: Cluster, cache: MetaCache
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    checker = Checker(cache)
    registered(cluster, 1)
    made: dict[str, str] = {}
    failed: list[str] = []
    stopping = threading.Event()

    def create() -> None:
        number = 0
        while not stopping.is_set():
            number += 1
            name = f"churn{number}"
            try:
                made[name] = cluster.client.create_topic(name, 3, _OPTIONS, cache).topic_id
            except (CreationTimedOut, TimedOut, StorageFailed):
                failed.append(name)

    creator = threading.Thread(target=create)
    creator.start()
    try:
        for _ in range(4):
            # 1. The controller, or one of the others, is killed and comes back.
            number = cluster.controller() if rng.random() < 0.5 else rng.randrange(3)
            cluster.processes[number].kill()
            cluster.start(number)
            before = len(made) + len(failed)
            while len(made) + len(failed) <= before and creator.is_alive():
                cache.wait_for_change(cache.revision, 1.0)
    finally:
        stopping.set()
        creator.join(SOON_S)
    assert not creator.is_alive()
    assert made
    # 2. Topics are whole or gone; what was answered is there.
    settle(cluster)
    topics = [decode(each, TopicRecord) for each in cluster.store.range(TOPICS).entries]
    ready = {each.name: each for each in topics if each.name.startswith("churn")}
    assert {name: ready[name].topic_id for name in made} == made
    shards = [decode(each, ShardRecord) for each in cluster.store.range(SHARDS).entries]
    for topic in ready.values():
        own = [each for each in shards if each.topic_id == topic.topic_id]
        assert len(own) == topic.shard_count, f"seed {seed}: {topic.name}"
    known = {each.topic_id for each in topics}
    assert {each.topic_id for each in shards} <= known, "a shard without a topic"
    assert len({each.uid for each in shards}) == len(shards)
    # 3. The cache has missed nothing.
    checker.check(cluster.store.range(""), SOON_S)


def settle(cluster: Cluster) -> None:
    """Until no topic is being made, or removed before it was ready."""
    watch = cluster.store.watch(TOPICS, cluster.store.range("none").revision + 1)
    try:
        while True:
            topics = [decode(each, TopicRecord) for each in cluster.store.range(TOPICS).entries]
            if not [
                each for each in topics if each.state is not TopicState.READY and not each.was_ready
            ]:
                return
            watch.take(1.0)
    finally:
        watch.close()


@pytest.mark.slow
def test_a_controller_that_stands_still_in_the_middle_of_a_topic_is_replaced(
    cluster: Cluster, cache: MetaCache
) -> None:
    registered(cluster, 1)
    old = cluster.controller()
    process = cluster.processes[old].process
    # 1. It stops after the first of many transactions for one topic.
    topic_id = uuid.uuid4().hex
    watch = cluster.store.watch(f"shards/{topic_id}", cluster.store.range("none").revision + 1)
    request = pb.CreateTopicRequest(name="large", topic_id=topic_id, shard_count=3_000)
    cluster.client.call("CreateTopic", request)
    while (changes := watch.take(SOON_S)) is not None and not changes.events:
        continue
    os.kill(process.pid, signal.SIGSTOP)
    watch.close()
    try:
        # 2. Another process finishes the topic, and makes others.
        assert cluster.controller(other_than=f"p{old}") != old
        settle(cluster)
        cluster.client.create_topic("while-one-stands-still", 2, _OPTIONS, cache)
    finally:
        os.kill(process.pid, signal.SIGCONT)
    # 3. It goes on as one of the others, and serves; what it had in mind has changed nothing.
    client = MetaServiceClient([cluster.addresses[old]])
    own = MetaCache(client)
    client.create_topic("through-the-old-one", 2, _OPTIONS, own)
    assert client.call("GetController", pb.ListRequest()).name != f"p{old}"
    shards = client.call("ListShards", pb.TopicRequest(name="large")).shards
    assert [each.name for each in shards] == [f"{topic_id}_{seq}" for seq in range(3_000)]
    everything = [decode(each, ShardRecord) for each in cluster.store.range(SHARDS).entries]
    assert len({each.uid for each in everything}) == len(everything)
    own.close()
    client.close()


@pytest.mark.slow
def test_a_cache_misses_nothing_over_broken_cut_and_slow_connections(
    cluster: Cluster, etcd: EtcdCluster
) -> None:
    proxies = [TcpProxy(("127.0.0.1", port)) for port in cluster.ports]
    with ExitStack() as opened:
        for proxy in proxies:
            opened.callback(proxy.stop)
        client = MetaServiceClient([proxy.endpoint for proxy in proxies])
        opened.callback(client.close)
        cache = MetaCache(client)
        opened.callback(cache.close)
        checker = Checker(cache)
        may_hear = threading.Event()
        may_hear.set()
        cache.listen("slow/", lambda _: _wait(may_hear))
        store = etcd.store()
        opened.callback(store.close)
        # 1. Connections break while there are changes.
        for number in range(60):
            write(store, number)
            if number % 10 == 5:
                for proxy in proxies:
                    proxy.break_all()
        # 2. Nothing passes, and what was missed is no longer kept.
        for proxy in proxies:
            proxy.hold()
        for number in range(60, 120):
            revision = write(store, number)
        store.compact(revision)
        for proxy in proxies:
            proxy.break_all()
            proxy.release()
        checker.check(store.range(""), SOON_S)
        # 3. A listener stands still while there are more changes than any queue holds.
        may_hear.clear()
        store.txn(puts={"slow/1": b""})
        for number in range(120, 420):
            write(store, number)
        may_hear.set()
        checker.check(store.range(""), SOON_S)
        store.txn(deletes=[entry.key for entry in store.range("follow/").entries])


def _wait(event: threading.Event) -> None:
    assert event.wait(SOON_S)


def write(store: EtcdMetaStore, number: int) -> int:
    """Changes some keys and deletes another."""
    puts = {f"follow/{(number + step) % 7}": b"%d" % number for step in range(3)}
    gone = f"follow/{(number + 4) % 7}"
    return store.txn(puts=puts, deletes=[gone])


def test_a_caller_gives_up_in_time_and_leaves_nothing(cluster: Cluster, cache: MetaCache) -> None:
    nodes = cluster.client.call("ListNodes", pb.ListRequest()).nodes
    for node in nodes:  # Without nodes no shard can be placed.
        cluster.store.txn(deletes=[f"nodes/{node.node:010d}"])
    with pytest.raises(CreationTimedOut, match="it did not come up within 1 s"):
        cluster.client.create_topic("nowhere", 2, _OPTIONS, cache, topic_wait_s=1.0)
    settle(cluster)
    assert cluster.store.get("topics/nowhere") is None
    nobody = MetaServiceClient(["127.0.0.1:1"], call_s=0.3)
    with pytest.raises(TimedOut, match="no process of the meta service at 127"):
        nobody.call("ListNodes", pb.ListRequest())
    nobody.close()
    with pytest.raises(FirnError):
        nobody.call("ListNodes", pb.ListRequest())


def test_with_tls_only_clients_with_a_certificate_are_served(
    etcd: EtcdCluster, tmp_path: Path
) -> None:
    authority, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    own, other = authority.issue("node"), stranger.issue("stranger")
    port = free_ports(1)[0]
    settings = {
        "FIRN_ETCD_ENABLED": "false",
        "FIRN_META_ENDPOINTS": etcd.endpoints[0],
        "FIRN_SERVICE_ENABLED": "true",
        "FIRN_SERVICE_PORT": port,
        "FIRN_SERVICE_CA_FILE": authority.certificate,
        "FIRN_SERVICE_CERTIFICATE_FILE": own.certificate,
        "FIRN_SERVICE_KEY_FILE": own.key,
    }
    process = MetaProcess(tmp_path / "meta", settings)
    clients = []
    try:
        for tls in (
            ServiceFiles(
                ca_file=authority.certificate, certificate_file=own.certificate, key_file=own.key
            ),
            ServiceFiles(
                ca_file=authority.certificate,
                certificate_file=other.certificate,
                key_file=other.key,
            ),
            None,
        ):
            clients.append(MetaServiceClient([f"127.0.0.1:{port}"], tls=tls, call_s=20.0))
        clients[0].call("ListNodes", pb.ListRequest())
        for refused in clients[1:]:
            with pytest.raises(TimedOut):
                refused.call("ListNodes", pb.ListRequest(), call_s=0.5)
    finally:
        for client in clients:
            client.close()
        process.stop()
