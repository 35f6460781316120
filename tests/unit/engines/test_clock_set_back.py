"""A clock that is set back delays nothing for longer than it would have waited anyway."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firnmq.config import StorageType, StoreConfig
from firnmq.record import NewRecord
from tests.conformance.lab import Lab
from tests.unit.engines.transactional import TransactionalProducer

DAY_MS = 24 * 3_600_000
YEAR_MS = 365 * DAY_MS


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    config = StoreConfig(producer_expiration_ms=1_000)
    made = Lab(tmp_path / "data", StorageType.SEGMENT.value, config=config)
    yield made
    made.close()


def expect_after(lab: Lab, wait_ms: int, is_done: Callable[[], bool]) -> None:
    """Sets the clock back, and expects the change after `wait_ms`, neither earlier nor later."""
    lab.clock.set_back(YEAR_MS)
    lab.engine.housekeep()
    assert not is_done()
    lab.clock.advance(wait_ms - 1)
    lab.engine.housekeep()
    assert not is_done()
    lab.clock.advance(1)
    lab.engine.housekeep()
    assert is_done()


def test_retention(lab: Lab) -> None:
    shard = lab.shard({"retention.ms": DAY_MS})
    for _ in range(3):
        shard.append_values(b"old")
        shard.roll()
    expect_after(lab, DAY_MS, lambda: shard.start == 3)


def test_rolling_by_age(lab: Lab) -> None:
    shard = lab.shard({"segment.ms": DAY_MS})
    shard.append_values(b"v")
    expect_after(lab, DAY_MS, lambda: shard.segment_bases == [0, 1])


def test_rolling_by_age_after_a_restart(lab: Lab) -> None:
    shard = lab.shard({"segment.ms": DAY_MS})
    shard.append_values(b"v")
    lab.clock.set_back(YEAR_MS)
    lab.reopen()
    assert shard.values() == [b"v"]
    lab.engine.housekeep()
    lab.clock.advance(DAY_MS)
    shard.append_values(b"w")
    assert shard.segment_bases == [0, 2]


def test_producers_that_have_gone(lab: Lab) -> None:
    shard = lab.shard()
    producer = TransactionalProducer(1)
    shard.append_raw(producer.batch(shard, NewRecord(value=b"v"), transactional=False))
    lab.clock.set_back(YEAR_MS)
    lab.engine.housekeep()
    lab.clock.advance(1_000)
    lab.engine.housekeep()
    assert len(lab.engine.log(shard.name).producers) == 1
    lab.clock.advance(1)
    lab.engine.housekeep()
    assert len(lab.engine.log(shard.name).producers) == 0


def test_tombstones(lab: Lab) -> None:
    options = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "delete.retention.ms": DAY_MS,
    }
    shard = lab.shard(options)
    shard.append(NewRecord(key=b"k", value=None))
    shard.append(NewRecord(key=b"other", value=b"v"))
    shard.roll()
    lab.engine.housekeep()
    assert shard.offsets() == [0, 1]
    expect_after(lab, DAY_MS, lambda: shard.offsets() == [1])


def test_what_is_too_young_to_be_compacted(lab: Lab) -> None:
    options = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": 0,
        "min.compaction.lag.ms": DAY_MS,
    }
    shard = lab.shard(options)
    shard.append_each([NewRecord(key=b"k", value=b"1"), NewRecord(key=b"k", value=b"2")])
    shard.roll()
    expect_after(lab, DAY_MS, lambda: shard.offsets() == [1])
