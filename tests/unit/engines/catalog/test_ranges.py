"""Ranges of shards: finding them by name and by uid, taking parts out of them."""

from firnmq.engines.catalog.ranges import (
    ShardRange,
    ShardRanges,
    ShardUids,
    remaining,
    runs,
    span_of,
)

FIRST = ShardRange(topic_id="a", first_seq=0, first_uid=10, count=5)
GROWN = ShardRange(topic_id="a", first_seq=5, first_uid=30, count=2)
OTHER = ShardRange(topic_id="b", first_seq=0, first_uid=15, count=1)


def test_shards_are_found_by_name_and_by_uid() -> None:
    ranges = ShardRanges([GROWN, FIRST, OTHER])
    for each in ranges:
        for uid in range(*each.uids):
            assert ranges.find(each.name_of(uid)) == (each, uid)
            assert ranges.with_uid(uid) == each
    assert ranges.find("a_6") == (GROWN, 31)
    for name in ("a_7", "c_0", "a_", "a", "a_-1", "a_01", "a_x", ""):
        assert ranges.find(name) is None
    for uid in (0, 9, 16, 29, 32):
        assert ranges.with_uid(uid) is None


def test_a_part_is_taken_out_of_the_middle() -> None:
    ranges = ShardRanges([FIRST, OTHER])
    of_ranges, others = ranges.split(["a_3", "a_1", "x_1", "a_2"])
    assert (of_ranges, others) == ({FIRST: [range(1, 4)]}, ["x_1"])
    ranges.shrink(FIRST, [range(1, 4)])
    assert [each.name_of(each.first_uid) for each in ranges] == ["a_0", "a_4", "b_0"]
    assert ranges.find("a_4") == (FIRST.part(4, 5), 14)
    assert ranges.find("a_2") is None
    assert ranges.with_uid(12) is None


def test_all_of_a_range_goes() -> None:
    ranges = ShardRanges([FIRST, OTHER])
    ranges.shrink(FIRST, [range(5)])
    assert list(ranges) == [OTHER]
    assert ranges.of_topic("a") == ()
    assert remaining(FIRST, [range(5)]) == []


def test_numbers_of_all_shards() -> None:
    uids = ShardUids([1, 2], ShardRanges([FIRST]))
    assert sorted(uids) == [1, 2, 10, 11, 12, 13, 14]
    assert len(uids) == 7
    assert (2 in uids, 12 in uids, 15 in uids, "a" in uids) == (True, True, False, False)


def test_consecutive_numbers_are_runs() -> None:
    assert runs([7, 3, 1, 2, 2]) == [range(1, 4), range(7, 8)]
    assert runs([]) == []


def test_names_of_consecutive_shards_are_a_span() -> None:
    assert span_of(["t_3", "t_4", "t_5"], "t") == range(3, 6)
    for names in ([], ["t_3", "t_5"], ["t_4", "t_3"], ["x_1"], ["t_1", "x_2", "t_3"]):
        assert span_of(names, "t") is None
