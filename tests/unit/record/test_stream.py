"""Batches out of bytes that come in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.record import BatchStream, Reason, Run
from tests.unit.record.batches import made, record

FIRST = made(record(0), record(1), base_offset=10)
SECOND = made(record(0, value=bytes(300)), base_offset=12)
THIRD = made(record(0), record(1), record(2), base_offset=13)
LOG = FIRST + SECOND + THIRD
BATCHES = [FIRST, SECOND, THIRD]
STARTS = [0, len(FIRST), len(FIRST + SECOND)]


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def fed(stream: BatchStream, pieces: list[bytes]) -> list[Run]:
    return [run for piece in pieces if (run := stream.feed(piece)) is not None]


@given(st.lists(st.integers(0, len(LOG)), max_size=12))
def test_every_division_into_pieces_gives_the_same_batches(cuts: list[int]) -> None:
    borders = [0, *sorted(cuts), len(LOG)]
    stream = BatchStream(offset=10)
    runs = fed(stream, [LOG[a:b] for a, b in pairwise(borders)])
    assert [bytes(run.batch(entry)) for run in runs for entry in run.entries] == BATCHES
    assert [run.position + entry.position for run in runs for entry in run.entries] == STARTS
    assert (stream.position, stream.offset, stream.stop) == (len(LOG), 16, None)
    assert stream.finish() is None


def test_a_reader_of_positions_reads_again_what_was_too_short() -> None:
    stream = BatchStream(offset=10, end_position=len(LOG))
    batches: list[bytes] = []
    while stream.position < len(LOG):
        size = max(100, stream.needed_bytes)
        run = stream.judge(LOG[stream.position : stream.position + size])
        if run is not None:
            batches += [bytes(run.batch(entry)) for entry in run.entries]
        elif stream.stop is not None:
            assert stream.stop.reason is Reason.INCOMPLETE
    assert batches == BATCHES


@pytest.mark.parametrize("cut", range(1, len(THIRD)))
def test_what_ends_within_a_batch_is_incomplete_and_then_torn(cut: int) -> None:
    data = LOG[: len(LOG) - cut]
    stream = BatchStream(offset=10)
    run = stream.feed(data)
    assert run is not None
    assert len(run.entries) == 2
    assert stream.stop is not None
    assert stream.stop.reason is Reason.INCOMPLETE
    assert stream.needed_bytes > len(data) - stream.position
    assert bytes(stream.rest()) == data[stream.position :]
    stop = stream.finish()
    assert stop is not None
    assert stop.reason is Reason.TORN


def test_a_batch_that_goes_beyond_the_known_end_is_torn_at_once() -> None:
    stream = BatchStream(offset=10, end_position=len(LOG) - 1)
    assert stream.judge(LOG) is not None
    assert stream.stop is not None
    assert stream.stop.reason is Reason.TORN
    assert stream.judge(LOG[stream.position :]) is None


def test_bytes_beyond_the_end_are_not_looked_at() -> None:
    stream = BatchStream(offset=10, end_position=len(FIRST))
    run = stream.judge(LOG)
    assert run is not None
    assert (len(run.entries), stream.stop) == (1, None)


@pytest.mark.parametrize(
    ("data", "reason", "text"),
    [
        (FIRST + damaged(SECOND, 16), Reason.CORRUPT, "bad magic"),
        (FIRST + damaged(SECOND, 200), Reason.CORRUPT, "crc mismatch"),
        (FIRST + bytes(200), Reason.CORRUPT, "bad length"),
        (FIRST + THIRD, Reason.GAP, "offset gap"),
        (FIRST + FIRST, Reason.GAP, "offset gap"),
    ],
)
def test_what_is_good_before_a_bad_batch_is_given(data: bytes, reason: Reason, text: str) -> None:
    stream = BatchStream(offset=10)
    run = stream.judge(data)
    assert run is not None
    assert [entry.base_offset for entry in run.entries] == [10]
    assert stream.stop == (reason, text)
    assert stream.position == len(FIRST)
    assert stream.judge(data[stream.position :]) is None
    assert stream.stop == (reason, text)
    assert stream.finish() == (reason, text)


def test_without_verification_a_wrong_crc_goes_unnoticed() -> None:
    stream = BatchStream(offset=10, verify=False)
    run = stream.judge(damaged(LOG, len(FIRST) + 200))
    assert run is not None
    assert len(run.entries) == 3


@pytest.mark.parametrize(
    ("data", "end_offset", "count"),
    [
        (FIRST + THIRD, 16, 2),
        (FIRST + FIRST, 16, 1),
        (SECOND + FIRST, 16, 1),
        (FIRST + THIRD, 15, 1),
    ],
)
def test_where_there_are_gaps_offsets_must_rise_below_the_end(
    data: bytes, end_offset: int, count: int
) -> None:
    stream = BatchStream(offset=10, end_offset=end_offset, has_gaps=True)
    run = stream.judge(data)
    assert run is not None
    assert len(run.entries) == count
    if count == 2:
        assert stream.stop is None
    else:
        assert stream.stop is not None
        assert stream.stop.reason is Reason.OUT_OF_ORDER
        assert stream.judge(data[stream.position :]) is None


def test_a_bad_batch_can_be_skipped() -> None:
    stream = BatchStream(offset=10)
    assert stream.feed(FIRST + damaged(SECOND, 200) + THIRD[:20]) is not None
    assert stream.stop is not None
    stream.skip(len(SECOND), 13)
    assert stream.position == len(FIRST + SECOND)
    run = stream.feed(THIRD[20:])
    assert run is not None
    assert bytes(run.batch(run.entries[0])) == THIRD
    assert stream.stop is None


def test_no_offset_takes_the_first_batch_as_it_comes() -> None:
    stream = BatchStream()
    assert stream.judge(SECOND) is not None
    assert stream.offset == 13
