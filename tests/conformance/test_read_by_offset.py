"""Reading by offset: limits, borders of segments, the bounds of the shard."""

import pytest

from firnmq.errors import InvalidArgument, OffsetOutOfRange
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard, numbered


def test_max_records_limits_a_page_and_says_where_to_go_on(shard: Shard) -> None:
    shard.append(*numbered(10))
    shard.append(*numbered(10))
    page = shard.read(3, max_records=9)
    assert [record.offset for record in page] == list(range(3, 12))
    assert (page.next_offset, page.end_offset) == (12, 20)


def test_every_page_size_finds_every_record(small_segments: Shard) -> None:
    shard = small_segments
    for part in (1, 30, 2, 2, 40, 5):
        shard.append(*numbered(part, size=50))
    assert len(shard.segment_bases) > 2
    for size in (1, 2, 7, 79, 80, 1000):
        found, at = [], 0
        while at < shard.end:
            page = shard.read(at, max_records=size)
            assert 1 <= len(page) <= size
            found += [record.offset for record in page]
            at = page.next_offset
        assert found == list(range(80))


@pytest.mark.parametrize("count_per_request", [1, 5, 60])
def test_max_bytes_is_kept_across_batches(lab: Lab, count_per_request: int) -> None:
    shard = lab.shard({"segment.bytes": 2048})
    for _ in range(0, 60, count_per_request):
        shard.append(*[NewRecord(value=b"v" * 100)] * count_per_request)
    for max_bytes in (150, 350, 1000, 2500, 5000):
        found, at = 0, 0
        while at < 60:
            page = shard.read(at, max_bytes=max_bytes)
            assert len(page) >= 1
            # A record of 100 bytes takes a little more than that.
            assert len(page) == 1 or len(page) * 100 < max_bytes
            if page.next_offset < 60:
                assert (len(page) + 1) * 115 > max_bytes, "there was room for one more"
            found += len(page)
            at = page.next_offset
        assert found == 60


def test_one_record_larger_than_max_bytes_is_still_given(lab: Lab) -> None:
    shard = lab.shard()
    shard.append(*numbered(3, size=5000))
    for offset in range(3):
        page = shard.read(offset, max_bytes=1)
        assert [record.offset for record in page] == [offset]
        assert page.next_offset == offset + 1


def test_one_batch_larger_than_a_chunk_is_read_whole(lab: Lab) -> None:
    shard = lab.shard()
    shard.append_values(b"small")
    shard.append_values(*[b"x" * 700_000] * 4)
    shard.append_values(b"small")
    assert [len(value or b"") for value in shard.values()] == [5, *[700_000] * 4, 5]
    assert [record.offset for record in shard.read(3, max_records=1)] == [3]


def test_a_read_crosses_segment_borders(small_segments: Shard) -> None:
    small_segments.append_each(numbered(30, size=100))
    assert len(small_segments.segment_bases) > 3
    for start in range(30):
        assert [record.offset for record in small_segments.read(start)] == list(range(start, 30))


def test_a_read_at_the_end_is_an_empty_page(small_segments: Shard) -> None:
    small_segments.append_each(numbered(20, size=100))
    page = small_segments.read(20)
    assert (len(page), page.next_offset, page.end_offset) == (0, 20, 20)
    small_segments.roll()
    assert len(small_segments.read(20)) == 0


@pytest.mark.parametrize("offset", [-1, 4, 21, 2**62])
def test_outside_the_bounds_is_an_error_that_carries_both(lab: Lab, offset: int) -> None:
    shard = lab.shard()
    shard.append(*numbered(20))
    shard.delete_before(5)
    for read in (shard.read, shard.raw_records):
        with pytest.raises(OffsetOutOfRange) as caught:
            read(offset)
        error = caught.value
        assert (error.offset, error.start, error.end) == (offset, 5, 20)


@pytest.mark.parametrize("limit", [0, -1, True, 1.5, "1"])
def test_limits_that_cannot_be_meant_are_refused(shard: Shard, limit: int) -> None:
    shard.append_values(b"v")
    with pytest.raises(InvalidArgument):
        shard.read(0, max_records=limit)
    with pytest.raises(InvalidArgument):
        shard.read(0, max_bytes=limit)
    with pytest.raises(InvalidArgument):
        shard.raw_records(0, max_bytes=limit)
    with pytest.raises(InvalidArgument):
        shard.by_tag("t", max_records=limit)
    with pytest.raises(InvalidArgument):
        shard.by_tag("t", max_bytes=limit)


def test_sequential_reads_meet_what_was_appended_between_them(shard: Shard) -> None:
    """The second read goes on from a remembered place, within a batch and at its end."""
    at = 0
    seen = []
    for number in range(30):
        shard.append(*numbered(1 + number % 4))
        page = shard.read(at, max_records=2)
        seen += [record.offset for record in page]
        at = page.next_offset
    seen += [record.offset for record in shard.read(at)]
    assert seen == list(range(shard.end))


def test_raw_reads_give_whole_batches_from_the_one_that_holds_the_offset(shard: Shard) -> None:
    for _ in range(4):
        shard.append(*numbered(50))
    page = shard.engine.read_batches(shard.name, 60, max_bytes=1)
    assert [record.offset for record in shard.raw_records(60, 1)] == list(range(50, 100))
    assert page.next_offset == 100
    assert [record.offset for record in shard.raw_records(100)] == list(range(100, 200))
    assert len(shard.engine.read_batches(shard.name, 200, max_bytes=1).batches) == 0


def test_raw_reads_keep_max_bytes(small_segments: Shard) -> None:
    small_segments.append_each(numbered(40, size=100))
    for max_bytes in (1, 200, 500, 1000, 10_000):
        at, found = 0, []
        while at < 40:
            page = small_segments.engine.read_batches(small_segments.name, at, max_bytes=max_bytes)
            total = sum(map(len, page.batches))
            assert total <= max_bytes or page.next_offset == at + 1
            found += [record.offset for record in small_segments.raw_records(at, max_bytes)]
            assert page.next_offset > at
            at = page.next_offset
        assert found == list(range(40))
