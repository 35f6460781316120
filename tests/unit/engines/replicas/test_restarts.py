"""What a replica has after a restart: everything that was reported as durable, and its fence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.engines.replicas import ReplicaFailed, ReplicaId
from firnmq.index import RocksSegmentIndex
from tests.conformance.test_high_watermark import batch, records
from tests.unit.engines.replicas.lab import SHARD, Replicas
from tests.unit.engines.transactional import TransactionalProducer


@pytest.fixture(params=["fsync", "os"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicas]:
    lab = Replicas(tmp_path, count=2, durability=request.param)
    yield lab
    lab.close()


@pytest.mark.parametrize("crashes", [False, True])
def test_a_follower_goes_on_where_it_was(replicas: Replicas, crashes: bool) -> None:
    """1. A follower has records below and above the high watermark. 2. It restarts: it has all of
    them, shows no more than was shown, and goes on fetching. 3. It can lead."""
    leader, follower = replicas.nodes
    producer = TransactionalProducer(7)
    replicas.append(batch(1, 2))
    replicas.append(producer.batch(leader.shard, *records(3)))
    leader.submit(batch(4, 5))
    replicas.pull()
    before = follower.reached
    follower.restart(crashes=crashes)
    assert follower.open(replicas.meta) == before
    assert follower.log.view.end_offset <= 3
    replicas.append(producer.batch(leader.shard, *records(6)))
    assert follower.reached == leader.reached
    replicas.fail_over(follower)
    assert follower.shard.offsets() == [0, 1]
    assert follower.shard.status.stable_offset == 2
    assert follower.shard.lab.store.verifier.verify(follower.spec.name).findings == ()


def test_a_leader_that_restarts_is_a_replica_like_others(replicas: Replicas) -> None:
    leader, follower = replicas.nodes
    replicas.append(batch(1))
    leader.submit(batch(2))
    before = leader.reached
    leader.restart(crashes=True)
    with pytest.raises(ReplicaFailed, match="may not lead"):
        leader.open(replicas.meta, leads=True)
    assert leader.open(replicas.meta) == before
    leader.fence(1)
    follower.fence(1)
    seal = replicas.seal_of(leader)
    for node in replicas.nodes:
        replicas.complete(node, seal, leader)
        replicas.install(node, seal, leads=node is follower)
    replicas.leader, replicas.meta = follower, seal.active
    assert follower.shard.offsets() == [0, 1]
    assert replicas.append(batch(3)).base_offset == 2


def test_a_fence_outlives_the_process(replicas: Replicas) -> None:
    _, follower = replicas.nodes
    other = ReplicaId(follower.spec.uid, 5)
    assert follower.fence(3).fence == 3
    assert follower.fence(2).fence == 3, "a fence never goes back"
    persist = follower.lab.store.replicas.persist_fence
    assert follower.ask(persist, follower.spec, other, 4, 77).end == (77, 0)
    follower.restart(crashes=True)
    store = follower.lab.store.replicas
    assert follower.ask(store.persist_fence, follower.spec, other, 5, 77).fence == 5
    assert store.fence_of(other) == 5
    assert follower.open(replicas.meta).fence == 3
    follower.restart()
    assert follower.open(replicas.meta).fence == 3


def test_the_index_of_a_follower_ends_at_the_high_watermark(replicas: Replicas) -> None:
    """So a truncation never has to undo entries."""
    leader, follower = replicas.nodes
    replicas.append(batch(1, 2))
    for number in range(3, 9):
        leader.submit(batch(number))
    replicas.pull(max_bytes=1)
    index = follower.log.tail.segment.index
    assert isinstance(index, RocksSegmentIndex)
    entries = index.keys
    assert {offset for _, offset, _ in entries()} == {0, 1}
    assert follower.log.pending_entry_count > 0
    replicas.advance(5)
    assert max(offset for _, offset, _ in entries()) == 4
    follower.truncate(6)
    assert max(offset for _, offset, _ in entries()) == 5


def test_followers_drop_what_retention_has_taken(replicas: Replicas) -> None:
    """1. The shard's start moves into its second segment. 2. The next round of upkeep drops the
    first one at the follower. 3. The follower leads, and starts there."""
    leader, follower = replicas.nodes
    replicas.append(batch(1, 2, 3))
    replicas.fail_over(leader)
    replicas.append(batch(4, 5, 6))
    files = follower.lab.path / "segments" / SHARD
    assert len(list(files.glob("*.log"))) == 2
    leader.shard.delete_before(4)
    (first,) = follower.lab.store.shards.chain(follower.spec.uid)[:1]
    follower.lab.store.shards.move_start(follower.spec.uid, 4, [first])
    follower.lab.store.replicas.housekeep()
    assert len(list(files.glob("*.log"))) == 1
    assert follower.log.view.start_offset == 4
    replicas.fail_over(follower)
    assert follower.shard.offsets() == [4, 5]
    assert follower.lab.store.verifier.verify(SHARD).findings == ()


def test_a_replica_that_was_away_when_its_segment_was_sealed(replicas: Replicas) -> None:
    """1. A follower stops with a part of the segment. 2. It is sealed, and the shard goes on.
    3. The follower comes back: its replica is completed, then it follows."""
    leader, follower = replicas.nodes
    replicas.append(batch(1, 2))
    follower.restart()
    for number in range(3, 7):
        leader.submit(batch(number))
    leader.stop_leading()
    seal = replicas.seal_of(leader)
    replicas.install(leader, seal, leads=True)
    replicas.meta = seal.active
    leader.submit(batch(9))
    chain = [seal.sealed, seal.active]
    tail = follower.lab.store.replicas.tail_of(follower.spec, chain)
    assert tail == seal.sealed
    assert follower.open(tail).end.offset == 2
    follower.stage(leader.bytes_of(2, 6, seq=0))
    replicas.install(follower, seal, leads=False)
    assert follower.lab.store.replicas.tail_of(follower.spec, chain) == seal.active
    replicas.pull()
    replicas.advance()
    assert follower.reached == leader.reached
    replicas.fail_over(follower)
    assert follower.shard.offsets() == list(range(7))
