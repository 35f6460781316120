"""A planned roll of a log with replicas: its driver decides in place of the metadata."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from firnmq.disk import run_blocking
from firnmq.engines.replicas import ReplicaId
from firnmq.engines.shardlog.replica import ReplicaFailed
from firnmq.engines.shardlog.rolling import RollState
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import AppendTimedOut, NotLeader, TimedOut
from firnmq.index import RocksSegmentIndex
from firnmq.server import LocalStore
from tests.conformance.test_high_watermark import batch
from tests.unit.engines.replicas.lab import SHARD, WAIT_S_MAX, Heard, Replicas, decide


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    lab = Replicas(tmp_path)
    yield lab
    lab.close()


def test_the_leader_goes_on_with_the_next_segment(replicas: Replicas) -> None:
    """1. A roll freezes the leader, and appends are parked. 2. The driver has the segment sealed;
    the leader leads the next one. 3. Parked appends are stored there, and the followers follow."""
    leader = replicas.leader
    replicas.append(batch(1, 2))
    parked = []

    def seal_here(replica: ReplicaId, wanted: Seal) -> Seal:
        assert replica == (leader.spec.uid, 0)
        parked.append(run_blocking(leader.lab.engine.submit(SHARD, batch(3))))
        seal = replicas.seal_of(leader)
        assert (wanted.sealed.end_offset, wanted.sealed.crc) == leader.end
        decide(leader, seal)
        for node in replicas.followers:
            node.truncate(seal.sealed.end_offset)
            replicas.install(node, seal, leads=False)
        replicas.meta = seal.active
        return seal

    leader.heard.seals = seal_here
    leader.shard.roll()
    assert leader.id == (leader.spec.uid, 1)
    leader.lab.engine.reconfigure(SHARD, leader.log.spec.config)
    assert leader.log.spec.epoch == 1, "batches name it, whatever options the topic gets"
    leader.heard.wait_until(lambda: leader.id in leader.heard.durable_end)
    replicas.pull()
    replicas.advance()
    assert parked[0].wait(WAIT_S_MAX).base_offset == 2
    assert leader.shard.segment_bases == [0, 2]
    assert len({node.reached for node in replicas.nodes}) == 1
    replicas.fail_over(replicas.nodes[2])
    assert replicas.leader.shard.offsets() == [0, 1, 2]


def test_a_leader_that_is_killed_after_a_roll_has_the_next_segment(
    replicas: Replicas, tmp_path: Path
) -> None:
    """1. A leader rolls, and takes records that its followers get. 2. It is killed: what is in its
    files is all that is left. 3. It has to be opened with the segment of these records: opened with
    the sealed one, it would tell that it has none of them, and count all the same."""
    leader = replicas.leader
    replicas.append(batch(1, 2))

    def seal_here(_: ReplicaId, __: Seal) -> Seal:
        seal = replicas.seal_of(leader)
        decide(leader, seal)
        for node in replicas.followers:
            node.truncate(seal.sealed.end_offset)
            replicas.install(node, seal, leads=False)
        replicas.meta = seal.active
        seals.append(seal)
        return seal

    seals: list[Seal] = []
    leader.heard.seals = seal_here
    leader.shard.roll()
    ticket = leader.submit(batch(3))
    leader.heard.wait_until(lambda: leader.id in leader.heard.durable_end)
    replicas.pull()
    replicas.advance()
    assert ticket.wait(WAIT_S_MAX).base_offset == 2
    killed = tmp_path / "killed"
    shutil.copytree(leader.lab.path, killed)
    with closing(LocalStore(killed, background=False)) as store:
        store.replicas.begin(Heard())
        (seal,) = seals
        chain = [
            dataclasses.replace(each, holders=(0, 1, 2)) for each in (seal.sealed, seal.active)
        ]
        tail = store.replicas.tail_of(leader.spec, chain)
        assert tail is not None
        assert tail.seq == seal.active.seq
        # If that is not so all the same, the replica tells nothing.
        RocksSegmentIndex(store.kv, leader.spec.uid, seal.sealed.place).clear()
        with pytest.raises(ReplicaFailed, match="segment 0 before it is not complete"):
            store.replicas.tail_of(leader.spec, chain)


def test_another_node_leads_the_next_segment(replicas: Replicas) -> None:
    """1. The driver gives the next segment to another node. 2. What was parked is refused: nothing
    of it was stored. 3. The old leader follows."""
    leader, other = replicas.nodes[:2]
    replicas.append(batch(1, 2))
    parked = []

    def seal_elsewhere(_: ReplicaId, __: Seal) -> Seal:
        parked.append(run_blocking(leader.lab.engine.submit(SHARD, batch(3))))
        replicas.fail_over(other)
        raise NotLeader(SHARD, 0, 1)

    leader.heard.seals = seal_elsewhere
    with pytest.raises(NotLeader):
        leader.shard.roll()
    with pytest.raises(NotLeader):
        parked[0].wait(WAIT_S_MAX)
    assert replicas.append(batch(3)).base_offset == 2
    assert len({node.reached for node in replicas.nodes}) == 1
    assert leader.log.refusal is None, "it goes on as a follower"
    assert leader.log.rolling.state is RollState.IDLE


def test_appends_go_on_if_nothing_was_sealed(replicas: Replicas) -> None:
    leader = replicas.leader
    replicas.append(batch(1, 2))
    parked = []

    def refuse(_: ReplicaId, __: Seal) -> Seal:
        parked.append(run_blocking(leader.lab.engine.submit(SHARD, batch(3))))
        raise TimedOut("the replicas are behind")

    leader.heard.seals = refuse
    with pytest.raises(TimedOut, match="replicas are behind"):
        leader.shard.roll()
    mine = leader.id
    leader.heard.wait_until(lambda: leader.heard.durable_end[mine].offset == 3)
    replicas.pull()
    replicas.advance()
    assert parked[0].wait(WAIT_S_MAX).base_offset == 2
    assert leader.shard.segment_bases == [0]


def test_a_leader_that_is_deposed_while_it_waits_for_its_replicas(replicas: Replicas) -> None:
    """1. A roll waits for the high watermark. 2. Another node leads from the end that it has.
    3. The roll ends with that, and does not touch the next segment."""
    leader, other = replicas.nodes[:2]
    replicas.append(batch(1, 2))
    ticket = leader.submit(batch(3))
    replicas.pull(other)
    outcomes: list[BaseException] = []

    def roll() -> None:
        try:
            leader.shard.roll()
        except BaseException as error:
            outcomes.append(error)

    thread = threading.Thread(target=roll)
    thread.start()
    while not leader.log.rolling.is_frozen:
        thread.join(0.001)
    replicas.fail_over(other)
    thread.join(WAIT_S_MAX)
    assert [type(each) for each in outcomes] == [NotLeader]
    with pytest.raises(AppendTimedOut):
        ticket.wait(0)
    assert replicas.append(batch(4)).base_offset == 3
    assert len({node.reached for node in replicas.nodes}) == 1


def test_a_full_segment_asks_for_its_seal(tmp_path: Path) -> None:
    """1. The leader appends until its segment is full. 2. The driver has it sealed where all have
    it. 3. What arrived in between is in the next segment."""
    replicas = Replicas(tmp_path, **{"segment.bytes": 1024})
    leader = replicas.leader
    may_go_on = threading.Event()

    def seal_here(_: ReplicaId, __: Seal) -> Seal:
        assert may_go_on.wait(WAIT_S_MAX)
        seal = replicas.seal_of(leader)
        decide(leader, seal)
        for node in replicas.followers:
            replicas.install(node, seal, leads=False)
        replicas.meta = seal.active
        return seal

    leader.heard.seals = seal_here
    tickets = []
    while not leader.heard.is_asked_to_seal:
        tickets.append(leader.submit(batch(1, 2)))
        replicas.pull()
        replicas.advance()
    sealed_end = leader.end.offset
    tickets.append(run_blocking(leader.lab.engine.submit(SHARD, batch(3))))
    may_go_on.set()
    leader.lab.engine.wait_for_roll(SHARD)  # type: ignore[attr-defined]
    leader.heard.wait_until(lambda: leader.id in leader.heard.durable_end)
    replicas.pull()
    replicas.advance()
    bases = [each.wait(WAIT_S_MAX).base_offset for each in tickets]
    assert bases == list(range(0, 2 * len(tickets), 2))
    assert leader.shard.segment_bases == [0, sealed_end]
    assert len({node.reached for node in replicas.nodes}) == 1
    replicas.close()
