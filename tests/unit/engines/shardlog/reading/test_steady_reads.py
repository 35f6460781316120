"""Readers that meet a change at every attempt get their answer all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.engines.catalog.segments import SegmentGone
from firnmq.engines.engine import LogEngine
from firnmq.engines.shardlog import LogReader, RawReader, ShardLog
from firnmq.engines.shardlog.reading.records import NotPublished
from firnmq.engines.shardlog.view import View
from firnmq.errors import Corruption, TimedOut
from firnmq.record import NewRecord, decode
from tests.conformance.lab import Lab, Shard


@pytest.fixture(params=["EngineMemory", "EngineRocksDB", "EngineSegment"])
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shard]:
    lab = Lab(tmp_path / "data", request.param)
    yield lab.shard()
    lab.close()


def log_of(shard: Shard) -> ShardLog:
    engine = shard.engine
    assert isinstance(engine, LogEngine)
    return engine.log(shard.name)


def test_a_reader_that_is_cut_off_every_time_reads_at_last(shard: Shard) -> None:
    shard.append_values(b"kept")
    log = log_of(shard)
    held: list[bool] = []

    def read(view: View) -> int:
        held.append(log.lock.locked())
        if not held[-1]:  # Somebody cuts and appends while the reader is at work.
            shard.append_values(b"cut")
            shard.truncate(1)
        return view.end_offset

    assert LogReader(log, 0)._steadily(read) == 1
    assert held[-1]
    assert not any(held[:-1])
    assert not log.lock.locked()
    assert shard.values() == [b"kept"]


def test_a_reader_does_not_wait_for_the_store_while_appends_wait_for_it(shard: Shard) -> None:
    """What was here when it began to wait for the lock may be in the store alone when it has it."""
    shard.append_values(b"v")
    log = log_of(shard)
    lock = log.lock

    class Dropping:
        def __enter__(self) -> None:
            lock.acquire()
            log.cold_end_offset = 1

        def __exit__(self, *error: object) -> None:
            lock.release()

    log.lock = Dropping()  # type: ignore[assignment]

    def read(view: View) -> int:
        assert not lock.locked()
        raise NotPublished

    try:
        with pytest.raises(TimedOut):
            LogReader(log, 0)._steadily(read)
    finally:
        log.lock = lock


def test_a_start_that_moves_meanwhile_brings_nothing_back(shard: Shard) -> None:
    """The log forgets deletions that its start has passed; who reads from an older one needs them
    still, for records and for whole batches alike."""
    for number in range(10):
        shard.append(NewRecord(key=b"%d" % number, value=b"v"))
    shard.delete(2)
    shard.delete_key(b"4")
    log = log_of(shard)
    records, batches, stored = LogReader(log, 0), LogReader(log, 0), RawReader(log, 0)
    planner = LogReader(log, 0)
    shard.delete_before(12)
    assert not log.deletions
    live = [0, 1, 3, 5, 6, 7, 8, 9]
    assert [each.offset for each in records.by_offset(0, 100, 10_000)] == live
    assert list(decode(batches.raw(0, 10_000).batches).offsets) == live
    survey = planner.survey(lambda survey: survey)
    assert (survey.start_offset, survey.holes, survey.dead_keys) == (0, {2}, {b"4": 11})
    page = stored.checked(0, 10_000, committed=False, ranges=False)
    assert list(decode([memoryview(each) for each in page.contents]).offsets) == live


def test_what_is_gone_for_good_is_said_to_be(shard: Shard) -> None:
    shard.append_values(b"v")
    log = log_of(shard)

    def read(view: View) -> int:
        raise SegmentGone("some file", "is not there")

    with pytest.raises(Corruption, match="some file"):
        LogReader(log, 0)._steadily(read)
    assert not log.lock.locked()
