"""Shards and segment chains in the meta store: each change is one transaction, or it is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import (
    IllegalTransition,
    Medium,
    SegmentMeta,
    SegmentState,
    Successor,
)
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import (
    AlreadyExists,
    InvalidArgument,
    ShardNotFound,
    StaleEpoch,
    StaleIncarnation,
)
from firnmq.meta import CacheBehind, MetaCache, MetaShards, SqliteMetaStore, register_node
from firnmq.meta.records import (
    SEGMENTS,
    SHARDS,
    Replica,
    SegmentRecord,
    ShardRecord,
    TopicRecord,
    TopicState,
    decode,
    encode,
    segment_key,
    shard_key,
    topic_key,
)
from firnmq.testing import FakeClock
from tests.unit.meta.gate import Gate

CLOCK = FakeClock()
CONFIG = TopicConfig(segment_bytes=4096, ttl_ms=7)
OPEN = (OpenTransaction(9, 1, 5),)


class SmallStore(SqliteMetaStore):
    """Takes as little at once as etcd might."""

    txn_ops_max = 8


class Bench:
    """A store with one node's shards on it, which can be opened again."""

    def __init__(self, path: Path, kind: type[SqliteMetaStore] = SqliteMetaStore) -> None:
        self._path = path
        self._kind = kind
        self.open()

    def open(self) -> None:
        self.store = self._kind(self._path / "meta.db", clock=CLOCK)
        self.node = register_node(self.store, 1, CLOCK)
        self.cache = MetaCache(self.store)
        self.shards = MetaShards(self.store, self.cache, self.node, CLOCK)

    def close(self) -> None:
        self.cache.close()
        self.store.close()

    def reopen(self) -> None:
        self.close()
        self.open()

    @property
    def revision(self) -> int:
        return self.store.range("").revision

    def add(self, name: str = "s") -> int:
        return self.shards.add_shards([name], CONFIG)[0].uid

    def shard(self, name: str = "s") -> ShardRecord:
        entry = self.store.get(shard_key(name))
        assert entry is not None
        return decode(entry, ShardRecord)

    def segment(self, seq: int, name: str = "s") -> SegmentRecord:
        entry = self.store.get(segment_key(name, seq))
        assert entry is not None
        return decode(entry, SegmentRecord)

    def keep_producers(self, seq: int) -> None:
        """As an earlier version did when it sealed a segment."""
        record = msgspec.structs.replace(self.segment(seq), producers=((9, b"state"),))
        self.store.txn(puts={segment_key("s", seq): encode(record)})

    def roll(self, uid: int, count: int = 10) -> SegmentMeta:
        """Seals the active segment with some records in it; the sealed one."""
        before = self.shards.chain(uid)[-1]
        sealed = seal(before, before.base_offset + count)
        self.shards.roll(uid, sealed, following(sealed))
        return sealed


def seal(meta: SegmentMeta, end_offset: int) -> SegmentMeta:
    return meta.become_sealed(
        end_offset=end_offset, length=100, crc=77, max_timestamp=5, now_ms=6, transactions=OPEN
    )


def following(sealed: SegmentMeta) -> SegmentMeta:
    return SegmentMeta(seq=sealed.seq + 1, base_offset=sealed.end_offset, created_ms=6)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


# Shards -------------------------------------------------------------------------------------------


def test_many_shards_are_one_transaction(bench: Bench) -> None:
    before = bench.revision
    specs = bench.shards.add_shards([f"s_{number}" for number in range(500)], CONFIG)
    assert bench.revision == before + 1
    assert [spec.uid for spec in specs] == list(range(1, 501))
    assert sorted(bench.shards.shards(), key=lambda spec: spec.uid) == specs
    assert bench.shards.chain(specs[7].uid) == [
        SegmentMeta(seq=0, base_offset=0, created_ms=CLOCK.now_ms())
    ]
    assert bench.cache.get(segment_key("s_499", 0)) is not None


def test_a_first_segment_has_the_form_of_a_cluster(bench: Bench) -> None:
    bench.add()
    first = bench.segment(0)
    assert (first.state, first.epoch, first.leader) == (SegmentState.ACTIVE, 0, 1)
    assert (first.replicas, first.isr) == ((1,), (Replica(1, 1),))
    assert (first.start, first.end, first.crc, first.producers) == (0, -1, 0, ())


