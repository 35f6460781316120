"""Deleting: a hole in every kind of read, an entry that takes an offset, a start that moves."""

import pytest

from firnmq.errors import Corruption, KeyNotFound, OffsetOutOfRange
from firnmq.record import NewRecord, parse_header
from tests.conformance.lab import Lab, Shard, numbered


def rich(number: int) -> NewRecord:
    return NewRecord(
        value=b"%0200d" % number,
        key=b"k%d" % (number % 4),
        tags=("all", f"t{number % 3}"),
        timestamp_ms=1000 + number,
    )


def filled(shard: Shard, count: int = 30) -> Shard:
    """Batches of one to three records over several segments."""
    number = 0
    while number < count:
        size = min(1 + number % 3, count - number)
        shard.append(*(rich(each) for each in range(number, number + size)))
        number += size
    return shard


def everywhere(shard: Shard) -> list[list[int]]:
    """The offsets that each kind of read over everything shows."""
    timely = []
    at = shard.at_time(0)
    while at < shard.end:
        timely.append(at)
        at = shard.at_time(1000 + at + 1)
    # The batch that holds the start is given whole; a client drops what is below.
    raw = [offset for offset in shard.raw_offsets() if offset >= shard.start]
    return [shard.offsets(), raw, shard.tagged("all"), timely]


def test_a_deleted_offset_is_gone_from_every_read(small_segments: Shard) -> None:
    shard = filled(small_segments)
    assert len(shard.segment_bases) > 3
    gone = {0, 7, 8, 15, 29}
    shard.delete(*gone)
    live = [offset for offset in range(30) if offset not in gone]
    assert everywhere(shard) == [live] * 4
    for key in range(4):
        newest = max(offset for offset in live if offset % 4 == key)
        assert shard.by_key(b"k%d" % key).offset == newest
    assert (shard.start, shard.end) == (0, 31)


def test_a_deleted_key_is_gone_from_every_read(small_segments: Shard) -> None:
    shard = filled(small_segments)
    shard.delete_key(b"k1")
    live = [offset for offset in range(30) if offset % 4 != 1]
    assert everywhere(shard) == [live] * 4
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k1")
    assert shard.by_key(b"k2").offset == 26
    assert shard.end == 31


def test_a_new_record_of_a_deleted_key_is_visible(small_segments: Shard) -> None:
    shard = filled(small_segments)
    shard.delete_key(b"k1")
    shard.append(rich(33))
    assert shard.by_key(b"k1").offset == 31
    assert shard.offsets()[-1] == shard.raw_offsets()[-1] == shard.tagged("all")[-1] == 31
    shard.delete_key(b"k1")
    with pytest.raises(KeyNotFound):
        shard.by_key(b"k1")


def test_deleting_what_is_not_there_is_no_error(small_segments: Shard) -> None:
    shard = filled(small_segments)
    before = everywhere(shard)
    shard.delete_key(b"unknown")
    shard.delete_key(b"")
    shard.delete(-1, 30, 31, 2**62)
    shard.delete()
    assert (everywhere(shard), shard.end) == (before, 30)
    shard.delete(5)
    shard.delete(5, 5)
    assert 5 not in shard.offsets()
    assert shard.end == 31


def test_a_deletion_does_not_reach_records_yet_to_come(shard: Shard) -> None:
    shard.append_values(b"a")
    shard.delete(1)
    shard.delete_key(b"k")
    shard.append(NewRecord(value=b"b", key=b"k"))
    assert shard.values() == [b"a", b"b"]
    assert shard.by_key(b"k").offset == 1


