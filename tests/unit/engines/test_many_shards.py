"""Shards that are kept as ranges: what they cost before they are used, and what is kept of them in
memory afterwards."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.adapter import Topic
from firnmq.config import StoreConfig, TopicConfig
from firnmq.disk import Family, Ticket, run_blocking
from firnmq.engines import Engine
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.engines.media.layouts.shared_file.rows import ALL_LOCATIONS
from firnmq.errors import ShardNotFound
from firnmq.meta.records import RANGES, SEGMENTS, SHARDS
from firnmq.record import NewRecord
from firnmq.server import LocalStore
from firnmq.testing import FakeClock

OPEN_MAX = 16
SHARED = {"segment.layout": "shared-file"}


class Node:
    """A store of few open shards, which can be opened again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = FakeClock()
        self.open()

    def open(self) -> None:
        config = StoreConfig(open_shards=OPEN_MAX, shared_shard_count_max=10**6)
        self.store = LocalStore(self.path, config=config, clock=self.clock, background=False)

    def reopen(self) -> None:
        self.store.close()
        self.open()

    @property
    def engine(self) -> Engine:
        return self.store.engines["EngineSegment"]

    def topic(self, name: str, shards: int, **options: object) -> Topic:
        config = TopicConfig.from_options(SHARED | options)
        return run_blocking(self.store.manager.create_topic(name, shards, config))

    def reconfigure(self, name: str, **options: object) -> None:
        config = TopicConfig.from_options(SHARED | options)
        run_blocking(self.store.manager.reconfigure_topic(name, config))

    def append(self, shard: str, *values: bytes) -> None:
        run_blocking(self.engine.append(shard, [NewRecord(value=value) for value in values]))

    def values(self, shard: str) -> list[bytes | None]:
        start, _ = self.engine.bounds(shard)
        page = self.engine.read_by_offset(shard, start, max_records=100, max_bytes=10**6)
        return [record.value for record in page.records()]

    def keys(self, prefix: str) -> list[str]:
        return [entry.key for entry in self.store.meta.range(prefix).entries]

    def findings(self, *topics: Topic) -> list[object]:
        found: list[object] = list(self.store.verifier.outside_shards())
        for topic in topics:
            for shard in topic.shard_names():
                found += self.store.verifier.verify(shard).findings
        return found


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path / "data")
    yield node
    node.store.close()


def test_a_hundred_thousand_shards_are_one_record_until_they_are_used(node: Node) -> None:
    topic = node.topic("many", 100_000)
    assert len(node.keys(RANGES)) == 1
    last = topic.shard_name(99_999)
    node.append(last, b"v")
    node.reopen()
    assert node.values(last) == [b"v"]
    assert node.values(topic.shard_name(5)) == []
    assert (node.keys(SHARDS), node.keys(SEGMENTS)) == ([], [])
    with pytest.raises(ShardNotFound):
        node.engine.bounds(topic.shard_name(100_000))


def test_a_shard_has_records_from_its_first_roll_on(node: Node) -> None:
    topic = node.topic("t", 50)
    shard, other = topic.shard_name(7), topic.shard_name(8)
    node.append(shard, b"a")
    node.engine.roll(shard)
    node.append(shard, b"b")
    node.append(other, b"c")
    node.engine.delete_records_before(other, 1)
    for _ in range(2):
        chain = node.engine.status(shard).segments
        assert [each.state for each in chain] == [SegmentState.SEALED, SegmentState.ACTIVE]
        assert {each.medium for each in chain} == {Medium.SHARED}
        assert node.values(shard) == [b"a", b"b"]
        assert node.engine.bounds(other) == (1, 1)
        assert len(node.keys(SHARDS)) == 2
        assert node.findings(topic) == []
        node.reopen()


def test_few_logs_stay_open_and_nothing_is_lost_by_that(node: Node) -> None:
    topic = node.topic("t", 200)
    names = topic.shard_names()
    for number in range(3):
        for name in names:
            node.append(name, b"%d" % number)
    assert len(node.engine.opened()) <= OPEN_MAX
    for name in names:
        assert node.values(name) == [b"0", b"1", b"2"]
    assert node.findings(topic) == []


@pytest.mark.parametrize("durability", ["fsync", "os", "interval"])
def test_threads_that_share_few_open_logs_lose_nothing(node: Node, durability: str) -> None:
    topic = node.topic("t", 60, durability=durability)
    names = topic.shard_names()
    failures: list[BaseException] = []

    def write(number: int) -> None:
        try:
            for turn in range(4):
                for at in range(len(names)):
                    name = names[(at * 7 + number * 13) % len(names)]
                    node.append(name, b"%d %d" % (number, turn))
                    assert b"%d %d" % (number, turn) in node.values(name)
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    wanted = sorted(b"%d %d" % (number, turn) for number in range(4) for turn in range(4))
    for _ in range(2):
        for name in names:
            assert sorted(filter(None, node.values(name))) == wanted
        node.reopen()


def test_a_log_that_is_in_use_is_found_again(node: Node) -> None:
    """A caller that was given the log of a shard goes on with it while many others are used."""
    topic = node.topic("t", 100)
    first, *others = topic.shard_names()
    node.append(first, b"a")
    log = node.engine.log(first)  # type: ignore[attr-defined]
    for name in others:
        node.append(name, b"v")
    assert first not in node.engine.opened()
    assert node.engine.log(first) is log  # type: ignore[attr-defined]
    assert first in node.engine.opened()
    del log
    gc.collect()


