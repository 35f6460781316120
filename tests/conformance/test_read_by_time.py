"""Finding an offset by time: first record at least as young, by timestamp, not by position."""

import pytest

from firnmq.engines import AdapterOffsetStrategy
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard

EARLIEST, LATEST = AdapterOffsetStrategy.EARLIEST, AdapterOffsetStrategy.LATEST


def at(timestamp_ms: int, size: int = 1) -> NewRecord:
    return NewRecord(value=b"v" * size, timestamp_ms=timestamp_ms)


def test_the_first_record_that_is_young_enough(shard: Shard) -> None:
    shard.append(at(100), at(200), at(300))
    shard.append(at(400))
    for timestamp, offset in [(0, 0), (100, 0), (101, 1), (200, 1), (250, 2), (400, 3)]:
        for strategy in (EARLIEST, LATEST):
            assert shard.at_time(timestamp, strategy) == offset


def test_beyond_the_last_record_the_strategy_decides(small_segments: Shard) -> None:
    small_segments.append_each(at(number, size=300) for number in range(10))
    small_segments.delete_before(2)
    assert small_segments.at_time(1000, EARLIEST) == 2
    assert small_segments.at_time(1000, LATEST) == 10


def test_an_empty_shard_answers_with_its_bounds(shard: Shard) -> None:
    assert shard.at_time(0, EARLIEST) == shard.at_time(0, LATEST) == 0
    shard.append(at(5))
    shard.delete_before(1)
    assert shard.at_time(0, EARLIEST) == shard.at_time(0, LATEST) == 1


def test_equal_timestamps_give_the_first(shard: Shard) -> None:
    shard.append(at(1), at(5), at(5))
    shard.append(at(5))
    assert shard.at_time(5) == 1


@pytest.mark.parametrize("in_one_batch", [True, False])
def test_timestamps_out_of_order(lab: Lab, in_one_batch: bool) -> None:
    shard = lab.shard({"segment.bytes": 1024})
    times = [500, 100, 900, 300, 50, 700, 901, 2, 900, 1000, 3]
    if in_one_batch:
        shard.append(*map(at, times))
    else:
        shard.append_each(at(time, size=250) for time in times)
        assert len(shard.segment_bases) > 2
    for wanted in range(0, 1002):
        first = next((n for n, time in enumerate(times) if time >= wanted), len(times))
        assert shard.at_time(wanted) == first, wanted


def test_far_into_a_long_shard(lab: Lab) -> None:
    """Beyond the first index points, which are a thousand records apart."""
    shard = lab.shard({"segment.bytes": 65536})
    for start in range(0, 8000, 500):
        shard.append(*(at(10 * number) for number in range(start, start + 500)))
    assert len(shard.segment_bases) > 1
    for offset in (0, 1, 999, 1000, 1001, 2500, 4999, 7000, 7999):
        assert shard.at_time(10 * offset) == offset
        assert shard.at_time(10 * offset - 9) == offset
    assert shard.at_time(79_991) == 8000


def test_a_deleted_record_is_passed_over(shard: Shard) -> None:
    shard.append(at(10), at(20), at(30), at(40))
    shard.delete(1)
    assert shard.at_time(15) == 2
    shard.delete(2, 3)
    assert shard.at_time(15, EARLIEST) == 0
    assert shard.at_time(15, LATEST) == shard.end == 6


def test_a_record_without_a_timestamp_gets_the_time_of_its_append(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"a")
    lab.clock.advance(1000)
    shard.append_values(*[b"b"] * 40)
    now = lab.clock.now_ms()
    assert [shard.at_time(now - 1000), shard.at_time(now - 999), shard.at_time(now + 1)] == [
        0,
        1,
        41,
    ]
