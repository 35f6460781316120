"""Frames between nodes, whatever bytes come and however they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.cluster.peers.frames import (
    AnswerHeader,
    Frame,
    FrameError,
    FrameParser,
    RequestHeader,
    decode_header,
    frame_parts,
)
from firnmq.errors import InvalidArgument

_bodies = st.lists(st.binary(max_size=200), max_size=8)


def _stream(bodies: list[bytes]) -> bytes:
    frames = [
        frame_parts(RequestHeader(number, "bounds", 5, 0), (body,))
        for number, body in enumerate(bodies)
    ]
    return b"".join(bytes(part) for frame in frames for part in frame)


@given(_bodies, st.lists(st.integers(1, 64), min_size=1, max_size=20))
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(
    bodies: list[bytes], sizes: list[int]
) -> None:
    stream, parser = _stream(bodies), FrameParser()
    found: list[Frame] = []
    at, turn = 0, 0
    while at < len(stream):
        size = sizes[turn % len(sizes)]
        found += parser.feed(stream[at : at + size])
        at, turn = at + size, turn + 1

    assert [bytes(frame.body) for frame in found] == bodies
    headers = [decode_header(frame, RequestHeader) for frame in found]
    assert [header.request_id for header in headers] == list(range(len(bodies)))


@given(st.binary(max_size=300))
def test_any_bytes_are_frames_or_refused(data: bytes) -> None:
    parser = FrameParser(header_bytes_max=64, body_bytes_max=64)
    try:
        for frame in parser.feed(data):
            decode_header(frame, AnswerHeader)
    except FrameError:
        return


def test_a_truncated_frame_is_not_given_out() -> None:
    stream = _stream([b"abc"])
    parser = FrameParser()
    assert parser.feed(stream[:-1]) == []
    (frame,) = parser.feed(stream[-1:])
    assert bytes(frame.body) == b"abc"


@pytest.mark.parametrize("lengths", [(65, 0), (0, 65), (2**32 - 1, 2**32 - 1)])
def test_announced_lengths_are_judged_before_the_bytes_come(lengths: tuple[int, int]) -> None:
    parser = FrameParser(header_bytes_max=64, body_bytes_max=64)
    with pytest.raises(FrameError, match="announces"):
        parser.feed(b"".join(length.to_bytes(4, "big") for length in lengths))


def test_frames_keep_their_bytes_after_others_came() -> None:
    parser = FrameParser()
    (first,) = parser.feed(_stream([b"first"]))
    parser.feed(_stream([b"other"]))
    assert bytes(first.body) == b"first"


def test_a_message_that_no_node_would_take_is_not_made() -> None:
    with pytest.raises(InvalidArgument):
        frame_parts(RequestHeader(1, "x" * 100_000, 5, 0), ())
