"""What time and size do: expiry, retention, rolling, sealing. The clock is the tests' own."""

from itertools import pairwise

import pytest
from crc32c import crc32c

from firnmq.engines import Appended
from firnmq.engines.catalog.segments import SegmentState
from firnmq.errors import InvalidTimestamp, KeyNotFound, OffsetOutOfRange
from firnmq.record import Compression, NewRecord, encode, parse_header
from tests.conformance.lab import Lab, Shard, numbered
from tests.unit.record.batches import made, record

SEALED = {"retention.ms": 10**12}
"""With these options idle segments are sealed by their age in every layout."""


def test_a_topic_ttl_counts_from_the_timestamp(lab: Lab) -> None:
    shard = lab.shard({"ttl.ms": 1000})
    now = lab.clock.now_ms()
    shard.append(
        NewRecord(value=b"old", key=b"k", tags=("t",), timestamp_ms=now - 500),
        NewRecord(value=b"new", tags=("t",)),
    )
    lab.clock.advance(499)
    assert shard.offsets() == shard.raw_offsets() == shard.tagged("t") == [0, 1]
    lab.clock.advance(1)
    assert shard.offsets() == shard.raw_offsets() == shard.tagged("t") == [1]
    assert shard.at_time(0) == 1
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k")
    lab.clock.advance(500)
    assert shard.offsets() == shard.raw_offsets() == []
    assert (shard.start, shard.end) == (0, 2)


def test_the_earlier_of_ttl_and_own_expiry_counts(lab: Lab) -> None:
    shard = lab.shard({"ttl.ms": 1000})
    now = lab.clock.now_ms()
    shard.append(
        NewRecord(value=b"sooner", expire_at_ms=now + 10),
        NewRecord(value=b"later", expire_at_ms=now + 9999),
    )
    lab.clock.advance(10)
    assert shard.values() == [b"later"]
    lab.clock.advance(990)
    assert shard.values() == []


def test_an_expiry_is_shown_and_kept_in_its_header(lab: Lab) -> None:
    shard = lab.shard({"expire.header": "dies"})
    at = lab.clock.now_ms() + 10
    shard.append(NewRecord(value=b"v", expire_at_ms=at))
    (record,) = shard.records()
    assert (record.expire_at_ms, record.headers) == (at, (("dies", b"%d" % at),))


def test_a_record_that_has_expired_already_is_never_seen(lab: Lab) -> None:
    shard = lab.shard()
    shard.append(NewRecord(value=b"v", expire_at_ms=0), NewRecord(value=b"w"))
    assert shard.values() == [b"w"]


def test_retention_by_time_drops_sealed_segments_whose_newest_is_too_old(lab: Lab) -> None:
    shard = lab.shard({"retention.ms": 1000, "segment.ms": "none"})
    shard.append_values(b"a")
    shard.roll()
    lab.clock.advance(600)
    shard.append_values(b"b")
    shard.roll()
    lab.clock.advance(399)
    lab.engine.housekeep()
    assert shard.values() == [b"a", b"b"]
    lab.clock.advance(1)
    lab.engine.housekeep()
    assert (shard.values(), shard.start, shard.end) == ([b"b"], 1, 2)
    with pytest.raises(OffsetOutOfRange):
        shard.read(0)


def test_retention_by_time_rolls_an_active_segment_that_is_all_too_old(lab: Lab) -> None:
    shard = lab.shard({"retention.ms": 1000, "segment.ms": "none"})
    shard.append(*numbered(5))
    lab.clock.advance(1000)
    lab.engine.housekeep()
    assert (shard.values(), shard.start, shard.end) == ([], 5, 5)
    assert shard.append_values(b"v").base_offset == 5
    assert shard.values() == [b"v"]


def test_the_first_segment_that_stays_keeps_all_after_it(lab: Lab) -> None:
    shard = lab.shard({"retention.ms": 1000, "segment.ms": "none"})
    now = lab.clock.now_ms()
    for timestamp in (now + 5000, now - 5000):
        shard.append(NewRecord(value=b"v", timestamp_ms=timestamp))
        shard.roll()
    lab.engine.housekeep()
    assert shard.offsets() == [0, 1]


def test_ttl_drops_segments_in_which_everything_has_expired(lab: Lab) -> None:
    shard = lab.shard({"ttl.ms": 100})
    shard.append(*numbered(5))
    lab.clock.advance(100)
    lab.engine.housekeep()
    assert (shard.start, shard.end) == (5, 5)


def test_retention_by_size_keeps_at_least_that_much(lab: Lab) -> None:
    shard = lab.shard({"retention.bytes": 3000, "segment.bytes": 1024})
    shard.append_each(numbered(40, size=200))
    before = shard.status
    assert before.length_bytes > 6000
    lab.engine.housekeep()
    after = shard.status
    assert 3000 <= after.length_bytes < 3000 + 1024
    assert after.start_offset == after.segments[0].base_offset > 0
    assert shard.offsets() == list(range(after.start_offset, 40))
    lab.engine.housekeep()
    assert shard.status == after


def test_a_shard_rolls_before_it_grows_beyond_segment_bytes(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 2000})
    shard.append_each(numbered(30, size=300))
    segments = shard.status.segments
    assert len(segments) > 4
    for segment in segments[:-1]:
        assert segment.state is SegmentState.SEALED
        assert 2000 - 450 < segment.length <= 2000


def test_a_batch_larger_than_a_segment_gets_its_own(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 1024})
    shard.append_values(b"small")
    shard.append_values(b"x" * 5000)
    shard.append_values(b"small")
    assert shard.segment_bases == [0, 1, 2]
    assert [len(value or b"") for value in shard.values()] == [5, 5000, 5]


