"""What is known of a log's bytes: stretches that grow together, and no border that is not one."""

import random

import pytest

from firnmq.engines.shardlog.reading import known as known_module
from firnmq.engines.shardlog.reading.known import SPACING_BYTES, KnownBytes
from firnmq.index import Point

STEP = SPACING_BYTES


def points(first: int, last: int, *, size: int = STEP, per_batch: int = 10) -> list[Point]:
    """Borders of equal batches, from one number to another."""
    return [Point(number * per_batch, number * size) for number in range(first, last + 1)]


def found(
    known: KnownBytes,
    seq: int,
    offset: int,
    *,
    end: Point,
    max_bytes: int = 10**9,
    hint: Point | None = None,
    end_offset: int | None = None,
) -> tuple[Point, Point] | None:
    limit = end.offset if end_offset is None else end_offset
    return known.find(seq, offset, hint=hint, end=end, end_offset=limit, max_bytes=max_bytes)


@pytest.fixture
def known() -> KnownBytes:
    """Of a log that was opened with 100 batches."""
    return KnownBytes(0, Point(1000, 100 * STEP))


END = Point(1000, 100 * STEP)


def test_what_was_there_before_has_to_be_read(known: KnownBytes) -> None:
    assert found(known, 0, 0, end=END) is None
    known.note_checked(0, points(0, 3), None)
    assert found(known, 0, 0, end=END) == (Point(0, 0), Point(30, 3 * STEP))
    assert found(known, 0, 30, end=END) is None
    assert found(known, 1, 0, end=END) is None


def test_what_is_appended_need_not_be_read(known: KnownBytes) -> None:
    for border in points(101, 110):
        known.note_appended(border)
    end = Point(1105, 110 * STEP + 5)
    assert found(known, 0, 1000, end=end) == (END, end)
    limited = found(known, 0, 1000, end=end, max_bytes=2 * STEP + 7)
    assert limited == (END, Point(1020, 102 * STEP))
    # A reader that sees less of the log gets no more than it sees.
    assert found(known, 0, 1000, end=Point(1030, 103 * STEP)) == (END, Point(1030, 103 * STEP))


def test_readers_that_want_less_than_the_end_get_less(known: KnownBytes) -> None:
    known.note_checked(0, points(0, 8), None)
    assert found(known, 0, 0, end=END, end_offset=55) == (Point(0, 0), Point(50, 5 * STEP))
    assert found(known, 0, 0, end=END, end_offset=5) is None
    assert found(known, 0, 0, end=END, max_bytes=STEP - 1) is None


def test_within_a_batch_only_with_a_hint(known: KnownBytes) -> None:
    known.note_checked(0, points(0, 8), None)
    assert found(known, 0, 14, end=END) is None
    hint = Point(10, STEP)
    assert found(known, 0, 14, end=END, hint=hint) == (hint, Point(80, 8 * STEP))


def test_stretches_grow_together(known: KnownBytes) -> None:
    known.note_checked(0, points(50, 60), None)
    known.note_checked(0, points(0, 10), None)
    known.note_checked(0, points(30, 40), None)
    assert found(known, 0, 0, end=END) == (Point(0, 0), Point(100, 10 * STEP))
    known.note_checked(0, points(8, 32), None)
    assert found(known, 0, 0, end=END) == (Point(0, 0), Point(400, 40 * STEP))
    known.note_checked(0, points(40, 50), None)
    assert found(known, 0, 0, end=END) == (Point(0, 0), Point(600, 60 * STEP))
    known.note_checked(0, points(60, 100), None)
    end = Point(1033, 103 * STEP)
    assert found(known, 0, 0, end=end) == (Point(0, 0), end)
    known.note_appended(end)
    assert found(known, 0, 0, end=end, max_bytes=STEP) == (Point(0, 0), Point(10, STEP))


def test_small_batches_make_few_borders(known: KnownBytes) -> None:
    known.note_checked(0, points(0, 5000, size=100), None)
    stretch = known._segments[0][0]
    assert len(stretch.offsets) <= 5000 * 100 // STEP + 2
    assert found(known, 0, 0, end=Point(50_000, 500_000)) == (Point(0, 0), Point(50_000, 500_000))


def test_borders_are_thinned_out_and_the_ends_stay(
    known: KnownBytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(known_module, "_BORDERS_MAX", 16)
    end = points(5000, 5000)[0]
    known.note_checked(0, points(0, 5000), None)
    stretch = known._segments[0][0]
    assert len(stretch.offsets) <= 17
    assert found(known, 0, 0, end=end) == (Point(0, 0), end)
    every = set(points(0, 5000))
    assert set(map(Point, stretch.offsets, stretch.positions)) <= every


def test_readers_in_many_places_and_segments_take_bounded_memory(known: KnownBytes) -> None:
    rng = random.Random(1)
    for seq in range(40):
        for _ in range(50):
            at = rng.randrange(0, 9000, 3)
            known.note_checked(seq, points(at, at + 1), 1)
    assert len(known._segments) <= known_module._SEGMENTS_MAX
    assert len(known._modified_ns) <= known_module._SEGMENTS_MAX
    for stretches in known._segments.values():
        assert len(stretches) <= known_module._STRETCHES_MAX


def test_a_sealed_segment_has_to_be_read_once(known: KnownBytes) -> None:
    known.note_appended(Point(1010, 101 * STEP))
    known.begin(1, Point(1010, 0))
    end = Point(1010, 101 * STEP)
    assert found(known, 0, 1000, end=end) is None
    assert found(known, 1, 1010, end=Point(1012, 80)) == (Point(1010, 0), Point(1012, 80))
    known.note_checked(0, [END, end], 7)
    assert found(known, 0, 1000, end=end) == (END, end)
    assert known.modified_ns(0) == 7
    # Written to since: what was checked earlier is worth nothing.
    known.note_checked(0, points(0, 1), 8)
    assert found(known, 0, 1000, end=end) is None
    assert known.modified_ns(0) == 8


def test_what_is_forgotten_is_gone_until_more_is_appended(known: KnownBytes) -> None:
    known.note_checked(0, points(0, 100), None)
    known.forget(0)
    assert found(known, 0, 0, end=END) is None
    assert known.next_border_position == 0
    known.note_appended(Point(1010, 101 * STEP))
    known.note_appended(Point(1020, 102 * STEP))
    end = Point(1020, 102 * STEP)
    assert found(known, 0, 1000, end=end) is None
    assert found(known, 0, 1010, end=end) == (Point(1010, 101 * STEP), end)
    known.begin(0, Point(500, 50 * STEP))  # The log was cut.
    assert found(known, 0, 1010, end=end) is None