def test_what_does_not_fit_one_transaction_goes_in_several(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SmallStore)
    names = [f"s_{number}" for number in range(7)]
    specs = bench.shards.add_shards(names, CONFIG)
    assert len({spec.uid for spec in specs}) == 7
    assert [spec.name for spec in bench.shards.shards()] == names
    uid = specs[0].uid
    sealed = [bench.roll(uid) for _ in range(20)]
    revision = bench.revision
    bench.shards.move_start(uid, sealed[-1].end_offset, sealed)
    assert bench.revision > revision + 1
    assert [meta.state for meta in bench.shards.chain(uid)[:-1]] == [SegmentState.DELETED] * 20
    assert bench.shards.start_offset(uid) == 200
    bench.shards.forget_segments(uid, [meta.seq for meta in sealed])
    assert len(bench.shards.chain(uid)) == 1
    bench.shards.remove_shards(names)
    assert bench.store.range(SHARDS).entries == bench.store.range(SEGMENTS).entries == ()
    bench.close()


def test_a_shard_is_made_once(bench: Bench) -> None:
    bench.add("s_1")
    revision = bench.revision
    with pytest.raises(AlreadyExists) as caught:
        bench.shards.add_shards(["s_0", "s_1", "s_2"], CONFIG)
    assert caught.value.name == "s_1"
    assert bench.revision == revision, "all or nothing"
    with pytest.raises(InvalidArgument):
        bench.add("a/b")


def test_numbers_are_never_used_again(bench: Bench) -> None:
    (spec,) = bench.shards.add_shards(["s"], CONFIG)
    bench.shards.remove_shards([spec.name])
    bench.shards.remove_shards([spec.name])
    bench.reopen()
    assert bench.add() == spec.uid + 1


def test_options_are_the_topics_or_the_shards_own(bench: Bench) -> None:
    (own,) = bench.shards.add_shards(["own"], CONFIG)
    topic = TopicRecord(
        name="t",
        topic_id="id",
        shard_count=2,
        options=CONFIG.options(),
        created_ms=0,
        state=TopicState.READY,
    )
    bench.store.txn(puts={topic_key("t"): encode(topic)})
    of_topic = bench.shards.add_shards(["id_0", "id_1"], CONFIG, "id")
    assert bench.shards.shards() == [*of_topic, own]
    first, second, _ = bench.shards.shards()
    assert first.config is second.config
    other = replace(CONFIG, ttl_ms=None, tag_headers=("x", "y"))
    bench.shards.reconfigure(replace(own, config=other))
    revision = bench.revision
    bench.shards.reconfigure(replace(of_topic[0], config=other))
    assert bench.revision == revision, "a topic's options are kept once"
    bench.reopen()
    assert [spec.config for spec in bench.shards.shards()] == [CONFIG, CONFIG, other]


def test_a_shard_whose_topic_is_gone_is_passed_over(bench: Bench) -> None:
    bench.shards.add_shards(["id_0"], CONFIG, "id")
    bench.add("s")
    assert [spec.name for spec in bench.shards.shards()] == ["s"]


def test_shards_that_do_not_come_up_in_the_cache_in_time(bench: Bench) -> None:
    slow = MetaShards(bench.store, bench.cache, bench.node, CLOCK, wait_s=0.01)
    with Gate(bench.cache, upto=bench.revision), pytest.raises(CacheBehind) as caught:
        slow.add_shards(["s"], CONFIG)
    assert caught.value.timeout_s == 0.01
    bench.cache.wait_for_revision(bench.revision, 30)


# Rolling ------------------------------------------------------------------------------------------


def test_a_roll_is_one_transaction(bench: Bench) -> None:
    uid = bench.add()
    before = bench.revision
    sealed = bench.roll(uid)
    assert bench.revision == before + 1
    old, new = bench.segment(0), bench.segment(1)
    assert (old.state, old.start, old.end, old.length, old.crc) == (
        SegmentState.SEALED,
        0,
        10,
        100,
        77,
    )
    assert (old.epoch, old.producers, old.isr) == (1, (), (Replica(1, 1),))
    assert (new.state, new.epoch, new.start) == (SegmentState.ACTIVE, 0, 10)
    assert bench.shard().active == bench.shards.active_seq(uid) == 1
    bench.reopen()
    assert bench.shards.chain(uid) == [sealed, following(sealed)]
    bench.roll(uid)
    assert bench.segment(2).isr == (Replica(1, 2),), "a new segment is of the present life"


@pytest.mark.parametrize("epoch", [-1, 0, 2, 7])
def test_a_stale_epoch_is_refused(bench: Bench, epoch: int) -> None:
    uid = bench.add()
    bench.roll(uid)
    active = bench.shards.chain(uid)[-1]
    sealed = replace(seal(active, 20), epoch=epoch)
    revision = bench.revision
    with pytest.raises(StaleEpoch) as caught:
        bench.shards.roll(uid, sealed, following(sealed))
    assert (caught.value.epoch, caught.value.current) == (epoch - 1, 0)
    assert bench.revision == revision


