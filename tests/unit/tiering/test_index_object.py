"""The .idx object: answers like the memory index, few reads, and no wrong answer from bad bytes."""

import random
import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from firnmq.engines.tiering.api import IndexDump
from firnmq.errors import Corruption
from firnmq.index import MemorySegmentIndex
from firnmq.index.layout import term
from firnmq.tiering.cold.index import ColdIndex, IndexHeads
from firnmq.tiering.format import index_object
from firnmq.tiering.format.index_layout import (
    HEAD_BYTES_WANTED,
    HEADER_BYTES,
    Cursor,
    Filter,
    Header,
    SectionKind,
    pack_column,
    pack_filter,
)
from firnmq.tiering.format.index_object import read_index, write_index
from tests.unit.tiering.sources import IndexBytes, random_dump, sealed_meta

META = sealed_meta()
EMPTY = IndexDump(points=[], keys=[], tags=[], aborted=(), producers=())


def cold(source: IndexBytes, meta=META) -> ColdIndex:
    return ColdIndex(source, meta, IndexHeads(1 << 20))


def in_memory(dump: IndexDump) -> MemorySegmentIndex:
    index = MemorySegmentIndex()
    for point in dump.points:
        index.add_point(*point)
    for key, offset, position in dump.keys:
        index.add_keys({key: 0}, offset, position)
    for word, base, position, relative in sorted(dump.tags):
        index.add_tags({word: relative}, base, position)
    return index


def answers(index, words, tags, offsets, times):
    return (
        [index.floor_offset(offset) for offset in offsets],
        [index.floor_time(time) for time in times],
        [index.newest_of_key(word) for word in words],
        [
            [(*hit[:2], list(hit[2])) for hit in index.tagged(tag, at)]
            for tag in tags
            for at in offsets
        ],
    )


QUESTIONS = {
    "tags": [b"tag%d" % number for number in range(9)] + [b"", b"zzz"],
    "offsets": [0, 99, 100, 101, 350, 700, 1_099, 5_000],
    "times": [0, 999_999, 1_000_000, 1_000_200, 1_000_399, 1_000_400, 2**62],
}


@pytest.mark.parametrize("seed", range(5))
def test_answers_are_those_of_the_memory_index(seed: int) -> None:
    dump = random_dump(META, seed)
    words = [row[0] for row in dump.keys] + [b"missing", b"\xff" * 10]
    stored = cold(IndexBytes.of(dump, META))
    plain = [word for word in words if len(word) <= 128]
    assert answers(stored, plain, **QUESTIONS) == answers(in_memory(dump), plain, **QUESTIONS)


def test_long_keys_are_found_by_their_hash_as_in_the_other_indexes() -> None:
    key = b"k" * 500
    dump = EMPTY._replace(keys=[(term(key), 105, 9)])
    stored = cold(IndexBytes.of(dump, META))
    assert stored.newest_of_key(key) == (105, 9)
    assert stored.newest_of_key(key + b"x") is None


@pytest.mark.parametrize("seed", range(3))
def test_everything_comes_back(seed: int) -> None:
    dump = random_dump(META, seed)
    data, head_length = write_index(dump, META)
    header, found = read_index(data, "here")
    assert header.head_length == head_length
    assert found.points == dump.points
    assert found.keys == dump.keys
    assert found.tags == dump.tags
    assert found.aborted == dump.aborted
    assert found.producers == dump.producers
    index = cold(IndexBytes(data, head_length))
    assert index.aborted() == list(dump.aborted)
    assert index.producers() == list(dump.producers)


def test_an_index_of_nothing_answers_nothing() -> None:
    stored = cold(IndexBytes.of(EMPTY, META))
    assert stored.floor_offset(500) is None
    assert stored.floor_time(500) is None
    assert stored.newest_of_key(b"k") is None
    assert list(stored.tagged(b"t", 0)) == []


def test_one_point_and_two_points() -> None:
    for count in (1, 2, 3):
        points = [(100, 0, -(2**63)), (200, 50, 1_000), (300, 80, 1_000)][:count]
        stored = cold(IndexBytes.of(EMPTY._replace(points=points), META))
        assert stored.floor_offset(10_000) == points[-1][:2]
        assert stored.floor_time(1_001) == points[-1][:2]
        assert stored.floor_time(1_000) == points[0][:2]


