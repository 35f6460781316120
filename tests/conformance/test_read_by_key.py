"""Reading by key: the newest live record, wherever it is."""

import pytest

from firnmq.errors import IndexDisabled, KeyNotFound
from firnmq.record import NewRecord
from tests.conformance.lab import Lab, Shard


def keyed(key: bytes, value: bytes, **fields: int) -> NewRecord:
    return NewRecord(key=key, value=value, **fields)


def test_the_newest_record_of_a_key_is_found(shard: Shard) -> None:
    shard.append(keyed(b"k", b"1"), keyed(b"k", b"2"), keyed(b"other", b"3"))
    assert shard.by_key(b"k").value == b"2"
    shard.append(keyed(b"k", b"4"))
    record = shard.by_key(b"k")
    assert (record.value, record.offset, record.key) == (b"4", 3, b"k")


def test_a_page_by_key_carries_the_bounds(shard: Shard) -> None:
    shard.append(keyed(b"k", b"1"), keyed(b"l", b"2"))
    page = shard.engine.read_by_key(shard.name, b"k")
    assert (page.next_offset, page.start_offset, page.end_offset) == (1, 0, 2)


def test_it_is_found_in_any_segment(small_segments: Shard) -> None:
    shard = small_segments
    for number in range(60):
        shard.append(keyed(b"k%d" % (number % 7), b"%0100d" % number))
    assert len(shard.segment_bases) > 4
    shard.append(keyed(b"old", b"v"))
    for number in range(60):
        shard.append(keyed(b"k%d" % (number % 7), b"%0100d" % number))
    for key in range(7):
        assert shard.by_key(b"k%d" % key).offset == max(
            61 + number for number in range(60) if number % 7 == key
        )
    assert shard.by_key(b"old").offset == 60


@pytest.mark.parametrize(
    "key", [b"", b"\0", b"x" * 128, b"x" * 129, b"x" * 5000, "é\U0001f9ca".encode()]
)
def test_keys_of_any_kind(shard: Shard, key: bytes) -> None:
    shard.append(keyed(key + b"!", b"longer"), keyed(key, b"it"), keyed(key[:-1] + b"?", b"near"))
    assert shard.by_key(key).value == b"it"


def test_long_keys_that_begin_alike_are_told_apart(shard: Shard) -> None:
    start = b"s" * 300
    for number in range(20):
        shard.append(keyed(start + b"%d" % number, b"%d" % number))
    for number in range(20):
        assert shard.by_key(start + b"%d" % number).value == b"%d" % number


def test_an_unknown_key_is_not_found(shard: Shard) -> None:
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k")
    shard.append(keyed(b"k", b"v"), NewRecord(value=b"no key"))
    for key in (b"", b"K", b"kk"):
        with pytest.raises(KeyNotFound):
            shard.by_key(key)


def test_when_the_newest_is_deleted_the_one_before_is_found(small_segments: Shard) -> None:
    """The one before may be in the same batch, the same segment or an older one."""
    shard = small_segments
    shard.append(keyed(b"k", b"0"), keyed(b"k", b"1"))
    shard.append(keyed(b"k", b"2"))
    shard.roll()
    shard.append(NewRecord(value=b"no key"))
    shard.roll()
    shard.append(keyed(b"k", b"4"), keyed(b"k", b"5"), keyed(b"k", b"6"))
    for newest in (6, 5, 4, 2, 1, 0):
        assert shard.by_key(b"k").offset == newest
        shard.delete(newest)
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k")


def test_when_the_newest_has_expired_an_older_live_one_is_found(lab: Lab) -> None:
    shard = lab.shard()
    now = lab.clock.now_ms()
    shard.append(keyed(b"k", b"stays"))
    shard.append(keyed(b"k", b"goes", expire_at_ms=now + 100))
    assert shard.by_key(b"k").value == b"goes"
    lab.clock.advance(99)
    assert shard.by_key(b"k").value == b"goes"
    lab.clock.advance(1)
    assert shard.by_key(b"k").value == b"stays"
    assert shard.offsets() == [0]


def test_a_key_below_the_start_is_not_found(small_segments: Shard) -> None:
    small_segments.append(keyed(b"k", b"v"), NewRecord(value=b"w"), keyed(b"l", b"x"))
    small_segments.delete_before(1)
    with pytest.raises(KeyNotFound):
        small_segments.by_key(b"k")
    assert small_segments.by_key(b"l").offset == 2


def test_a_topic_without_the_index_says_so(lab: Lab) -> None:
    shard = lab.shard({"index.key": "false"})
    shard.append(keyed(b"k", b"v"))
    with pytest.raises(IndexDisabled) as caught:
        shard.by_key(b"k")
    assert caught.value.index == "key"


def test_deleting_by_key_works_without_the_index(lab: Lab) -> None:
    shard = lab.shard({"index.key": "false"})
    shard.append(keyed(b"k", b"v"), keyed(b"l", b"w"))
    shard.delete_key(b"k")
    shard.append(keyed(b"k", b"new"))
    assert shard.values() == [b"w", b"new"]