def test_a_segment_is_sealed_once(bench: Bench) -> None:
    uid = bench.add()
    sealed = bench.roll(uid)
    for meta in (sealed, replace(sealed, epoch=2), replace(sealed, seq=5)):
        with pytest.raises(StaleEpoch):
            bench.shards.roll(uid, meta, following(meta))
    active = seal(bench.shards.chain(uid)[-1], 20)
    with pytest.raises(StaleEpoch):
        bench.shards.roll(uid, active, replace(following(active), base_offset=21))


def test_two_who_roll_at_once(bench: Bench) -> None:
    """Both have read the same; the second one's compare fails."""
    uid = bench.add()
    sealed = seal(bench.shards.chain(uid)[-1], 10)
    txn, calls = bench.store.txn, []

    def interrupted(*arguments: object) -> int:
        calls.append(arguments)
        if len(calls) == 1:
            bench.shards.roll(uid, sealed, following(sealed))
        return txn(*arguments)  # type: ignore[arg-type]

    bench.store.txn = interrupted  # type: ignore[method-assign,assignment]
    with pytest.raises(StaleEpoch):
        bench.shards.roll(uid, sealed, following(sealed))
    assert len(bench.shards.chain(uid)) == 2


def test_a_node_of_an_earlier_life_changes_nothing(bench: Bench) -> None:
    uid = bench.add()
    spec = bench.shards.shards()[0]
    active = bench.shards.chain(uid)[-1]
    register_node(bench.store, 1, CLOCK)
    revision = bench.revision
    for change in (
        lambda: bench.add("other"),
        lambda: bench.roll(uid),
        lambda: bench.shards.move_start(uid, 5, []),
        lambda: bench.shards.begin_again(uid, active),
        lambda: bench.shards.reconfigure(spec),
        lambda: bench.shards.remove_shards([spec.name]),
    ):
        with pytest.raises(StaleIncarnation) as caught:
            change()
        assert (caught.value.incarnation, caught.value.current) == (1, 2)
    assert bench.revision == revision


# Sealed segments ----------------------------------------------------------------------------------


def test_a_sealed_segment_can_get_other_bytes(bench: Bench) -> None:
    uid = bench.add()
    sealed = bench.roll(uid)
    bench.keep_producers(0)
    revision = bench.revision
    smaller = replace(
        sealed,
        epoch=sealed.epoch + 1,
        length=50,
        crc=3,
        slot=1,
        compacted_ms=77,
        has_gaps=True,
        tombstone_count=4,
    )
    bench.shards.replace_sealed(uid, smaller, [])
    assert bench.revision == revision + 1
    assert bench.shards.chain(uid)[0] == smaller
    assert bench.segment(0).producers == ((9, b"state"),)
    with pytest.raises(StaleEpoch):
        bench.shards.replace_sealed(uid, replace(smaller, length=40), [])
    again = replace(smaller, epoch=smaller.epoch + 1)
    for other in (replace(again, end_offset=11), replace(again, base_offset=1)):
        with pytest.raises(IllegalTransition):
            bench.shards.replace_sealed(uid, other, [])
    active = bench.shards.chain(uid)[-1]
    with pytest.raises(StaleEpoch):
        bench.shards.replace_sealed(uid, replace(active, epoch=active.epoch + 1), [])


def test_sealed_segments_can_be_merged_in_one_transaction(bench: Bench) -> None:
    uid = bench.add()
    first, second, third = (bench.roll(uid) for _ in range(3))
    bench.keep_producers(2)
    revision = bench.revision
    merged = replace(first, epoch=first.epoch + 1, end_offset=third.end_offset, has_gaps=True)
    with pytest.raises(IllegalTransition):
        bench.shards.replace_sealed(uid, merged, [second])
    with pytest.raises(StaleEpoch):
        bench.shards.replace_sealed(uid, merged, [second, replace(third, epoch=9)])
    assert bench.revision == revision
    bench.shards.replace_sealed(uid, merged, [second, third])
    assert bench.revision == revision + 1
    chain = bench.shards.chain(uid)
    assert chain[0] == merged
    assert [meta.state for meta in chain[1:3]] == [SegmentState.DELETED] * 2
    assert bench.segment(0).producers == ((9, b"state"),)


def test_moving_the_start_and_dropping_segments_is_one_transaction(bench: Bench) -> None:
    uid = bench.add()
    sealed = [bench.roll(uid) for _ in range(3)]
    revision = bench.revision
    bench.shards.move_start(uid, 25, sealed[:2])
    assert bench.revision == revision + 1
    bench.reopen()
    assert bench.shards.start_offset(uid) == 25
    assert [(meta.state, meta.epoch) for meta in bench.shards.chain(uid)[:2]] == [
        (SegmentState.DELETED, 2)
    ] * 2
    with pytest.raises(StaleEpoch):
        bench.shards.move_start(uid, 30, sealed[:1])
    bench.shards.forget_segments(uid, [0, 1])
    bench.shards.forget_segments(uid, [0, 1])
    assert [meta.seq for meta in bench.shards.chain(uid)] == [2, 3]