def test_a_shard_rolls_by_age_after_the_next_append(lab: Lab) -> None:
    shard = lab.shard({"segment.ms": 1000})
    shard.append_values(b"a")
    lab.clock.advance(999)
    shard.append_values(b"b")
    lab.clock.advance(1)
    shard.append_values(b"c")
    assert shard.segment_bases == [0, 3]


def test_a_shard_rolls_by_age_in_housekeeping(lab: Lab) -> None:
    shard = lab.shard({"segment.ms": 1000, **SEALED})
    shard.append_values(b"a")
    lab.clock.advance(1000)
    lab.engine.housekeep()
    assert shard.segment_bases == [0, 1]
    lab.clock.advance(5000)
    lab.engine.housekeep()
    assert shard.segment_bases == [0, 1], "an empty segment has no age"


def test_rolling_an_empty_segment_changes_nothing(shard: Shard) -> None:
    shard.roll()
    assert shard.segment_bases == [0]
    shard.append_values(b"v")
    shard.roll()
    shard.roll()
    assert shard.segment_bases == [0, 1]
    assert shard.append_values(b"w").base_offset == 1


def test_a_sealed_segment_is_described_exactly(lab: Lab) -> None:
    shard = lab.shard({"segment.bytes": 1500})
    for number in range(12):
        shard.append(
            *(NewRecord(value=b"v" * 150, timestamp_ms=1000 * number - part) for part in (0, 7))
            if number
            else (NewRecord(value=b"v", timestamp_ms=5),)
        )
    shard.roll()
    segments = shard.status.segments
    assert len(segments) > 3
    for before, after in pairwise(segments):
        assert (before.seq + 1, before.end_offset) == (after.seq, after.base_offset)
    for segment in segments[:-1]:
        page = shard.engine.read_batches(shard.name, segment.base_offset, max_bytes=2**31)
        raw = b"".join(bytes(batch) for batch in page.batches)[: segment.length]
        assert segment.crc == crc32c(raw)
        times = [
            record.timestamp_ms
            for record in shard.records()
            if segment.base_offset <= record.offset < segment.end_offset
        ]
        assert segment.max_timestamp == max(times)
        assert segment.sealed_ms == lab.clock.now_ms()
    assert shard.status.length_bytes == sum(segment.length for segment in segments)


@pytest.mark.parametrize("compression", list(Compression))
def test_records_get_the_time_of_their_append(lab: Lab, compression: Compression) -> None:
    """Batches of clients too: their records are stored as they came, the header says the rest."""
    options = {"message.timestamp.type": "LogAppendTime", "check.compressed": "false"}
    shard = lab.shard(options)
    now = lab.clock.now_ms()
    records = [NewRecord(value=b"%d" % i, timestamp_ms=5 + i) for i in range(3)]
    appended = shard.append_raw(bytes(encode(records, now_ms=0, compression=compression)))
    assert appended == Appended(0, 3, append_time_ms=now)
    lab.clock.advance(1000)
    shard.append(NewRecord(value=b"single", timestamp_ms=7))
    shard.append(*(NewRecord(value=b"many", timestamp_ms=7) for _ in range(20)))
    assert [each.timestamp_ms for each in shard.records()] == [now] * 3 + [now + 1000] * 21
    for raw in shard.engine.read_batches(shard.name, 0, max_bytes=2**31).batches:
        assert parse_header(raw).is_append_time
    assert shard.at_time(now + 1) == 3
    shard.delete(1)
    assert [each.timestamp_ms for each in shard.records()] == [now] * 2 + [now + 1000] * 21


def test_records_too_far_from_the_present_are_refused(lab: Lab) -> None:
    shard = lab.shard(
        {"message.timestamp.before.max.ms": 100, "message.timestamp.after.max.ms": 10}
    )
    now = lab.clock.now_ms()

    def batch(*times: int) -> bytes:
        records = [NewRecord(value=b"v", timestamp_ms=at) for at in times]
        return bytes(encode(records, now_ms=0, compression=Compression.LZ4))

    shard.append_raw(batch(now - 100, now + 10))
    for times, option, wrong in (
        ((now, now - 101, now), "message.timestamp.before.max.ms", [1]),
        ((now, now + 11), "message.timestamp.after.max.ms", [1]),
        ((now + 11, now - 200), "message.timestamp.after.max.ms", [0, 1]),
    ):
        with pytest.raises(InvalidTimestamp) as refused:
            shard.append_raw(batch(*times))
        assert (refused.value.option, refused.value.record_indexes) == (option, wrong)
        with pytest.raises(InvalidTimestamp):
            shard.append(*(NewRecord(value=b"v", timestamp_ms=at) for at in times))
    # A record that has no time is as old as it is here.
    shard.append_raw(made(record(), record(1), base_timestamp=-1, max_timestamp=-1))
    shard.append(NewRecord(value=b"stamped here"))
    assert shard.end == 5


def test_segments_are_sealed_a_different_time_early(lab: Lab) -> None:
    """Up to the jitter, and never later than without one."""
    shards = [
        lab.shard({"segment.ms": 1000, "segment.jitter.ms": 900, **SEALED}) for _ in range(30)
    ]
    for shard in shards:
        shard.append_values(b"first")
    sealed = []
    for _ in range(10):
        lab.clock.advance(100)
        lab.engine.housekeep()
        sealed.append(sum(len(shard.status.segments) > 1 for shard in shards))
    assert sealed[-1] == len(shards)
    assert 0 < sealed[3] < len(shards), "neither all at once nor all late"
