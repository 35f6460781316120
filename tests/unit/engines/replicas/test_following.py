"""A log that follows has its leader's bytes, and reads the same once it leads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import run_blocking
from firnmq.engines import Acks
from firnmq.engines.replicas import ReplicaFailed, check_batches
from firnmq.errors import AppendTimedOut, Corruption, NotLeader, ShardNotFound, TimedOut
from tests.conformance.lab import Shard
from tests.conformance.test_high_watermark import batch, records, seen, with_waiting
from tests.unit.engines.replicas.lab import SHARD, WAIT_S_MAX, Replicas
from tests.unit.engines.transactional import TransactionalProducer


def found_by_readers(shard: Shard) -> dict[str, object]:
    """What reads give that does not depend on which segments there are."""
    found = with_waiting(seen(shard))
    return {
        what: each
        for what, each in found.items()
        if what.startswith(("offset", "tags", "key", "history", "time", "newest", "raw", "refused"))
    }


@pytest.fixture(params=["partition-per-file", "shared-file"])
def replicas(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Replicas]:
    lab = Replicas(tmp_path, **{"segment.layout": request.param})
    yield lab
    lab.close()


def test_followers_have_the_leaders_bytes(replicas: Replicas) -> None:
    """1. The leader appends. 2. The followers fetch, in parts. 3. All have the same bytes, CRC and
    facts, and the leader's clients see them."""
    leader = replicas.leader
    tickets = [leader.submit(batch(*range(n, n + 3))) for n in range(0, 30, 3)]
    replicas.pull(max_bytes=400)
    assert len({node.reached for node in replicas.nodes}) == 1
    assert len({node.bytes_of(0, 30) for node in replicas.nodes}) == 1
    assert leader.shard.end == 0, "nothing is shown before the high watermark moves"
    replicas.advance(12)
    assert leader.shard.end == 12
    replicas.advance()
    assert [each.wait(0).base_offset for each in tickets] == list(range(0, 30, 3))
    assert leader.shard.offsets() == list(range(30))


def test_a_follower_that_leads_reads_as_the_leader_did(replicas: Replicas) -> None:
    """1. Records, deletions and a transaction are replicated. 2. A follower leads the next segment.
    3. It reads the same by offset, key, tag and time, and takes appends."""
    leader = replicas.leader
    for number in range(12):
        replicas.append(batch(number, number + 1))
    producer = TransactionalProducer(7)
    replicas.append(producer.batch(leader.shard, *records(3, 4)))
    before = found_by_readers(leader.shard)
    assert len(before) > 50
    replicas.fail_over(replicas.nodes[1])
    assert found_by_readers(replicas.leader.shard) == before
    assert replicas.append(batch(5)).base_offset == 26
    assert replicas.append(batch(6, 7)).base_offset == 27
    assert len({node.reached for node in replicas.nodes}) == 1


def test_only_the_leader_is_seen_by_clients(replicas: Replicas) -> None:
    leader, follower = replicas.nodes[:2]
    replicas.append(batch(1))
    with pytest.raises((ShardNotFound, NotLeader)):
        follower.shard.append_raw(batch(1))
    replicas.fail_over(follower)
    with pytest.raises((ShardNotFound, NotLeader)):
        leader.shard.append_raw(batch(1))
    assert follower.shard.offsets() == [0]


def test_acknowledgements_need_what_was_asked_for(replicas: Replicas) -> None:
    leader = replicas.leader
    one = leader.submit(batch(1), Acks.LEADER)
    quorum = leader.submit(batch(2), Acks.QUORUM)
    everyone = leader.submit(batch(3), Acks.ALL)
    assert one.wait(0).base_offset == 0
    for ticket in (quorum, everyone):
        with pytest.raises(TimedOut):
            ticket.wait(0)
    leader.lab.store.replicas.advance_quorum(leader.id, 1)
    with pytest.raises(TimedOut):
        quorum.wait(0)
    leader.lab.store.replicas.advance_quorum(leader.id, 3)
    assert quorum.wait(0).base_offset == 1
    with pytest.raises(TimedOut):
        everyone.wait(0)
    leader.advance(3)
    assert everyone.wait(0).base_offset == 2