# Memory -------------------------------------------------------------------------------------------


def test_what_was_in_memory_is_of_one_life(bench: Bench) -> None:
    uid = bench.add()
    assert bench.shards.is_held_here(uid)
    spilled = replace(seal(bench.shards.chain(uid)[0], 10), medium=Medium.FILE)
    bench.shards.roll(uid, spilled, following(spilled))
    bench.reopen()
    assert not bench.shards.is_held_here(uid)
    again = bench.shards.begin_again(uid, following(spilled))
    assert again.epoch == 1
    assert bench.shards.is_held_here(uid)
    assert bench.segment(1).isr == (Replica(1, 2),)
    assert bench.shards.chain(uid) == [spilled, again]


def test_memory_may_go_on_further_up(bench: Bench) -> None:
    uid = bench.add()
    spilled = replace(seal(bench.shards.chain(uid)[0], 10), medium=Medium.FILE)
    bench.shards.roll(uid, spilled, following(spilled))
    # Segments 1 and 2 were dropped before they were spilled.
    further = SegmentMeta(seq=3, base_offset=30, created_ms=6)
    bench.shards.move_start(uid, 30, [spilled], further)
    assert [(meta.seq, meta.state) for meta in bench.shards.chain(uid)] == [
        (0, SegmentState.DELETED),
        (3, SegmentState.ACTIVE),
    ]
    assert bench.shard().active == 3
    last = SegmentMeta(seq=5, base_offset=50, created_ms=6)
    assert bench.shards.begin_again(uid, last) == last
    assert [meta.seq for meta in bench.shards.chain(uid)] == [0, 5]


def test_a_shard_that_is_not_there(bench: Bench) -> None:
    for ask in (bench.shards.chain, bench.shards.start_offset, bench.shards.active_seq):
        with pytest.raises(ShardNotFound):
            ask(99)
    (spec,) = bench.shards.add_shards(["s"], CONFIG)
    bench.shards.remove_shards([spec.name])
    with pytest.raises(ShardNotFound):
        bench.roll(spec.uid)


# Moves --------------------------------------------------------------------------------------------


def _shared(bench: Bench, node: int) -> MetaShards:
    """What another node of a cluster makes of the same records."""
    identity = register_node(bench.store, node, CLOCK)
    return MetaShards(bench.store, bench.cache, identity, CLOCK, is_shared=True)


def test_a_moved_shard_is_led_and_held_by_different_nodes(bench: Bench) -> None:
    uid = bench.add()
    one, two = _shared(bench, 1), _shared(bench, 2)
    before = one.chain(uid)[-1]
    sealed = seal(before, 10)
    active = one.roll(uid, sealed, following(sealed), Successor(2, 1))
    assert (active.is_led, active.is_local, active.leader_epoch) == (False, False, 1)
    assert [(each.is_led, each.is_local) for each in one.chain(uid)] == [
        (True, True),
        (False, False),
    ]
    assert [(each.is_led, each.is_local, each.holders) for each in two.chain(uid)] == [
        (False, False, (1,)),
        (True, True, (2,)),
    ]
    refused = one.not_led(uid)
    assert (refused.shard, refused.node, refused.leader) == ("s", 1, 2)
    bench.cache.wait_for_revision(bench.revision, 30.0)
    assert [spec.name for spec in one.shards()] == []
    assert [(spec.name, spec.epoch) for spec in two.shards()] == [("s", 1)]
    assert one.kept_here() == two.kept_here() == {"s": uid}
    # The next segment is of the same leader, unless the roll says otherwise.
    second = seal(two.chain(uid)[-1], 20)
    again = two.roll(uid, second, following(second))
    assert (again.is_led, again.holders) == (True, (2,))


def test_a_copy_of_a_segment_that_another_node_holds_leaves_its_holders(bench: Bench) -> None:
    uid = bench.add()
    one, two = _shared(bench, 1), _shared(bench, 2)
    sealed = seal(one.chain(uid)[-1], 10)
    one.roll(uid, sealed, following(sealed), Successor(2, 1))
    seen = two.chain(uid)[0]
    two.change_copy(uid, seen.with_copy(TierCopy(upload_id="0" * 16, key="k", started_ms=1)))
    assert two.chain(uid)[0].holders == (1,)
    assert one.chain(uid)[0].is_local


def test_an_empty_segment_that_moves_leaves_no_record(bench: Bench) -> None:
    uid = bench.add()
    one = _shared(bench, 1)
    empty = one.chain(uid)[-1].become_sealed(
        end_offset=0, length=0, crc=0, max_timestamp=-1, now_ms=6
    )
    one.roll(uid, empty, following(empty), Successor(2, 1))
    assert [(each.seq, each.base_offset) for each in one.chain(uid)] == [(1, 0)]
