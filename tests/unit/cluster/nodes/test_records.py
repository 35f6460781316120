"""What a node knows of the others, from records in the metadata."""

from __future__ import annotations

import dataclasses
import socket
from collections import Counter
from collections.abc import Awaitable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from firnmq.cluster.nodes.cluster import PING, Cluster
from firnmq.cluster.nodes.coordinators import SLOT_COUNT, Coordinators, slot_of
from firnmq.cluster.nodes.leaders import Leaders, Led
from firnmq.cluster.nodes.members import Members
from firnmq.cluster.nodes.registration import Registration
from firnmq.cluster.peers import Request, Served
from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import Successor
from firnmq.errors import AlreadyExists, Closed
from firnmq.meta import MetaCache, MetaShards, SqliteMetaStore, TxnConflict
from firnmq.meta.nodes import take_incarnation
from firnmq.meta.records import NodeRecord, Replica
from firnmq.testing import FakeClock

_WAIT_S = 20.0


class View:
    """One node's store, cache and what it makes of them."""

    def __init__(self, path: Path, node: int) -> None:
        self.stack = ExitStack()
        self.clock = FakeClock()
        self.store = SqliteMetaStore(path / "meta.db", is_shared=True, clock=self.clock)
        self.stack.callback(self.store.close)
        self.cache = MetaCache(self.store)
        self.stack.callback(self.cache.close)
        self.identity = take_incarnation(self.store, node)
        self.members = Members(self.cache, node)
        self.leaders = Leaders(self.cache)
        self.coordinators = Coordinators(
            self.store, self.cache, lambda: list(self.members.registered.values())
        )
        self.shards = MetaShards(self.store, self.cache, self.identity, FakeClock(), is_shared=True)
        self.superseded: list[int] = []

    def cluster(self) -> Cluster:
        found = Cluster(self.store, self.cache, self.shards, self.identity, b"s" * 32)
        self.stack.callback(found.network.close)
        return found

    def register(self, peers: str = "[::1]:7") -> Registration:
        record = NodeRecord(
            node=self.identity.node,
            incarnation=self.identity.incarnation,
            registered_ms=0,
            kafka="127.0.0.1:9092",
            peers=peers,
        )
        made = Registration(
            self.store,
            self.identity,
            record,
            lambda: self.superseded.append(self.identity.node),
            ttl_s=30.0,
        )
        self.stack.callback(made.close)
        self.catch_up()
        return made

    def catch_up(self) -> None:
        self.cache.wait_for_revision(self.store.range("nodes/").revision, _WAIT_S)


@pytest.fixture
def views(tmp_path: Path) -> Iterator[list[View]]:
    with ExitStack() as stack:
        found = [View(tmp_path, node) for node in (1, 2, 3)]
        for view in found:
            stack.callback(view.stack.close)
        yield found


def test_nodes_are_known_while_they_are_registered(views: list[View]) -> None:
    one, two, _ = views
    gone: list[int] = []
    one.members.on_gone = gone.append
    registration = two.register()
    one.catch_up()
    assert one.members.address_of(2) == ("::1", 7)
    assert one.members.address_of(3) is None
    registration.close()
    one.catch_up()
    assert one.members.address_of(2) is None
    assert gone == [2]


def test_a_process_whose_node_was_registered_again_cannot_list_it(views: list[View]) -> None:
    one = views[0]
    take_incarnation(one.store, 1)
    with pytest.raises(TxnConflict):
        one.register()


def test_a_shard_has_just_moved_for_a_minute(views: list[View]) -> None:
    one, two, _ = views
    clock = FakeClock()
    leaders = Leaders(two.cache, clock)
    (uid,) = (
        each.uid
        for each in one.shards.add_shards(
            ["t_0"], TopicConfig(), None, replicas={"t_0": (Replica(1, 1),)}
        )
    )
    two.catch_up()
    assert not leaders.has_just_moved("t_0")
    active = one.shards.chain(uid)[-1]
    sealed = active.become_sealed(end_offset=0, length=0, crc=0, max_timestamp=-1, now_ms=1)
    following = dataclasses.replace(active, seq=1)
    one.shards.roll(uid, sealed, following, Successor(2, 1))
    two.catch_up()
    assert leaders.has_just_moved("t_0")
    clock.advance(59_999)
    assert leaders.has_just_moved("t_0")
    clock.advance(1)
    assert not leaders.has_just_moved("t_0")


