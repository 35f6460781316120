"""A segment is sealed when the high watermark is at its end, and a freeze for that is bounded."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling import RollState, machine
from firnmq.errors import TimedOut
from firnmq.testing import LaggingReplication
from tests.conformance.lab import Lab, Shard

WAIT_S = 60.0


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data", request.param, replication=LaggingReplication())
    yield lab
    lab.close()


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def log_of(shard: Shard) -> ShardLog:
    return shard.engine.log(shard.name)  # type: ignore[attr-defined,no-any-return]


def wait_for(log: ShardLog, state: RollState) -> None:
    def is_there() -> bool:
        return log.rolling.state is state

    while not is_there():
        with log.lock:
            log.change_ended.wait_for(is_there, 0.001)


def test_a_roll_waits_for_the_high_watermark(lab: Lab, threads: ThreadPoolExecutor) -> None:
    assert lab.replication is not None
    shard = lab.shard()
    shard.append_values(b"a")
    log = log_of(shard)
    with lab.replication.held():
        appending = threads.submit(shard.append_values, b"b")
        lab.replication.wait_until_durable(log, 2)
        rolling = threads.submit(shard.roll)
        wait_for(log, RollState.CATCHING_UP)
        # What is not below the high watermark is neither shown nor sealed.
        assert (log.view.end_offset, len(log.segments)) == (1, 1)
        parked = threads.submit(shard.append_values, b"c")
        log.advance(2)
        rolling.result(WAIT_S)
    assert appending.result(WAIT_S).base_offset == 1
    assert [each.meta.base_offset for each in log.segments] == [0, 2]
    lab.replication.hold()
    lab.replication.release()
    log.advance(3)
    assert parked.result(WAIT_S).base_offset == 2
    assert shard.values() == [b"a", b"b", b"c"]


def test_a_log_takes_appends_again_if_its_replicas_are_too_late(
    lab: Lab, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lab.replication is not None
    monkeypatch.setattr(machine, "FREEZE_S_MAX", 0.01)
    shard = lab.shard()
    shard.append_values(b"a")
    log = log_of(shard)
    with lab.replication.held():
        appending = threads.submit(shard.append_values, b"b")
        lab.replication.wait_until_durable(log, 2)
        with pytest.raises(TimedOut):
            shard.roll()
        assert (log.rolling.state, len(log.segments)) == (RollState.IDLE, 1)
        later = threads.submit(shard.append_values, b"c")
        lab.replication.wait_until_durable(log, 3)
        log.advance(3)
        assert [each.result(WAIT_S).base_offset for each in (appending, later)] == [1, 2]
    shard.roll()
    assert [each.meta.base_offset for each in log.segments] == [0, 3]
    assert shard.values() == [b"a", b"b", b"c"]


def test_a_deleted_shard_does_not_wait_for_its_replicas(
    lab: Lab, threads: ThreadPoolExecutor
) -> None:
    assert lab.replication is not None
    shard = lab.shard()
    shard.append_values(b"a")
    log = log_of(shard)
    with lab.replication.held():
        appending = threads.submit(shard.append_values, b"b")
        lab.replication.wait_until_durable(log, 2)
        rolling = threads.submit(shard.roll)
        wait_for(log, RollState.CATCHING_UP)
        lab.engine.delete_shard(shard.name)
        assert log.rolling.state is RollState.CLOSED
        for each in (appending, rolling):
            assert each.exception(WAIT_S) is not None
