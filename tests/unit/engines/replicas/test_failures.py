"""Replicas on disks that fail: what was reported as durable is there when a log is reopened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import run_blocking
from firnmq.engines.shardlog import replica_turn
from firnmq.errors import StorageFailed, TimedOut
from tests.conformance.test_high_watermark import batch
from tests.unit.engines.replicas.lab import SHARD, WAIT_S_MAX, Node, Replicas, ticket_of


@pytest.fixture
def replicas(tmp_path: Path) -> Iterator[Replicas]:
    lab = Replicas(tmp_path)
    yield lab
    lab.close()


def fails(*_: object, **__: object) -> None:
    raise OSError(5, "told to fail")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as patch:
        yield patch


def break_disk(node: Node, patch: pytest.MonkeyPatch) -> None:
    files = node.lab.store.files
    patch.setattr(files, "write_at", fails)
    patch.setattr(files, "sync", fails)


def test_a_follower_whose_disk_fails(replicas: Replicas, broken: pytest.MonkeyPatch) -> None:
    """1. A follower has records above the high watermark when a write fails. 2. It is opened again:
    it has all that it reported, and goes on."""
    leader, follower = replicas.nodes[:2]
    replicas.append(batch(1, 2))
    leader.submit(batch(3))
    replicas.pull()
    before = follower.reached
    leader.submit(batch(4))
    break_disk(follower, broken)
    with pytest.raises(StorageFailed):
        replicas.pull(follower)
    assert [each for each, _ in follower.heard.failures] == [follower.id]
    with pytest.raises(StorageFailed):
        follower.fence(1)
    broken.undo()
    assert follower.open(replicas.meta) == before
    assert follower.log.view.end_offset == 2
    replicas.pull()
    replicas.advance()
    assert len({node.reached for node in replicas.nodes}) == 1
    replicas.fail_over(follower)
    assert follower.shard.offsets() == [0, 1, 2, 3]


def test_a_leader_whose_disk_fails(replicas: Replicas, broken: pytest.MonkeyPatch) -> None:
    """1. The leader cannot write. 2. Its appends fail, and it is opened again as a replica: what
    was staged and not durable is gone from it, what was durable is not."""
    leader, other = replicas.nodes[:2]
    replicas.append(batch(1, 2))
    waiting = leader.submit(batch(3))
    before = leader.reached
    break_disk(leader, broken)
    failing = run_blocking(leader.lab.engine.submit(SHARD, batch(4)))
    for ticket in (failing, waiting):
        with pytest.raises(StorageFailed):
            ticket.wait(WAIT_S_MAX)
    assert [each for each, _ in leader.heard.failures] == [leader.id]
    with pytest.raises(StorageFailed):
        leader.shard.append_raw(batch(5))
    broken.undo()
    assert leader.open(replicas.meta) == before
    for node in replicas.nodes:
        node.fence(1)
    seal = replicas.seal_of(leader)
    for node in replicas.nodes:
        replicas.complete(node, seal, leader)
    for node in replicas.nodes:
        replicas.install(node, seal, leads=node is other)
    replicas.leader, replicas.meta = other, seal.active
    assert other.shard.offsets() == [0, 1, 2]
    assert replicas.append(batch(6)).base_offset == 3


def test_a_failed_log_does_not_harm_others_of_its_turn(
    tmp_path: Path, broken: pytest.MonkeyPatch
) -> None:
    """The database cannot take the entries of one log when the high watermark moves: that log
    closes, and is opened again with all that was durable."""
    replicas = Replicas(tmp_path, count=2)
    leader, follower = replicas.nodes
    leader.submit(batch(1, 2))
    replicas.pull()
    before = follower.reached
    broken.setattr(follower.log.backend, "commit_entries", fails)
    follower.advance(2)
    assert isinstance(follower.log.refusal, StorageFailed)
    broken.undo()
    leader.advance(2)
    assert leader.shard.end == 2
    assert follower.open(replicas.meta) == before
    follower.advance(2)
    assert follower.log.view.end_offset == 2
    replicas.close()


def test_batches_wait_while_too_many_entries_do(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Too many index entries of a follower wait for the high watermark, so the next batch does
    as well. 2. It is staged when the mark has moved. 3. A fence does not wait for it."""
    monkeypatch.setattr(replica_turn, "ENTRIES_WAITING_MAX", 3)
    leader, follower, other = replicas.nodes
    leader.submit(batch(1, 2))
    leader.submit(batch(3))
    for node in (follower, other):
        node.stage(leader.bytes_of(0, 2))
        assert node.log.pending_entry_count > 3
    store = follower.lab.store.replicas
    rest = leader.bytes_of(2, 3)
    tickets = [ticket_of(node, rest) for node in (follower, other)]
    assert follower.fence(1).end.offset == 3, "staged before the fence, which was behind it"
    assert tickets[0].wait(WAIT_S_MAX).end.offset == 3
    with pytest.raises(TimedOut):
        tickets[1].wait(0)
    other.advance(2)
    assert tickets[1].wait(WAIT_S_MAX).end == leader.end
    assert store.reached(follower.id) is not None


def test_what_waits_is_refused_when_the_store_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica_turn, "ENTRIES_WAITING_MAX", 3)
    replicas = Replicas(tmp_path, count=2)
    leader, follower = replicas.nodes
    leader.submit(batch(1, 2))
    leader.submit(batch(3))
    follower.stage(leader.bytes_of(0, 2))
    ticket = ticket_of(follower, leader.bytes_of(2, 3))
    replicas.close()
    with pytest.raises(Exception, match="closed"):
        ticket.wait(WAIT_S_MAX)
