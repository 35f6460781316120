"""Batches for a client that takes them as they are: the same whichever way they are found."""

import os
import random

import pytest

from firnmq.disk import FileRange
from firnmq.engines.shardlog.reading.raw import RANGE_BYTES_MIN
from firnmq.errors import Corruption, OffsetOutOfRange, ShardNotFound
from firnmq.record import NewRecord, decode, walk
from tests.conformance.lab import EVERYTHING, Lab, Shard, numbered
from tests.conformance.stored import checked, content, nowait, stored
from tests.unit.engines.transactional import TransactionalProducer

LARGE = 40_000
"""A record of this size makes a batch that is sent by range."""


def everything(shard: Shard, max_bytes: int, *, ranges: bool) -> bytes:
    """What a client gets that goes on from page to page."""
    at, found = shard.start, b""
    while at < shard.end:
        page = stored(shard, at, max_bytes=max_bytes, ranges=ranges)
        assert page.next_offset > at
        found += content(page)
        at = page.next_offset
    return found


def as_stored(shard: Shard) -> bytes:
    page = shard.engine.read_batches(shard.name, shard.start, max_bytes=EVERYTHING)
    return b"".join(bytes(batch) for batch in page.batches)


@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("max_bytes", [1, 700, 70_000, 10**6, EVERYTHING])
def test_a_client_gets_every_byte_once(lab: Lab, max_bytes: int, ranges: bool) -> None:
    shard = lab.shard({"segment.bytes": 400_000})
    rng = random.Random(7)
    for number in range(60):
        shard.append_values(*[b"%d" % number * rng.randrange(1, 9_000) for _ in range(3)])
    assert len(shard.segment_bases) > 2
    for _ in range(2):  # What the first reader found out serves the second.
        assert everything(shard, max_bytes, ranges=ranges) == as_stored(shard)


def test_a_page_is_whole_batches_from_the_one_that_holds_the_offset(shard: Shard) -> None:
    for _ in range(20):
        shard.append(*numbered(10, size=5_000))
    for offset in (0, 7, 10, 95, 100, 199):
        for max_bytes in (1, 60_000, 120_000, EVERYTHING):
            for page in (
                checked(shard, offset, max_bytes=max_bytes),
                stored(shard, offset, max_bytes=max_bytes),
            ):
                data = content(page)
                batches = walk(data).headers
                assert sum(batch.size for batch in batches) == len(data)
                assert batches[0].base_offset == offset - offset % 10
                assert page.next_offset == batches[-1].last_offset + 1
                assert len(data) <= max_bytes or len(batches) == 1


def test_no_room_gives_the_bounds_alone(shard: Shard) -> None:
    shard.append_values(b"a", b"b")
    for page in (checked(shard, 0, max_bytes=0), nowait(shard, 0, max_bytes=0), checked(shard, 2)):
        assert page is not None
        assert (page.contents, page.start_offset, page.end_offset) == ((), 0, 2)


def test_offsets_outside_and_shards_that_are_not_there(shard: Shard) -> None:
    shard.append_values(b"a")
    for offset in (-1, 2):
        for read in (checked, nowait):
            with pytest.raises(OffsetOutOfRange):
                read(shard, offset)
    with pytest.raises(ShardNotFound):
        checked(Shard(shard.lab, "nowhere"), 0)
    assert nowait(Shard(shard.lab, "nowhere"), 0) is None


def test_deleted_records_are_not_in_what_is_sent(shard: Shard) -> None:
    shard.append(*numbered(10))
    assert content(stored(shard, 0))
    shard.delete(3)
    offsets = [each.offset for each in decode([content(stored(shard, 0))]).records()]
    assert offsets == [0, 1, 2, 4, 5, 6, 7, 8, 9]


def test_a_cut_takes_back_what_was_known(shard: Shard) -> None:
    for number in range(8):
        shard.append_values(b"%d" % number * LARGE)
    assert everything(shard, EVERYTHING, ranges=True) == as_stored(shard)
    shard.truncate(5)
    assert everything(shard, EVERYTHING, ranges=True) == as_stored(shard)
    for number in range(6):
        shard.append_values(b"%d" % (9 - number) * (LARGE + number))
    assert everything(shard, EVERYTHING, ranges=True) == as_stored(shard)


def test_only_what_is_committed(shard: Shard) -> None:
    producer = TransactionalProducer(5)
    shard.append_values(b"x" * LARGE)
    producer.write(shard, b"a" * LARGE)
    page = stored(shard, 0, committed=True)
    assert (page.next_offset, page.stable_offset, page.end_offset) == (1, 1, 2)
    assert stored(shard, 1, committed=True).contents == ()
    assert stored(shard, 1).next_offset == 2
    producer.abort(shard)
    page = stored(shard, 0, committed=True)
    assert page.next_offset == shard.end
    assert [(each.producer_id, each.first_offset) for each in page.aborted] == [(5, 1)]