def test_followers_may_fetch_before_the_leader_has_synced(replicas: Replicas) -> None:
    replicas.leader.submit(batch(1))
    assert replicas.leader.heard.turns == ["staged", "durable"]


def test_batches_that_do_not_follow_are_refused(replicas: Replicas) -> None:
    """A leader takes none; a follower none that are damaged, of another place or of another leader.
    What it has stays as it is."""
    leader, follower = replicas.nodes[:2]
    leader.submit(batch(1))
    leader.submit(batch(2))
    first, second = leader.bytes_of(0, 1), leader.bytes_of(1, 2)
    with pytest.raises(Corruption, match="offset gap"):
        follower.stage(second)
    with pytest.raises(Corruption, match="crc mismatch"):
        follower.stage(first[:-1] + b"?")
    with pytest.raises(Corruption, match="leader epoch 0, not 1"):
        check_batches(first, follower.end, follower.spec.config, 1)
    with pytest.raises(Corruption):
        follower.stage(first + second[:-1])
    checked = check_batches(first, follower.end, follower.spec.config, 0)
    store = follower.lab.store.replicas
    assert follower.ask(store.stage, follower.id, checked, 0).end == checked.end
    with pytest.raises(ReplicaFailed, match="ends at 1"):
        follower.ask(store.stage, follower.id, checked, 0)
    with pytest.raises(ReplicaFailed, match="leads"):
        leader.ask(leader.lab.store.replicas.stage, leader.id, checked, 0)
    replicas.pull()
    assert len({node.reached for node in replicas.nodes}) == 1


def test_a_leader_appends_only_what_its_driver_permits(replicas: Replicas) -> None:
    leader = replicas.leader
    refusal = NotLeader(SHARD, 0, None)
    leader.heard.refused = lambda acks: refusal if acks is Acks.ALL else None
    with pytest.raises(NotLeader):
        run_blocking(leader.lab.engine.submit(SHARD, batch(1))).wait(WAIT_S_MAX)
    assert leader.submit(batch(2), Acks.LEADER).wait(0).base_offset == 0


def test_what_waits_when_a_leader_stops_has_an_unknown_outcome(replicas: Replicas) -> None:
    """The records stay, and are there if the next leader has them."""
    leader = replicas.leader
    tickets = [leader.submit(batch(n), acks) for n, acks in enumerate((Acks.ALL, Acks.QUORUM))]
    replicas.pull(replicas.nodes[1])
    replicas.fail_over(replicas.nodes[1])
    for ticket in tickets:
        with pytest.raises(AppendTimedOut) as raised:
            ticket.wait(0)
        assert raised.value.is_unknown
    assert replicas.leader.shard.offsets() == [0, 1]


def test_a_tail_that_no_other_has_is_truncated(replicas: Replicas) -> None:
    """1. The leader alone has the last records, and one follower more than the other. 2. A seal at
    the end of the longer follower truncates the leader and completes the shorter one."""
    leader, longer, shorter = replicas.nodes
    replicas.append(batch(1, 2))
    leader.submit(batch(3))
    replicas.pull(longer)
    leader.submit(batch(4, 5))
    leader.submit(batch(6))
    assert [node.end.offset for node in replicas.nodes] == [6, 3, 2]
    replicas.fail_over(shorter, source=longer)
    assert {node.end.offset for node in replicas.nodes} == {3}
    assert shorter.shard.offsets() == [0, 1, 2]
    assert replicas.append(batch(7)).base_offset == 3
    replicas.fail_over(leader)
    assert found_by_readers(leader.shard)["offset"] == [
        (0, b"value 1"),
        (1, b"value 2"),
        (2, b"value 3"),
        (3, b"value 7"),
    ]
    assert leader.shard.lab.store.verifier.verify(SHARD).findings == ()