def test_a_key_costs_one_read_of_a_block_and_a_missing_one_none() -> None:
    meta = sealed_meta(end_offset=200_100, length=10**9)
    keys = [(b"user-%06d" % number, 100 + number, number * 7) for number in range(60_000)]
    source = IndexBytes.of(EMPTY._replace(keys=keys), meta)
    stored = cold(source, meta)
    assert stored.newest_of_key(b"user-000777") == (877, 777 * 7)
    assert len(source.reads) == 2
    assert source.reads[-1][1] < 40_000
    source.reads.clear()
    for number in range(2_000):
        stored.newest_of_key(b"nobody-%d" % number)
    assert len(source.reads) <= 5


def test_points_of_ten_million_records_fit_the_first_read() -> None:
    count = 10_000
    meta = sealed_meta(end_offset=count * 1_000 + 100, length=count * 100_000)
    points = [
        (100 + number * 1_000, number * 99_990, 1_700_000_000_000 + number * 3_000)
        for number in range(count)
    ]
    data, head_length = write_index(EMPTY._replace(points=points), meta)
    assert head_length <= HEAD_BYTES_WANTED
    assert read_index(data, "x")[1].points == points


def test_tags_of_one_batch_after_the_other_span_blocks() -> None:
    meta = sealed_meta(end_offset=1_000_100, length=10**9)
    tags = [(b"t", 100 + 10 * number, number * 900, (0, 3, 9)) for number in range(20_000)]
    tags = [(b"s", 100, 0, (1,)), *tags, (b"u", 100, 0, (1,)), (b"aa", 100, 0, (2,))]
    source = IndexBytes.of(EMPTY._replace(tags=tags), meta)
    stored = cold(source, meta)
    assert sum(1 for _ in stored.tagged(b"t", 0)) == 20_000
    assert next(stored.tagged(b"t", 100_005)) == (100_000, 9_990 * 900, [0, 3, 9])
    assert [hit.base_offset for hit in stored.tagged(b"u", 90_000)] == [100]
    assert [hit.base_offset for hit in stored.tagged(b"s", 0)] == [100]
    assert [hit.relative_offsets for hit in stored.tagged(b"aa", 0)] == [[2]]
    assert list(stored.tagged(b"bb", 0)) == []


def test_entries_out_of_order_are_a_defect_of_the_caller() -> None:
    keys = [(b"b", 100, 0), (b"a", 101, 0)]
    tags = [(b"bb", 100, 0, (1,)), (b"a", 101, 0, (1,))]
    for dump in (EMPTY._replace(keys=keys), EMPTY._replace(tags=tags)):
        with pytest.raises(ValueError, match="not where it belongs"):
            write_index(dump, META)
    with pytest.raises(ValueError, match="130 bytes"):
        write_index(EMPTY._replace(keys=[(bytes(130), 100, 0)]), META)


def test_many_keys_make_larger_blocks_not_ever_more_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(index_object, "BLOCKS_PER_SIZE", 64)
    meta = sealed_meta(end_offset=10**6, length=10**9)
    keys = [(b"%0128d" % number, 100 + number, number) for number in range(12_000)]
    source = IndexBytes.of(EMPTY._replace(keys=keys), meta)
    stored = cold(source, meta)
    for number in (0, 1, 5_000, 9_000, 11_999):
        assert stored.newest_of_key(b"%0128d" % number) == (100 + number, number)
    sizes = [size for _, size in source.reads[1:]]
    assert min(sizes) < 17_000
    assert 30_000 < max(sizes) < 33_000


def test_another_segments_index_is_refused_by_name() -> None:
    source = IndexBytes.of(EMPTY, META)
    for other in (sealed_meta(crc=1), sealed_meta(length=5), sealed_meta(base_offset=99)):
        with pytest.raises(Corruption, match=r"another segment") as refused:
            cold(source, other).floor_offset(5)
        assert refused.value.where == source.where


def test_bad_bytes_are_fetched_once_more() -> None:
    dump = random_dump(META, 1)
    source = IndexBytes.of(dump, META)
    good, bad = source.data, bytearray(source.data)
    bad[HEADER_BYTES + 3] ^= 1
    source.data = bytes(bad)

    def repair() -> None:
        source.data = good

    source.distrust = repair  # type: ignore[method-assign]
    assert cold(source).floor_offset(100) == (100, 0)