def test_a_reader_that_waits_keeps_the_log_open(node: Node) -> None:
    topic = node.topic("t", 100)
    first, *others = topic.shard_names()
    node.append(first, b"a")
    ticket = run_blocking(_watching(node.engine, first, 1))
    for name in others:
        node.append(name, b"v")
    gc.collect()
    node.append(first, b"b")
    ticket.wait()


async def _watching(engine: Engine, shard: str, end_offset: int) -> Ticket[None]:
    ticket: Ticket[None] = Ticket()
    assert engine.watch(shard, end_offset, ticket)
    return ticket


def test_a_deleted_topic_leaves_nothing(node: Node) -> None:
    kept = node.topic("kept", 3)
    topic = node.topic("t", 40)
    for name in (*topic.shard_names(), *kept.shard_names()):
        node.append(name, b"v")
    node.engine.roll(topic.shard_name(3))
    log = node.engine.log(topic.shard_name(4))  # type: ignore[attr-defined]
    run_blocking(node.store.manager.delete_topic("t"))
    assert log.refusal is not None
    assert len(node.keys(RANGES)) == 1
    assert (node.keys(SHARDS), node.keys(SEGMENTS)) == ([], [])
    assert len(node.store.kv.items(Family.LOCATIONS, *ALL_LOCATIONS)) == 3
    node.reopen()
    for name in kept.shard_names():
        assert node.values(name) == [b"v"]
    with pytest.raises(ShardNotFound):
        node.engine.bounds(topic.shard_name(0))
    assert node.findings(kept) == []


def test_a_topic_grows_by_another_range(node: Node) -> None:
    topic = node.topic("t", 5)
    other = node.topic("other", 1)
    grown = run_blocking(node.store.manager.grow_topic("t", 12))
    for number, name in enumerate((*grown.shard_names(), *other.shard_names())):
        node.append(name, b"%d" % number)
    node.reopen()
    found = [node.values(name) for name in (*grown.shard_names(), *other.shard_names())]
    assert found == [[b"%d" % number] for number in range(13)]
    assert len(node.keys(RANGES)) == 3
    assert topic.topic_id == grown.topic_id


def test_upkeep_opens_only_what_has_something_due(node: Node) -> None:
    """1. Two topics have records; those of one expire after an hour. 2. After a restart upkeep
    opens nothing. 3. An hour later it opens the one shard, and what is in it goes."""
    topic = node.topic("t", 100, **{"retention.ms": 3_600_000})
    other = node.topic("other", 10)
    node.append(topic.shard_name(42), b"old")
    node.append(other.shard_name(1), b"stays")
    node.store.housekeep()
    node.reopen()
    node.store.housekeep()
    assert node.engine.opened() == []
    node.clock.advance(3_600_000)
    node.store.housekeep()
    assert node.engine.opened() == [topic.shard_name(42)]
    assert node.engine.bounds(topic.shard_name(42)) == (1, 1)
    node.reopen()
    node.clock.advance(8 * 24 * 3_600_000)
    node.store.housekeep()
    assert node.engine.opened() == []
    assert node.values(other.shard_name(1)) == [b"stays"]


def test_tighter_limits_reach_closed_shards(node: Node) -> None:
    topic = node.topic("t", 100)
    for seq in (3, 50):
        node.append(topic.shard_name(seq), b"old")
    node.append(topic.shard_name(60), b"rolled")
    node.engine.roll(topic.shard_name(60))
    node.store.housekeep()
    node.reopen()
    node.clock.advance(10_000)
    node.reconfigure("t", **{"retention.ms": 5_000})
    node.store.housekeep()
    assert [node.values(topic.shard_name(seq)) for seq in (3, 50, 60)] == [[], [], []]
    assert len(node.engine.opened()) == 3


def test_what_a_change_of_limits_has_to_visit_survives_a_restart(node: Node) -> None:
    topic = node.topic("t", 10)
    node.append(topic.shard_name(3), b"old")
    node.clock.advance(10_000)
    node.reconfigure("t", **{"retention.ms": 5_000})
    node.reopen()
    node.store.housekeep()
    assert node.values(topic.shard_name(3)) == []


def test_retention_by_size_is_due_after_a_roll(node: Node) -> None:
    topic = node.topic("t", 10, **{"retention.bytes": 2_000, "segment.bytes": 1024})
    shard = topic.shard_name(2)
    for _ in range(20):
        node.append(shard, b"v" * 400)
        node.engine.wait_for_roll(shard)  # type: ignore[attr-defined]
    node.reopen()
    node.store.housekeep()
    start, end = node.engine.bounds(shard)
    assert 0 < start < end == 20


def test_a_topic_may_change_its_layout_and_back(node: Node) -> None:
    topic = node.topic("t", 3)
    shard = topic.shard_name(0)
    node.append(shard, b"a")
    for number, layout in enumerate(("partition-per-file", "shared-file")):
        config = TopicConfig.from_options({"segment.layout": layout})
        run_blocking(node.store.manager.reconfigure_topic("t", config))
        node.engine.roll(shard)
        node.append(shard, b"%d" % number)
    node.append(topic.shard_name(1), b"b")
    node.reopen()
    media = [each.medium for each in node.engine.status(shard).segments]
    assert media == [Medium.SHARED, Medium.NATIVE, Medium.SHARED]
    assert node.values(shard) == [b"a", b"0", b"1"]
    assert node.values(topic.shard_name(1)) == [b"b"]
    assert node.findings(topic) == []
    run_blocking(node.store.manager.delete_topic("t"))
    assert node.findings() == []
