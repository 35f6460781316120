"""Changes of the metadata whose outcome is unknown: the log goes on with what the metadata has."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.errors import StorageFailed
from firnmq.meta import SqliteMetaStore
from tests.conformance.lab import Lab, Shard, numbered
from tests.conformance.lost_answers import lost_answers
from tests.conformance.tier_lab import TierLab

OPTIONS = {"memory.overflow": "spill", "local.retention.ms": 0}


@pytest.fixture
def tier_lab(storage_type: str, tmp_path: Path) -> Iterator[TierLab]:
    lab = TierLab(tmp_path / "data", storage_type)
    yield lab
    lab.close()


def sealed(lab: Lab) -> Shard:
    """A shard with three sealed segments of ten records, all on disk, and an empty active one."""
    shard = lab.shard(OPTIONS)
    for _ in range(3):
        shard.append_each(numbered(10))
        shard.roll()
    lab.store.housekeep()
    return shard


@pytest.mark.parametrize("is_blind", [False, True])
@pytest.mark.parametrize("happens", [False, True])
def test_a_move_of_the_start_that_was_reported_as_failed(
    own_lab: Lab, happens: bool, is_blind: bool
) -> None:
    shard = sealed(own_lab)
    with lost_answers(own_lab.store.meta, happens=happens, is_blind=is_blind) as lost:
        if happens and not is_blind:
            shard.delete_before(15)
        else:
            with pytest.raises(StorageFailed):
                shard.delete_before(15)
    assert lost.lost_count
    own_lab.store.housekeep()
    start = 15 if happens else 0
    assert (shard.start, shard.offsets()) == (start, list(range(start, 30)))
    # Whatever happened, the next move works, and a restart finds the same.
    shard.delete_before(25)
    assert (shard.start, shard.segment_bases) == (25, [20, 30])
    own_lab.reopen()
    assert (shard.start, shard.offsets()) == (25, list(range(25, 30)))
    assert len(list(own_lab.path.glob("segments/*/*.log"))) <= 1


CHANGES: dict[str, Callable[[Shard], None]] = {
    "roll": lambda shard: shard.roll(),
    "delete_before": lambda shard: shard.delete_before(12),
    "reconfigure": lambda shard: shard.engine.reconfigure(
        shard.name, shard.status.spec.config.with_options({"retention.ms": 10**9})
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changes_that_happened_are_answered_as_such(own_lab: Lab, change: str) -> None:
    shard = sealed(own_lab)
    shard.append_each(numbered(5))
    with lost_answers(own_lab.store.meta, happens=True):
        CHANGES[change](shard)
    start, end = shard.start, shard.end
    shard.append_each(numbered(5))
    assert shard.offsets() == list(range(start, end + 5))
    own_lab.store.housekeep()
    assert shard.offsets() == list(range(start, end + 5))


def test_objects_stay_while_a_log_shows_them(tier_lab: TierLab) -> None:
    shard = sealed(tier_lab)
    for _ in range(4):
        tier_lab.move()
    assert [each.is_local for each in shard.status.segments[:-1]] == [False] * 3
    # 1. The start moves in the metadata; nobody can tell the log.
    meta = tier_lab.store.meta
    with lost_answers(meta, happens=True, is_blind=True), pytest.raises(StorageFailed):
        shard.delete_before(20)
    # 2. The mover knows it, the log does not: what the log shows can be read.
    tier_lab.move()
    assert shard.offsets() == list(range(shard.start, 30))
    # 3. Upkeep has the log follow, and the objects go.
    tier_lab.store.housekeep()
    assert (shard.start, shard.offsets()) == (20, list(range(20, 30)))
    tier_lab.move()
    assert len(list(tier_lab.objects.rglob("*.seg"))) == 1


@pytest.mark.parametrize("is_blind", [False, True])
def test_a_move_of_the_start_that_needs_several_transactions(
    own_lab: Lab, is_blind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = own_lab.shard({"memory.overflow": "spill"})
    for _ in range(8):
        shard.append_each(numbered(2))
        shard.roll()
    own_lab.store.housekeep()
    monkeypatch.setattr(SqliteMetaStore, "txn_ops_max", 4)
    lost = lost_answers(own_lab.store.meta, happens=False, is_blind=is_blind, after=1)
    with lost, pytest.raises(StorageFailed):
        shard.delete_before(16)
    for _ in range(3):
        own_lab.store.housekeep()
    assert (shard.start, shard.segment_bases) == (16, [16])
    own_lab.reopen()
    assert (shard.start, shard.end) == (16, 16)
    assert not list(own_lab.path.glob("segments/*/*.log"))