@pytest.mark.parametrize("seed", range(40))
def test_no_mutation_gives_a_wrong_answer(seed: int) -> None:
    """Bits flipped, bytes removed, added or zeroed: the right answers, or a typed refusal."""
    chance = random.Random(seed)
    dump = random_dump(META, seed % 4, keys=60, tag_entries=60)
    data, head_length = write_index(dump, META)
    words = [row[0] for row in dump.keys if len(row[0]) <= 128][:20]
    right = answers(cold(IndexBytes(data, head_length)), words, **QUESTIONS)
    for _ in range(30):
        source = IndexBytes(_mutated(data, chance), head_length)
        source.length = len(data)
        refusal = None
        try:
            assert answers(cold(source), words, **QUESTIONS) == right
        except Corruption as raised:
            refusal = raised
        if refusal is not None:
            assert refusal.where == source.where
            assert refusal.position is not None
        with pytest.raises(Corruption):
            read_index(source.data, source.where)


@pytest.mark.parametrize("seed", range(40))
def test_bytes_that_were_made_to_be_bad_raise_corruption_alone(seed: int) -> None:
    """Mutations with recomputed CRCs: any answer is allowed, no other error is."""
    chance = random.Random(seed)
    dump = random_dump(META, seed % 4, keys=60, tag_entries=60)
    data, _ = write_index(dump, META)
    header = Header.unpack(data, "x")
    for _ in range(30):
        source = _sealed_again(data, header, chance)
        index = cold(source)
        try:
            answers(index, [row[0] for row in dump.keys][:20], **QUESTIONS)
            index.aborted()
            index.producers()
        except Corruption:
            pass


def _mutated(data: bytes, chance: random.Random) -> bytes:
    bad = bytearray(data)
    while bytes(bad) == data:
        at = chance.randrange(len(bad))
        match chance.randrange(5):
            case 0:
                bad[at] ^= 1 << chance.randrange(8)
            case 1:
                del bad[at:]
            case 2:
                del bad[at : at + chance.randrange(1, 30)]
            case 3:
                bad[at:at] = chance.randbytes(chance.randrange(1, 30))
            case 4:
                bad[at : at + 8] = bytes(len(bad[at : at + 8]))
    return bytes(bad)


def _sealed_again(data: bytes, header: Header, chance: random.Random) -> IndexBytes:
    bad = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(HEADER_BYTES, len(bad))
        bad[at] = chance.choice((0, 1, 0x42, 0x51, 0x7F, 0x80, 0xFF))
    sections = tuple(
        section._replace(crc=crc32c(bad[section.position : section.position + section.length]))
        for section in header.sections
    )
    changed = header._replace(sections=sections)
    bad[:HEADER_BYTES] = changed.pack()
    return IndexBytes(bytes(bad), header.head_length)


@given(st.sets(st.binary(max_size=20), max_size=200), st.binary(max_size=20))
def test_a_filter_knows_all_it_holds(terms: set[bytes], other: bytes) -> None:
    found = Filter(Cursor(pack_filter([crc32c(each) for each in terms]), "x", 0))
    assert all(found.may_hold(each) for each in terms)
    if not terms:
        assert not found.may_hold(other)


def test_a_filter_lets_few_others_through() -> None:
    hashes = [crc32c(b"key-%d" % number) for number in range(50_000)]
    found = Filter(Cursor(pack_filter(hashes), "x", 0))
    wrong = sum(found.may_hold(b"other-%d" % number) for number in range(100_000))
    assert wrong < 200


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_columns_come_back(values: list[int]) -> None:
    cursor = Cursor(pack_column(values), "x", 0)
    assert list(cursor.column(len(values))) == values
    cursor.finish()


def test_heads_are_kept_up_to_a_limit() -> None:
    heads = IndexHeads(20_000)
    sources = []
    for number in range(20):
        source = IndexBytes(*write_index(random_dump(META, number), META), where=f"object {number}")
        sources.append(source)
        ColdIndex(source, META, heads).floor_offset(100)
    assert 0 < heads.size_bytes <= 20_000
    ColdIndex(sources[-1], META, heads).floor_offset(100)
    assert len(sources[-1].reads) == 1
    heads.forget("object 19")
    ColdIndex(sources[-1], META, heads).floor_offset(100)
    assert len(sources[-1].reads) == 2


def test_the_layout_is_big_endian_and_fixed() -> None:
    data, head_length = write_index(EMPTY._replace(points=[(100, 0, -(2**63))]), META)
    assert data[:8] == b"firn-idx"
    assert struct.unpack_from(">HHIQQQQI", data, 8) == (
        2,
        len(SectionKind),
        head_length,
        len(data),
        100,
        1_100,
        1_000_000,
        77,
    )
