"""A roll after which another node leads: what this node still does, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import Ticket, run_blocking
from firnmq.engines import ShardSpec
from firnmq.engines.catalog.segments import SegmentState, Successor
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling import RollState
from firnmq.engines.shardlog.rolling.steps import Move
from firnmq.engines.shardlog.snapshot import Snapshot
from firnmq.errors import NodeUnavailable, NotLeader
from firnmq.meta.records import SegmentRecord, ShardRecord, decode, segment_key, shard_key
from tests.unit.engines.shardlog.held_bench import WAIT_S, Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "data", "EngineSegment")
    bench.shard("moving", **{"segment.bytes": 2**20})
    bench.shard("other", **{"segment.bytes": 2**20})
    yield bench
    bench.close()


class Receiver:
    """The next leader, which may not be ready."""

    def __init__(self, *, is_ready: bool = True) -> None:
        self.is_ready = is_ready
        self.taken: list[Snapshot] = []

    def take(self, spec: ShardSpec, end_offset: int, packed: bytes) -> None:
        if not self.is_ready:
            raise NodeUnavailable(2, "it does not answer")
        self.taken.append(Snapshot.unpack(packed, spec.uid, end_offset))

    def move(self) -> Move:
        return Move(1, Successor(2, 5), self.take)


def _shard(bench: Bench) -> ShardRecord:
    entry = bench.meta.get(shard_key("moving"))
    assert entry is not None
    return decode(entry, ShardRecord)


async def _watch(log: ShardLog, end_offset: int) -> Ticket[None]:
    ticket: Ticket[None] = Ticket()
    assert log.watch(ticket, end_offset)
    return ticket


def _segment(bench: Bench, seq: int) -> SegmentRecord | None:
    entry = bench.meta.get(segment_key("moving", seq))
    return None if entry is None else decode(entry, SegmentRecord)


def test_the_next_segment_is_the_successors(bench: Bench) -> None:
    for number in range(3):
        bench.append("moving", number)
    log = bench.log("moving")
    watcher = run_blocking(_watch(log, 3))
    receiver = Receiver()
    bench.engine.roll("moving", receiver.move())
    shard, sealed, active = _shard(bench), _segment(bench, 0), _segment(bench, 1)
    assert (shard.leader, shard.epoch, shard.active) == (2, 1, 1)
    assert sealed is not None
    assert active is not None
    assert (sealed.state, sealed.end, sealed.leader, sealed.replicas) == (
        *(SegmentState.SEALED, 3),
        *(1, (1,)),
    )
    assert (active.state, active.start, active.leader) == (SegmentState.ACTIVE, 3, 2)
    assert (active.replicas, active.leader_epoch) == ((2,), 1)
    assert [(each.node, each.incarnation) for each in active.isr] == [(2, 5)]
    assert [each.end_offset for each in receiver.taken] == [3]
    # What waits for records is woken, and told where to ask.
    watcher.wait(WAIT_S)
    with pytest.raises(NotLeader) as refused:
        bench.append("moving", 3)
    assert (refused.value.node, refused.value.leader) == (1, 2)
    assert not bench.engine.has_shard("moving")
    bench.append("other", 0)


def test_parked_appends_are_refused_and_not_stored(bench: Bench) -> None:
    bench.append("moving", 0)
    log = bench.log("moving")
    bench.meta.hold()
    moving = bench.threads.submit(bench.engine.roll, "moving", Receiver().move())
    bench.meta.wait_until_held()
    parked = [bench.threads.submit(bench.append, "moving", number) for number in (1, 2)]
    bench.wait_until_parked("moving", 2)
    bench.meta.release()
    moving.result(WAIT_S)
    for each in parked:
        with pytest.raises(NotLeader):
            each.result(WAIT_S)
    assert log.view.end_offset == 1


def test_an_empty_segment_leaves_no_record(bench: Bench) -> None:
    bench.engine.roll("moving", Receiver().move())
    active = _segment(bench, 1)
    assert _segment(bench, 0) is None
    assert active is not None
    assert (active.leader, active.start) == (2, 0)


def test_a_successor_that_is_not_ready_changes_nothing(bench: Bench) -> None:
    bench.append("moving", 0)
    with pytest.raises(NodeUnavailable):
        bench.engine.roll("moving", Receiver(is_ready=False).move())
    assert (_shard(bench).leader, _shard(bench).epoch) == (0, 0)  # Of a node that is alone.
    bench.append("moving", 1)
    assert bench.numbers("moving") == [0, 1]
    bench.engine.roll("moving")
    bench.append("moving", 2)
    assert bench.numbers("moving") == [0, 1, 2]


def test_a_shard_that_came_back_is_not_given_up_for_an_earlier_move(bench: Bench) -> None:
    spec = next(each for each in bench.engine.list_shard() if each.name == "moving")
    bench.engine.roll("moving", Receiver().move())
    again = ShardSpec(name=spec.name, uid=spec.uid, config=spec.config, epoch=2)
    bench.engine.adopt(again)
    bench.engine.release("moving", 0, NotLeader("moving", 1, 2))
    assert bench.engine.has_shard("moving")
    bench.engine.release("moving", 2, NotLeader("moving", 1, 3))
    assert not bench.engine.has_shard("moving")


@pytest.mark.parametrize("storage_type", ["EngineMemory", "EngineRocksDB"])
def test_other_engines_keep_their_shards(tmp_path: Path, storage_type: str) -> None:
    bench = Bench(tmp_path / "data", storage_type)
    try:
        bench.shard("moving")
        bench.append("moving", 0)
        with pytest.raises(Exception, match="stays on its node"):
            bench.engine.roll("moving", Receiver().move())
        bench.append("moving", 1)
        assert bench.numbers("moving") == [0, 1]
    finally:
        bench.close()


def test_a_move_of_which_the_node_reads_first_in_the_metadata_is_a_success(bench: Bench) -> None:
    bench.append("moving", 0)
    log = bench.log("moving")
    bench.meta.hold()
    moving = bench.threads.submit(bench.engine.roll, "moving", Receiver().move())
    bench.meta.wait_until_held()
    # What follows the metadata gives the shard up while the answer to the move is on its way.
    following = bench.threads.submit(bench.engine.release, "moving", 0, NotLeader("moving", 1, 2))
    with log.lock:
        assert log.change_ended.wait_for(lambda: log.rolling.state is RollState.CLOSING, WAIT_S)
    bench.meta.release()
    moving.result(WAIT_S)
    following.result(WAIT_S)
    assert _shard(bench).leader == 2
    assert not bench.engine.has_shard("moving")
