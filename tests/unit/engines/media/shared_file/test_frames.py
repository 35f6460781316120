"""Frames of shared files: what a scan finds, and what damage does to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from firnmq.engines.catalog.segments import Frame
from firnmq.engines.media.layouts.shared_file.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    FoundFrame,
    frame_header,
    parse_file_header,
    scan_frames,
)
from firnmq.engines.media.layouts.shared_file.rows import Extent, Location, location_key
from firnmq.errors import OtherFormat

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parents[4] / "golden" / "shared_file_v1.json").read_text("utf-8")
)
SALT = 0x0123456789ABCDEF
FRAMES = [
    Frame(1, 0, 0, (b"first batch",), 11),
    Frame(7, 2**31, 4_096, (b"second ", b"batches"), 14),
    Frame(1, 0, 11, (b"third",), 5, is_copy=True),
]


def framed(frames: list[Frame], salt: int = SALT) -> bytes:
    return b"".join(frame_header(each, salt) + b"".join(each.buffers) for each in frames)


def scanned(content: bytes, salt: int = SALT) -> list[FoundFrame]:
    return list(scan_frames(lambda at, size: content[at : at + size], 0, salt))


def test_the_bytes_are_those_of_the_format() -> None:
    header = FileHeader(3, 42, SALT)
    assert header.pack().hex() == GOLDEN["file_header"]
    assert [framed([each]).hex() for each in FRAMES] == GOLDEN["frames"]
    assert parse_file_header(header.pack(), "file") == header
    assert location_key(7, 2**31, 4_096).hex() == GOLDEN["location_key"]
    assert Location(42, 115, 14).pack().hex() == GOLDEN["location"]
    assert Extent(is_sealed=True, written=200, synced=150).pack().hex() == GOLDEN["extent"]


def test_a_file_of_another_version_is_refused_by_name() -> None:
    other = bytes.fromhex(GOLDEN["file_header_of_version_2"])
    with pytest.raises(OtherFormat, match="version 2"):
        parse_file_header(other, "file")


def test_a_torn_file_header_is_none() -> None:
    header = FileHeader(3, 42, SALT).pack()
    assert parse_file_header(header[:-1], "file") is None
    assert parse_file_header(bytes(FILE_HEADER_BYTES), "file") is None
    assert parse_file_header(header[:20] + b"\1" + header[21:], "file") is None


def test_a_scan_finds_what_was_written() -> None:
    found = scanned(framed(FRAMES))
    assert [(f.shard_uid, f.place, f.position, f.length, f.is_copy) for f in found] == [
        (f.shard_uid, f.place, f.position, f.length, f.is_copy) for f in FRAMES
    ]
    assert all(each.is_whole for each in found)


@pytest.mark.parametrize("damaged", range(len(FRAMES)))
def test_damage_to_one_frame_hides_no_other(damaged: int) -> None:
    content = framed(FRAMES)
    starts = [each.file_position - FRAME_HEADER_BYTES for each in scanned(content)]
    for at in range(starts[damaged], scanned(content)[damaged].file_end):
        flipped = bytearray(content)
        flipped[at] ^= 0x10
        found = scanned(bytes(flipped))
        whole = [each for each in found if each.is_whole]
        assert whole == [f for number, f in enumerate(scanned(content)) if number != damaged]
        assert len(found) - len(whole) == (at >= starts[damaged] + FRAME_HEADER_BYTES)


def test_a_scan_ends_where_the_file_was_torn() -> None:
    content = framed(FRAMES)
    ends = [each.file_end for each in scanned(content)]
    for length in range(len(content)):
        found = scanned(content[:length] + bytes(50))
        assert [each.file_end for each in found if each.is_whole] == [
            end for end in ends if end <= length
        ]


def test_a_record_that_looks_like_a_frame_is_none() -> None:
    """A client that knows the format does not know the salt of the file."""
    forged = framed([Frame(9, 0, 0, (b"forged",), 6)], salt=SALT + 1)
    content = bytearray(framed([Frame(1, 0, 0, (forged,), len(forged)), FRAMES[1]]))
    content[5] ^= 1  # The scan has to look for the next header.
    assert [each.shard_uid for each in scanned(bytes(content))] == [7]


def test_a_frame_larger_than_what_is_read_at_once_is_found() -> None:
    large = Frame(5, 0, 0, (bytes(range(256)),) * 20_000, 256 * 20_000)
    found = scanned(framed([FRAMES[0], large, FRAMES[1]]))
    assert [(each.shard_uid, each.is_whole) for each in found] == [(1, True), (5, True), (7, True)]
