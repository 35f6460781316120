"""Truncating: the active segment only, between batches only, and nothing left of what was cut."""

import pytest
from crc32c import crc32c

from firnmq.errors import InvalidArgument, KeyNotFound
from firnmq.record import NewRecord
from tests.conformance.lab import Shard, numbered


def rich(label: str) -> NewRecord:
    return NewRecord(value=label.encode(), key=label.encode(), tags=("t",))


def test_a_cut_at_a_batch_border_takes_everything_above(shard: Shard) -> None:
    for size in (3, 2, 4):
        shard.append(*numbered(size, key=b"k", tags=("t",)))
    shard.truncate(5)
    assert shard.end == 5
    for found in (shard.offsets(), shard.raw_offsets(), shard.tagged("t")):
        assert found == [0, 1, 2, 3, 4]
    assert shard.by_key(b"k").offset == 4
    assert shard.at_time(0) == 0
    assert shard.at_time(2**50) == 5


def test_what_is_appended_after_a_cut_takes_the_offsets(shard: Shard) -> None:
    shard.append(rich("a"))
    shard.append(rich("old"))
    shard.truncate(1)
    assert shard.append(rich("new")).base_offset == 1
    assert shard.values() == [b"a", b"new"]
    assert shard.tagged("t") == [0, 1]
    assert shard.by_key(b"new").offset == 1
    with pytest.raises(KeyNotFound):
        shard.by_key(b"old")


def test_a_cut_within_a_batch_is_refused_and_names_its_borders(shard: Shard) -> None:
    shard.append(*numbered(3))
    shard.append(*numbered(5))
    for offset in (1, 2, 4, 7):
        with pytest.raises(InvalidArgument):
            shard.truncate(offset)
    assert shard.offsets() == list(range(8))
    shard.append_values(b"more")
    assert shard.end == 9


def test_a_sealed_segment_is_not_cut(shard: Shard) -> None:
    shard.append(*numbered(3))
    shard.roll()
    shard.append(*numbered(2))
    for offset in (0, 2):
        with pytest.raises(InvalidArgument):
            shard.truncate(offset)
    shard.truncate(3)
    assert shard.offsets() == [0, 1, 2]
    assert shard.append_values(b"v").base_offset == 3


def test_outside_the_shard_is_refused(shard: Shard) -> None:
    shard.append(*numbered(3))
    for offset in (-1, 4):
        with pytest.raises(InvalidArgument):
            shard.truncate(offset)


def test_below_the_start_is_refused(shard: Shard) -> None:
    shard.append(*numbered(3))
    shard.append(*numbered(3))
    shard.delete_before(4)
    for offset in (0, 3):
        with pytest.raises(InvalidArgument):
            shard.truncate(offset)
    assert (shard.start, shard.end) == (4, 6)


def test_at_the_end_nothing_happens(shard: Shard) -> None:
    shard.truncate(0)
    shard.append(*numbered(3))
    shard.truncate(3)
    assert shard.offsets() == [0, 1, 2]


def test_everything_can_be_cut(shard: Shard) -> None:
    shard.append(rich("a"), rich("b"))
    shard.truncate(0)
    assert (shard.start, shard.end, shard.offsets(), shard.tagged("t")) == (0, 0, [], [])
    shard.append(rich("c"))
    assert shard.values() == [b"c"]


def test_deletions_above_the_cut_do_not_hide_new_records(shard: Shard) -> None:
    shard.append(rich("a"))
    shard.append(rich("b"), rich("c"))
    shard.append(rich("d"))
    shard.delete(0, 2, 3)
    shard.delete_key(b"b")
    shard.truncate(1)
    shard.append(rich("b"), rich("x"), rich("y"))
    assert shard.values() == [b"a", b"b", b"x", b"y"]
    assert shard.raw_offsets() == shard.tagged("t") == [0, 1, 2, 3]
    assert shard.by_key(b"b").offset == 1


def test_truncation_undoes_deletions_above_it_alone(shard: Shard) -> None:
    shard.append(rich("a"), rich("b"))
    shard.delete_key(b"a")
    shard.append(rich("a"))
    shard.delete_key(b"a")
    shard.delete(1)
    assert shard.offsets() == []
    shard.truncate(4)
    assert shard.offsets() == [1, 3]
    assert shard.by_key(b"a").offset == 3
    shard.truncate(2)
    assert (shard.end, shard.offsets()) == (2, [0, 1])


def test_a_cut_far_into_a_segment_is_found(shard: Shard) -> None:
    for _ in range(30):
        shard.append(*numbered(100))
    shard.truncate(2100)
    assert shard.offsets() == list(range(2100))
    shard.append(*numbered(100))
    assert [record.offset for record in shard.read(2050)] == list(range(2050, 2200))
    assert shard.at_time(0) == 0


def test_a_segment_that_was_cut_seals_with_the_crc_of_its_bytes(shard: Shard) -> None:
    shard.append(*numbered(3))
    shard.append(*numbered(3))
    shard.truncate(3)
    shard.append(*numbered(4))
    shard.roll()
    meta = shard.status.segments[0]
    raw = b"".join(
        bytes(batch) for batch in shard.engine.read_batches(shard.name, 0, max_bytes=2**31).batches
    )
    assert (meta.end_offset, meta.length, meta.crc) == (7, len(raw), crc32c(raw))
