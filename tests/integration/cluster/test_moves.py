"""A shard moves between nodes: one log, whoever holds its parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.adapter.forwarding.rebalancing import Rebalancer
from firnmq.disk import run_blocking
from firnmq.engines import AdapterOffsetStrategy
from firnmq.errors import InvalidArgument, KeyNotFound, NodeUnavailable
from firnmq.record import NewRecord
from tests.integration.cluster.stores import Stores


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    stores = Stores(tmp_path)
    yield stores
    stores.close()


def _record(number: int) -> NewRecord:
    return NewRecord(
        value=b"%d" % number,
        key=b"key %d" % (number % 10),
        tags=(f"tag {number % 3}",),
        timestamp_ms=1_000 + number,
    )


def _write(stores: Stores, number: int, shard: str, count: int, first: int) -> None:
    for start in range(first, first + count, 7):
        records = [_record(each) for each in range(start, min(start + 7, first + count))]
        stores.write(number, shard, *records)


def test_every_read_sees_one_log(stores: Stores) -> None:
    stores.create()
    shard = stores.shard()
    first = stores.leader(shard)
    other = 3 - first
    # 1. A part of the log is written by each node in turn, asked through either.
    _write(stores, 1, shard, 50, 0)
    stores.move(2, shard, other)
    _write(stores, 1, shard, 50, 50)
    stores.move(1, shard, first)
    _write(stores, 2, shard, 50, 100)
    assert stores.leader(shard) == first
    status = run_blocking(stores.driver(1).status(shard))
    assert [each.holders for each in status.segments] == [(first,), (other,), (first,)]
    assert [each.leader_epoch for each in status.segments] == [0, 1, 2]
    for number in (1, 2):
        driver = stores.driver(number)
        # 2. By offset, from anywhere.
        assert stores.values(number, shard) == [b"%d" % each for each in range(150)]
        for start in (0, 1, 49, 50, 51, 99, 100, 149):
            assert stores.values(number, shard, start)[0] == b"%d" % start
        # 3. By key, tag and time.
        page = run_blocking(driver.read_by_key(shard, b"key 3"))
        assert [record.offset for record in page.records()] == [143]
        page = run_blocking(
            driver.read_key_history(shard, b"key 3", 0, max_records=100, max_bytes=2**20)
        )
        assert [record.offset for record in page.records()] == list(range(3, 150, 10))
        page = run_blocking(
            driver.read_by_tag(shard, b"tag 1", 0, max_records=100, max_bytes=2**20)
        )
        assert [record.offset for record in page.records()] == list(range(1, 150, 3))
        for offset in (0, 20, 50, 77, 120):
            found = run_blocking(
                driver.get_offset_by_timestamp(shard, 1_000 + offset, AdapterOffsetStrategy.LATEST)
            )
            assert found == offset
        assert run_blocking(driver.find_newest(shard, committed=True)) == (149, 1_149)
    # 4. Nothing was copied: each node has the files of its own segments.
    files = {
        number: len(list((stores.path / f"node{number}" / "segments" / shard).glob("*.log")))
        for number in (first, other)
    }
    assert files == {first: 2, other: 1}


def test_deletions_and_what_holders_have(stores: Stores) -> None:
    stores.create()
    shard = stores.shard()
    first = stores.leader(shard)
    other = 3 - first
    _write(stores, 1, shard, 30, 0)
    run_blocking(stores.driver(1).delete_key(shard, b"key 4"))
    stores.move(1, shard, other)
    # 1. Deletions from before the move hold, and new ones reach what the other node holds.
    run_blocking(stores.driver(1).delete_offsets(shard, [7]))
    deleted = {4, 7, 14, 24}
    for number in (1, 2):
        wanted = [b"%d" % each for each in range(30) if each not in deleted]
        assert stores.values(number, shard) == wanted
        with pytest.raises(KeyNotFound):
            run_blocking(stores.driver(number).read_by_key(shard, b"key 4"))
    # 2. The holder keeps its file until the log's start has passed it.
    directory = stores.path / f"node{first}" / "segments" / shard
    assert len(list(directory.glob("*.log"))) == 1
    _write(stores, 1, shard, 5, 100)
    end = run_blocking(stores.driver(1).bounds(shard))[1]
    run_blocking(stores.driver(2).delete_records_before(shard, end - 5))
    _settle(stores)
    assert list(directory.glob("*.log")) == []
    assert stores.values(first, shard, end - 5) == [b"%d" % each for each in range(100, 105)]


def test_a_holder_removes_what_was_deleted_while_it_was_away(stores: Stores) -> None:
    stores.create()
    shard = stores.shard()
    first = stores.leader(shard)
    other = 3 - first
    _write(stores, 1, shard, 30, 0)
    stores.move(1, shard, other)
    _write(stores, other, shard, 30, 30)
    directory = stores.path / f"node{first}" / "segments" / shard
    # 1. A restart keeps what it holds.
    stores.close(first)
    stores.open(first)
    assert stores.values(other, shard) == [b"%d" % each for each in range(60)]
    # 2. Its segment goes while it is away.
    stores.close(first, other)
    stores.open(other)  # With nothing in its memory.
    with pytest.raises(NodeUnavailable):
        stores.values(other, shard)
    assert stores.values(other, shard, 30) == [b"%d" % each for each in range(30, 60)]
    run_blocking(stores.driver(other).delete_records_before(shard, 30))
    assert len(list(directory.glob("*.log"))) == 1
    stores.open(first)
    _settle(stores)
    assert list(directory.glob("*.log")) == []
    # 3. The topic goes while it is away.
    stores.move(first, shard, first)
    _write(stores, first, shard, 5, 60)
    stores.move(first, shard, other)
    assert len(list(directory.glob("*.log"))) == 1
    stores.close(first)
    run_blocking(stores[other].manager.delete_topic("t"))
    stores.open(first)
    _settle(stores)
    assert not directory.exists()


def test_what_cannot_move_is_refused(stores: Stores) -> None:
    stores.create(options={"storage.type": "EngineRocksDB"})
    shard = stores.shard()
    other = 3 - stores.leader(shard)
    for number in (1, 2):
        with pytest.raises(InvalidArgument, match="EngineRocksDB"):
            stores.move(number, shard, other)
        with pytest.raises(InvalidArgument, match="there is no node 9"):
            stores.move(number, shard, 9)


def test_a_node_that_is_away_gets_no_shard(stores: Stores) -> None:
    stores.create(shards=2)
    shard = next(stores.shard(seq) for seq in range(2) if stores.leader(stores.shard(seq)) == 1)
    stores.write(1, shard, _record(0))
    stores.close(2)
    with pytest.raises(NodeUnavailable):
        stores.move(1, shard, 2)
    stores.write(1, shard, _record(1))
    assert stores.values(1, shard) == [b"0", b"1"]


def _settle(stores: Stores) -> None:
    """Returns when all nodes have followed the metadata."""
    stores.catch_up()
    for store in stores.stores.values():
        assert store.member is not None
        follower = store.member.service._follower
        assert follower.wait(store.cache.revision, 30.0)


def test_rolls_move_shards_to_a_node_that_joins(tmp_path: Path) -> None:
    stores = Stores(tmp_path, count=1)
    try:
        stores.create(shards=6)
        shards = [stores.shard(seq) for seq in range(6)]
        for shard in shards:
            stores.write(1, shard, *map(_record, range(10)))
        stores.open(2)
        before = _file_bytes(stores, 1)
        # 1. One roll of each: the new node gets half of the shards, and no byte.
        for shard in shards:
            stores.engine(1).roll(shard)
        assert Counter(map(stores.leader, shards)) == {1: 3, 2: 3}
        assert _file_bytes(stores, 2) == 0
        # 2. Nobody copies anything later, either; and every record is there, wherever one asks.
        for shard in shards:
            stores.write(2, shard, *map(_record, range(10, 20)))
            for number in (1, 2):
                assert stores.values(number, shard) == [b"%d" % each for each in range(20)]
        assert _file_bytes(stores, 1) >= before
        # 3. More rolls change nothing: it is even.
        for shard in shards:
            stores.engine(stores.leader(shard)).roll(shard)
        assert Counter(map(stores.leader, shards)) == {1: 3, 2: 3}
    finally:
        stores.close()


def test_a_cordoned_node_gives_its_shards_away(stores: Stores) -> None:
    stores.create(shards=4)
    shards = [stores.shard(seq) for seq in range(4)]
    member = stores[1].member
    assert member is not None
    member.cluster.cordons.set(1, is_cordoned=True)
    stores.catch_up()
    rebalancer = Rebalancer(member.cluster, member.mover, lambda shard: stores.driver(1))
    done = run_blocking(rebalancer.run(1))
    assert [(each.move.source, each.move.target, each.error) for each in done] == [(1, 2, None)] * 2
    assert set(map(stores.leader, shards)) == {2}
    # Neither rolls nor new topics bring it any.
    for shard in shards:
        stores.write(1, shard, _record(0))
        stores.engine(2).roll(shard)
    assert set(map(stores.leader, shards)) == {2}
    stays = rebalancer.stays(2)
    assert (len(stays.movable), stays.pinned, stays.held_segments) == (4, [], 4)


def _file_bytes(stores: Stores, number: int) -> int:
    """Bytes of a node's segment files, without what is preallocated."""
    files = (stores.path / f"node{number}" / "segments").glob("*/*.log")
    return sum(len(path.read_bytes().rstrip(b"\0")) for path in files)


