"""Reading by tag: offset order, inclusive start, every tag of a record."""

import pytest

from firnmq.errors import IndexDisabled, OffsetOutOfRange
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard


def tagged(*tags: str, size: int = 1) -> NewRecord:
    return NewRecord(value=b"v" * size, tags=tags)


def test_records_of_a_tag_are_found_in_offset_order(shard: Shard) -> None:
    shard.append(tagged("a"), tagged("b"), tagged("a"))
    shard.append(tagged("b"))
    shard.append(tagged("a", "b"), tagged())
    assert shard.tagged("a") == [0, 2, 4]
    assert shard.tagged("b") == [1, 3, 4]
    assert shard.tagged("c") == []
    assert shard.by_tag("a").records()[2].tags == ("a", "b")


def test_the_start_is_inclusive(shard: Shard) -> None:
    shard.append(*[tagged("a")] * 5)
    shard.append(*[tagged("a")] * 5)
    for start in range(11):
        assert shard.tagged("a", start) == list(range(start, 10))


def test_pages_go_on_where_the_last_one_ended(small_segments: Shard) -> None:
    shard = small_segments
    for number in range(60):
        shard.append(*[tagged("even" if number % 2 == 0 else "odd", size=60)] * (1 + number % 3))
    assert len(shard.segment_bases) > 4
    wanted = [record.offset for record in shard.records() if "even" in record.tags]
    for size in (1, 3, 10, 1000):
        found, at = [], 0
        while at < shard.end:
            page = shard.by_tag("even", at, max_records=size)
            assert len(page) <= size
            assert page.next_offset > at
            found += [record.offset for record in page]
            at = page.next_offset
        assert found == wanted


def test_max_bytes_is_kept_across_batches(shard: Shard) -> None:
    for _ in range(30):
        shard.append(tagged("a", size=100), tagged("b", size=100))
    at, found = 0, []
    while at < shard.end:
        page = shard.by_tag("a", at, max_bytes=350)
        assert len(page) <= 3
        found += [record.offset for record in page]
        at = page.next_offset
    assert found == list(range(0, 60, 2))


def test_one_record_larger_than_max_bytes_is_still_given(shard: Shard) -> None:
    shard.append(tagged("b"), tagged("a", size=1000), tagged("a", size=1000))
    page = shard.by_tag("a", max_bytes=1)
    assert ([record.offset for record in page], page.next_offset) == ([1], 2)


def test_the_end_of_the_last_page_is_the_end_of_the_shard(shard: Shard) -> None:
    shard.append(tagged("a"), tagged("b"), tagged("b"))
    assert shard.by_tag("a").next_offset == 3
    assert shard.by_tag("nobody").next_offset == 3


@pytest.mark.parametrize("tag", ["", "t" * 128, "t" * 129, "t" * 4000, "färn ❄"])
def test_tags_of_any_kind(shard: Shard, tag: str) -> None:
    shard.append(tagged(tag), tagged(tag + "x"), tagged(tag[:-1] + "y"), tagged(tag, "z"))
    assert shard.tagged(tag) == [0, 3]


def test_a_tag_that_a_record_has_twice_gives_it_once(shard: Shard) -> None:
    shard.append(tagged("a", "a"), tagged("a"))
    assert shard.tagged("a") == [0, 1]


def test_headers_named_by_the_topic_are_tags(lab: Lab) -> None:
    shard = lab.shard({"tag.headers": "colour,size"})
    shard.append(
        NewRecord(value=b"1", headers=(("colour", b"red"), ("size", b"xl"))),
        NewRecord(value=b"2", headers=(("tag", b"red"),)),
        NewRecord(value=b"3", tags=("red",)),
    )
    assert shard.tagged("red") == [0, 2]
    assert shard.tagged("xl") == [0]
    assert shard.records()[2].headers == (("colour", b"red"),)


def test_deleted_records_are_not_found(small_segments: Shard) -> None:
    shard = small_segments
    for _ in range(10):
        shard.append(NewRecord(value=b"v" * 200, key=b"k", tags=("a",)), tagged("a", size=200))
    shard.delete(3, 4)
    assert shard.tagged("a") == [each for each in range(20) if each not in (3, 4)]
    shard.delete_key(b"k")
    assert shard.tagged("a") == [each for each in range(1, 20, 2) if each != 3]


def test_expired_records_are_not_found(lab: Lab) -> None:
    shard = lab.shard()
    soon = lab.clock.now_ms() + 10
    shard.append(tagged("a"), NewRecord(value=b"v", tags=("a",), expire_at_ms=soon))
    assert shard.tagged("a") == [0, 1]
    lab.clock.advance(10)
    assert shard.tagged("a") == [0]


def test_a_start_below_the_shard_begins_at_its_start(small_segments: Shard) -> None:
    small_segments.append(*[tagged("a")] * 10)
    small_segments.delete_before(4)
    assert small_segments.tagged("a") == list(range(4, 10))


@pytest.mark.parametrize("start", [-1, 4])
def test_a_start_that_cannot_be_is_refused(shard: Shard, start: int) -> None:
    shard.append(*[tagged("a")] * 3)
    with pytest.raises(OffsetOutOfRange):
        shard.tagged("a", start)


def test_a_topic_without_the_index_says_so(lab: Lab) -> None:
    shard = lab.shard({"index.tag": "false"})
    shard.append(tagged("a"))
    with pytest.raises(IndexDisabled) as caught:
        shard.tagged("a")
    assert caught.value.index == "tag"
    assert shard.records()[0].tags == ("a",)
