"""Copies of segments in the meta store: each change is one transaction, or it is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from firnmq.engines.catalog.segments import SegmentMeta, SegmentState
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import StaleEpoch, StaleIncarnation
from firnmq.meta import register_node
from firnmq.meta.records import SEGMENTS, SHARDS, TIER_GRAVES
from tests.unit.meta.test_shards import CLOCK, Bench, SmallStore

COPY = TierCopy(upload_id="0123456789abcdef", key="a/b", started_ms=7)
DONE = replace(COPY, index_length=900, index_head_length=100, is_done=True)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


def tier(bench: Bench, uid: int, sealed: SegmentMeta) -> SegmentMeta:
    begun = sealed.with_copy(COPY)
    bench.shards.change_copy(uid, begun)
    done = begun.become_tiered(DONE)
    bench.shards.change_copy(uid, done)
    return done


def test_a_copy_goes_from_step_to_step(bench: Bench) -> None:
    uid = bench.add()
    sealed = bench.roll(uid)
    bench.keep_producers(0)
    revision = bench.revision
    begun = sealed.with_copy(COPY)
    for number, step in enumerate(
        (begun, begun.become_tiered(DONE), begun.become_tiered(DONE).become_remote()), 1
    ):
        bench.shards.change_copy(uid, step)
        assert bench.revision == revision + number
        assert bench.shards.segment(uid, 0) == step
    bench.reopen()
    assert bench.shards.chain(uid)[0] == begun.become_tiered(DONE).become_remote()
    assert bench.segment(0).producers == bench.shards.producers(uid, 0) == ((9, b"state"),)
    assert bench.shards.segment(uid, 9) is None


def test_of_two_changes_at_once_one_is_refused(bench: Bench) -> None:
    uid = bench.add()
    sealed = bench.roll(uid)
    other = replace(COPY, upload_id="fedcba9876543210")
    bench.shards.change_copy(uid, sealed.with_copy(COPY))
    revision = bench.revision
    for late in (sealed.with_copy(other), sealed.become_tiered(DONE)):
        with pytest.raises(StaleEpoch):
            bench.shards.change_copy(uid, late)
    with pytest.raises(StaleEpoch):
        bench.shards.move_start(uid, 10, [sealed])
    active = bench.shards.chain(uid)[-1]
    with pytest.raises(StaleEpoch):
        bench.shards.change_copy(uid, replace(active, epoch=active.epoch + 1, tier=COPY))
    with pytest.raises(StaleEpoch):
        bench.shards.change_copy(uid, replace(sealed, seq=77))
    assert bench.revision == revision


def test_a_node_of_an_earlier_life_changes_no_copy(bench: Bench) -> None:
    uid = bench.add()
    sealed = bench.roll(uid)
    register_node(bench.store, 1, CLOCK)
    with pytest.raises(StaleIncarnation):
        bench.shards.change_copy(uid, sealed.with_copy(COPY))


def test_a_deleted_segment_is_known_until_its_copy_is_forgotten(bench: Bench) -> None:
    uid = bench.add()
    first, second = tier(bench, uid, bench.roll(uid)), bench.roll(uid)
    assert bench.shards.dead_copies() == []
    with pytest.raises(StaleEpoch):
        bench.shards.forget_copy(uid, 0)
    bench.shards.move_start(uid, 20, [first, second])
    bench.cache.wait_for_revision(bench.revision, 30)
    ((name, dead),) = bench.shards.dead_copies()
    assert (name, dead) == ("s", first.become_deleted())
    assert dead.state is SegmentState.DELETED
    for _ in range(2):
        bench.shards.forget_copy(uid, 0)
    bench.cache.wait_for_revision(bench.revision, 30)
    assert bench.shards.dead_copies() == []


def test_removed_shards_leave_graves_in_the_same_transaction(bench: Bench) -> None:
    uid = bench.add()
    tiered = tier(bench, uid, bench.roll(uid))
    bench.shards.change_copy(uid, bench.roll(uid).with_copy(COPY))
    bench.roll(uid)
    revision = bench.revision
    bench.shards.remove_shards(["s"])
    assert bench.revision == revision + 1
    assert not bench.store.range(SEGMENTS).entries
    assert not bench.store.range(SHARDS).entries
    bench.reopen()
    graves = bench.shards.graves()
    assert [(grave.shard, grave.seq, grave.tier) for grave in graves] == [
        ("s", 0, DONE),
        ("s", 1, COPY),
    ]
    assert graves[0].length == tiered.length
    bench.shards.forget_graves(graves[:1])
    bench.shards.forget_graves(graves[:1])
    assert bench.shards.graves() == graves[1:]


def test_graves_that_do_not_fit_one_transaction_are_not_left_out(tmp_path: Path) -> None:
    bench = Bench(tmp_path, SmallStore)
    uid = bench.add()
    for _ in range(9):
        tier(bench, uid, bench.roll(uid))
    bench.shards.remove_shards(["s"])
    assert len(bench.store.range(TIER_GRAVES).entries) == 9
    assert [grave.seq for grave in bench.shards.graves()] == list(range(9))
    bench.close()