def test_compaction_takes_what_other_nodes_hold(stores: Stores) -> None:
    options = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0",
        "min.compaction.lag.ms": "0",
    }
    stores.create(options=options)
    shard = stores.shard()
    first = stores.leader(shard)
    other = 3 - first
    _write(stores, 1, shard, 50, 0)
    stores.move(1, shard, other)
    _write(stores, 1, shard, 20, 50)
    stores.engine(other).roll(shard)
    directory = stores.path / f"node{first}" / "segments" / shard
    assert len(list(directory.glob("*.log"))) == 1
    # 1. While the holder is away, nothing of it is lost, and nothing else stops.
    stores.close(first, other)
    stores.open(other)
    stores.engine(other).housekeep()
    assert stores.engine(other).compaction_counts().bytes_out == 0
    assert stores.values(other, shard, 50)[-1] == b"69"
    # 2. It is back: the newest record of each key is left, and the leader has it.
    stores.open(first)
    stores.engine(other).housekeep()
    newest = [b"%d" % each for each in range(60, 70)]
    for number in (1, 2):
        assert stores.values(number, shard)[-10:] == newest
        assert len(stores.values(number, shard)) == 10
    status = run_blocking(stores.driver(1).status(shard))
    assert {each.holders for each in status.segments} == {(other,)}
    _settle(stores)
    assert list(directory.glob("*.log")) == []
    # 3. The same after restarts.
    stores.close(first, other)
    stores.open(other)
    assert stores.values(other, shard) == newest
    stores.open(first)