def test_reads_step_over_holes_and_always_advance(small_segments: Shard) -> None:
    """At least one record if there is one, also behind segments that are all holes."""
    shard = filled(small_segments)
    shard.delete(*range(2, 27))
    page = shard.read(1, max_records=2)
    assert [record.offset for record in page] == [1, 27]
    page = shard.read(5, max_records=1)
    assert ([record.offset for record in page], page.next_offset) == ([27], 28)
    raw = shard.engine.read_batches(shard.name, 3, max_bytes=1)
    assert shard.raw_records(3, 1)[0].offset == 27
    assert raw.next_offset > 27
    shard.delete(*range(27, 30))
    page = shard.read(2)
    assert (len(page), page.next_offset) == (0, 32)
    raw = shard.engine.read_batches(shard.name, 2, max_bytes=1)
    (entry,) = map(parse_header, raw.batches)
    assert (entry.is_control, entry.base_offset, raw.next_offset) == (True, 30, 31)
    assert shard.raw_records(2) == []


def test_raw_reads_around_holes_keep_max_bytes_and_find_all(small_segments: Shard) -> None:
    shard = filled(small_segments)
    shard.delete(*range(0, 30, 2), *range(9, 15))
    live = shard.offsets()
    for max_bytes in (1, 500, 1200, 100_000):
        at, found = 0, []
        while at < shard.end:
            page = shard.engine.read_batches(shard.name, at, max_bytes=max_bytes)
            assert page.next_offset > at
            assert sum(map(len, page.batches)) <= max_bytes or len(page.batches) == 1
            found += [record.offset for record in shard.raw_records(at, max_bytes)]
            at = page.next_offset
        assert found == live


def test_raw_batches_around_holes_keep_everything_else(shard: Shard) -> None:
    shard.append(*(rich(number) for number in range(50)))
    whole = {record.offset: record for record in shard.raw_records()}
    shard.delete(0, 10, 49)
    assert shard.raw_records() == [whole[each] for each in range(50) if each not in (0, 10, 49)]


def test_everything_of_a_shard_can_be_deleted(small_segments: Shard) -> None:
    shard = filled(small_segments)
    shard.delete(*range(30))
    assert everywhere(shard) == [[], [], [], []]
    assert shard.at_time(0) == 31
    assert (shard.start, shard.end) == (0, 31)
    assert shard.append(rich(31)).base_offset == 31
    assert everywhere(shard) == [[31]] * 4


def test_delete_before_moves_the_start(small_segments: Shard) -> None:
    shard = filled(small_segments)
    bases = shard.segment_bases
    for start in (1, bases[1], bases[2] + 1, 29):
        shard.delete_before(start)
        assert (shard.start, shard.end) == (start, 30)
        assert everywhere(shard) == [list(range(start, 30))] * 4
        assert shard.segment_bases == [
            base
            for base in bases
            if base >= start or base == max(each for each in bases if each <= start)
        ]


def test_delete_before_at_and_beyond_the_bounds(small_segments: Shard) -> None:
    shard = filled(small_segments)
    shard.delete_before(10)
    shard.delete_before(4)
    shard.delete_before(-1)
    assert shard.start == 10
    with pytest.raises(OffsetOutOfRange) as caught:
        shard.delete_before(31)
    assert (caught.value.start, caught.value.end) == (10, 30)
    shard.delete_before(30)
    assert (shard.start, shard.end, shard.offsets()) == (30, 30, [])
    assert shard.append(rich(30)).base_offset == 30
    assert everywhere(shard) == [[30]] * 4


def test_holes_below_a_moved_start_are_forgotten(lab: Lab) -> None:
    shard = filled(lab.shard({"segment.bytes": 1024}))
    shard.delete(3, 4, 20)
    shard.delete_key(b"k1")
    shard.delete_before(15)
    live = [each for each in range(15, 30) if each != 20 and each % 4 != 1]
    assert everywhere(shard) == [live] * 4


def test_many_holes(shard: Shard) -> None:
    shard.append(*numbered(3000))
    shard.delete(*range(1, 3000, 2))
    assert shard.offsets() == list(range(0, 3000, 2)) == shard.raw_offsets()