def test_leaders_are_those_of_the_records(views: list[View]) -> None:
    one, two, _ = views
    leaders = {"t_0": (Replica(2, 1),), "t_1": (Replica(1, 1),), "t_2": (Replica(2, 1),)}
    one.shards.add_shards(list(leaders), TopicConfig(), None, replicas=leaders)
    two.catch_up()
    assert two.leaders.get("t_0") == Led(uid=1, leader=2, epoch=0)
    assert (two.leaders.count_of(1), two.leaders.count_of(2)) == (1, 2)
    assert two.leaders.shards_of("t") == ["t_0", "t_1", "t_2"]
    assert [spec.name for spec in two.shards.shards()] == ["t_0", "t_2"]
    assert two.shards.active_seq(3) == 0  # The number of a shard that node 1 has added.
    one.shards.remove_shards(["t_0", "t_2"])
    two.catch_up()
    assert two.leaders.get("t_0") is None
    assert (two.leaders.count_of(1), two.leaders.count_of(2)) == (1, 0)


def test_coordinators_are_spread_and_stay(views: list[View]) -> None:
    for view in views:
        view.register()
    for view in views:
        view.catch_up()
    names = [f"group{number}" for number in range(1000)]
    assert {slot_of(name) for name in names} == set(range(SLOT_COUNT))
    first = views[0].coordinators
    found = {name: first.find(name) for name in names if not views[0].catch_up()}
    told = Counter(found.values())
    assert set(told) == {1, 2, 3}
    for view in views:
        view.catch_up()
        assert {name: view.coordinators.get(name) for name in names} == found
        assert all(20 <= count <= 23 for count in view.coordinators.counts().values())


def test_without_nodes_there_is_no_coordinator(views: list[View]) -> None:
    assert views[0].coordinators.find("g") is None


def test_a_topic_is_claimed_although_the_session_has_ended(views: list[View]) -> None:
    one = views[0]
    cluster = one.cluster()
    cluster.registration = one.register()
    first = cluster.registration.session
    one.clock.advance(60_000)  # The node stood still.
    refusal = AlreadyExists("topic", "t")
    with cluster.claim_topic("t", refusal):
        assert cluster.registration.session is not first
        one.catch_up()
        assert set(one.members.registered) == {1}
        with pytest.raises(AlreadyExists), cluster.claim_topic("t", refusal):
            pass
    with cluster.claim_topic("t", refusal):
        pass


def test_a_node_that_was_replaced_claims_nothing(views: list[View]) -> None:
    one = views[0]
    cluster = one.cluster()
    cluster.registration = one.register()
    one.clock.advance(60_000)
    take_incarnation(one.store, 1)
    with pytest.raises(Closed), cluster.claim_topic("t", AlreadyExists("topic", "t")):
        pass


def test_nodes_that_do_not_answer_get_no_shards_and_no_groups(views: list[View]) -> None:
    one, two, three = views
    cluster, other = one.cluster(), two.cluster()

    async def pong() -> Served:
        return Served(b"")

    async def begin(request: Request) -> Awaitable[Served]:
        assert request.operation == PING
        return pong()

    port = other.network.listen("127.0.0.1", 0, begin)
    with socket.socket() as deaf, socket.socket() as gone:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()  # As of a process that stands still: it takes connections and is silent.
        gone.bind(("127.0.0.1", 0))
        one.register()
        two.register(f"127.0.0.1:{port}")
        for silent in (deaf, gone):
            listing = three.register(f"127.0.0.1:{silent.getsockname()[1]}")
            one.catch_up()
            assert set(one.members.registered) == {1, 2, 3}
            placed = cluster.place([f"t_{seq}" for seq in range(4)])
            assert Counter(first.node for (first,) in placed.values()) == {1: 2, 2: 2}
            assert cluster.coordinators.find("group") in (1, 2)
            listing.close()