def test_after_a_restart_bytes_are_checked_before_they_are_sent(own_lab: Lab) -> None:
    if own_lab.storage_type == "EngineMemory":
        pytest.skip("memory promises nothing")
    shard = own_lab.shard()
    for number in range(4):
        shard.append_values(b"%d" % number * LARGE)
    shard.roll()
    shard.append_values(b"last" * LARGE)
    before = as_stored(shard)
    own_lab.reopen()
    assert nowait(shard, shard.start) is None
    assert everything(shard, EVERYTHING, ranges=True) == before


class TestFiles:
    """What only holds where segments are files."""

    @pytest.fixture
    def lab(self, own_lab: Lab) -> Lab:
        if own_lab.kind != "EngineSegment":
            pytest.skip("not kept in files")
        return own_lab

    def test_what_was_just_appended_is_sent_by_range_and_unread(self, lab: Lab) -> None:
        shard = lab.shard()
        for _ in range(5):
            shard.append_values(b"v" * LARGE)
        page = nowait(shard, 0)
        assert page is not None
        (part,) = page.contents
        assert isinstance(part, FileRange)
        assert part.size_bytes > 5 * LARGE
        small = nowait(shard, 4, max_bytes=RANGE_BYTES_MIN - 1)
        assert small is None, "a batch larger than the limit has to be looked for"
        whole = nowait(shard, 0, ranges=False)
        assert whole is not None
        assert not any(isinstance(each, FileRange) for each in whole.contents)
        assert content(whole) == content(page)

    def test_a_small_tail_is_read_without_waiting(self, lab: Lab) -> None:
        shard = lab.shard()
        for number in range(50):
            shard.append_values(b"%d" % number)
            page = nowait(shard, number)
            assert page is not None
            assert [each.value for each in decode([content(page)]).records()] == [b"%d" % number]

    def test_a_range_outlives_its_segment(self, lab: Lab) -> None:
        shard = lab.shard()
        shard.append_values(b"old" * LARGE)
        shard.roll()
        shard.append_values(b"new")
        before = as_stored(shard)
        page = checked(shard, 0)
        shard.delete_before(1)
        assert len(shard.segment_bases) == 1
        assert before.startswith(content(page))

    @pytest.mark.parametrize("is_known", [True, False])
    def test_a_bit_flipped_in_a_sealed_segment_is_never_sent(
        self, lab: Lab, is_known: bool
    ) -> None:
        shard = lab.shard()
        for number in range(6):
            shard.append_values(b"%d" % number * LARGE)
        shard.roll()
        good = as_stored(shard)
        (file,) = (lab.path / "segments" / shard.name).glob("*0.log")
        if is_known:
            assert everything(shard, EVERYTHING, ranges=True) == good
            assert nowait(shard, 0) is not None
        for position in (0, 7, 16, 20, 30, 100, LARGE // 2):
            at = walk(good).headers[3].position + position
            damaged = bytearray(good)
            damaged[at] ^= 4
            file.write_bytes(damaged)
            for ranges in (True, False):
                page = stored(shard, 0, ranges=ranges)
                assert page.next_offset == 3
                assert good.startswith(content(page))
                with pytest.raises(Corruption) as caught:
                    stored(shard, 3, ranges=ranges)
                assert caught.value.where == str(file)
        file.write_bytes(good)
        assert everything(shard, EVERYTHING, ranges=True) == good

    def test_what_left_the_page_cache_is_checked_again(self, lab: Lab) -> None:
        shard = lab.shard()
        for number in range(6):
            shard.append_values(b"%d" % number * LARGE)
        page = nowait(shard, 0)
        assert page is not None
        (part,) = page.contents
        assert isinstance(part, FileRange)
        os.fsync(part.fd)
        os.posix_fadvise(part.fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if part.is_cached():
            pytest.skip("this system keeps pages that it was told to drop")
        assert nowait(shard, 0) is None
        assert content(checked(shard, 0)) == as_stored(shard)
        assert nowait(shard, 0) is not None

    def test_many_places_are_read_within_bounds(self, lab: Lab) -> None:
        shard = lab.shard({"segment.bytes": 600_000})
        for number in range(100):
            shard.append(NewRecord(value=b"%d" % number * (LARGE // 2)))
        good = {
            batch.base_offset: as_stored(shard)[batch.position : batch.position + batch.size]
            for batch in walk(as_stored(shard)).headers
        }
        rng = random.Random(3)
        for _ in range(400):
            offset = rng.randrange(100)
            page = stored(shard, offset, max_bytes=rng.choice((1, 50_000, 200_000)))
            assert content(page).startswith(good[offset])