def test_many_offsets_make_several_entries(shard: Shard) -> None:
    shard.append(*numbered(10_000))
    shard.delete(*range(9_000))
    assert shard.offsets() == list(range(9_000, 10_000)) == shard.raw_offsets()
    assert shard.end == 10_003


def test_entries_are_no_records(small_segments: Shard) -> None:
    """1. Deletions come between appends and over segments. 2. No read shows an entry, and those by
    time pass over them. 3. The same after the segments are sealed and compacted."""
    shard = small_segments
    for number in range(20):
        shard.append(rich(shard.end))
        if number % 3 == 0:
            shard.delete(shard.end - 1)
        elif number % 3 == 1:
            shard.delete_key(b"no such key")
    live = shard.offsets()
    assert len(live) == 13
    assert everywhere(shard) == [live] * 4
    assert shard.status.max_timestamp == 1000 + live[-1]
    newest = shard.engine.newest_record(shard.name, committed=True)
    assert newest == (live[-1], 1000 + live[-1])
    shard.roll()
    assert everywhere(shard) == [live] * 4


@pytest.mark.parametrize("has_index", [True, False])
def test_what_is_deleted_already_takes_no_offset(lab: Lab, has_index: bool) -> None:
    shard = lab.shard({"segment.bytes": 1024, "index.key": has_index})
    filled(shard)
    shard.delete_key(b"k1")
    shard.delete(2, 3)
    end = shard.end
    assert end == 32
    # 1. The same again, and the entries themselves.
    for _ in range(3):
        assert shard.engine.delete_by_key(shard.name, b"k1") is None
        assert shard.engine.delete_by_offset(shard.name, [2, 3, 30, 31]) == []
    assert shard.end == end
    # 2. The same with a record of the key that is new.
    shard.append(rich(33))
    assert shard.engine.delete_by_key(shard.name, b"k1") == end + 1
    assert shard.engine.delete_by_key(shard.name, b"k1") is None
    live = [offset for offset in range(30) if offset % 4 != 1 and offset not in (2, 3)]
    assert shard.offsets() == live
    # 3. After the start has moved, and in other segments.
    shard.roll()
    shard.delete_before(10)
    assert shard.engine.delete_by_key(shard.name, b"k1") is None
    shard.append(rich(37), rich(38))
    assert shard.engine.delete_by_key(shard.name, b"k1") == shard.end - 1
    assert [offset for offset in shard.offsets() if offset < 30] == live[live.index(10) :]


def test_reads_pass_over_thousands_of_entries(shard: Shard) -> None:
    shard.append(*numbered(3_000))
    for first in range(0, 1_000, 2):
        shard.delete(first)
    shard.append(*numbered(10))
    live = [each for each in range(3_000) if each >= 1_000 or each % 2] + list(range(3_500, 3_510))
    assert shard.offsets() == live
    paged = []
    at = 0
    while at < shard.end:
        page = shard.read(at, max_records=97)
        paged += [record.offset for record in page.records()]
        assert page.next_offset > at
        at = page.next_offset
    assert paged == live
    assert [record.offset for record in shard.read(3_200).records()] == live[-10:]


def test_a_damaged_batch_is_no_entry(own_lab: Lab) -> None:
    """A bit that makes a control batch of records must not make them vanish."""
    if own_lab.storage_type != "EngineSegment":
        pytest.skip("the file is damaged on disk")
    shard = own_lab.shard()
    shard.append(*numbered(5))
    shard.append(*numbered(5))
    shard.delete(1)
    second = bytes(shard.engine.read_batches(shard.name, 5, max_bytes=1).batches[0])
    own_lab.reopen()
    for path in own_lab.path.glob("s*/**/*.log"):
        data = bytearray(path.read_bytes())
        found = data.find(second)
        if found >= 0:
            data[found + 22] ^= 0x20  # The control bit of the batch's attributes.
            path.write_bytes(data)
    with pytest.raises(Corruption):
        shard.offsets()
    assert [record.offset for record in shard.read(0, max_records=4).records()] == [0, 2, 3, 4]
