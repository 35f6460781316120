from collections.abc import Callable
from typing import Any

import pytest

from firnmq.brokers.kafka.protocol.primitives import COPY_BYTES_MAX
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.writer import Writer
from firnmq.disk import FileRange
from firnmq.errors import InvalidArgument
from tests.unit.brokers.kafka.protocol.samples import joined
from tests.unit.brokers.kafka.protocol.test_reader import VALUES

NOT_CANONICAL = {b"\x80\0", b"\2"}
"""Accepted, but not what we write: an overlong varint, a true that is not 1."""


@pytest.mark.parametrize(
    ("read", "data", "value"), [row for row in VALUES if row[1] not in NOT_CANONICAL]
)
def test_what_is_read_can_be_written(
    read: Callable[[Reader], Any], data: bytes, value: object
) -> None:
    name = read.__name__.replace("blob", "records")
    writer = Writer()
    getattr(writer, name)(value)
    assert joined(writer.parts()) == data


def test_counts() -> None:
    writer = Writer()
    writer.array_count(None)
    writer.array_count(2)
    writer.compact_array_count(None)
    writer.compact_array_count(127)
    assert joined(writer.parts()) == b"\xff\xff\xff\xff" + b"\0\0\0\2" + b"\0" + b"\x80\1"


def test_a_frame_knows_its_size_and_large_pieces_are_not_copied() -> None:
    small = b"s" * COPY_BYTES_MAX
    large = bytearray(COPY_BYTES_MAX + 1)
    on_disk = FileRange(fd=3, position=0, size_bytes=5)
    writer = Writer(is_framed=True)
    writer.int8(1)
    writer.records([small, large, b"", on_disk, FileRange(fd=3, position=9, size_bytes=0)])
    writer.compact_records(large)
    parts = writer.parts()
    size = 1 + 4 + len(small) + len(large) + 5 + 2 + len(large)
    head = size.to_bytes(4, "big") + b"\1" + (len(small) + len(large) + 5).to_bytes(4, "big")
    assert parts == [head + small, large, on_disk, b"\x82\4", large]
    assert parts[1] is large
    assert parts[2] is on_disk
    assert parts[4] is large


def test_an_empty_writer_has_one_empty_part() -> None:
    assert Writer().parts() == [b""]
    assert Writer(is_framed=True).parts() == [b"\0\0\0\0"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("unsigned_varint", -1),
        ("unsigned_varint", 2**32),
        ("varint", 2**31),
        ("varlong", -(2**63) - 1),
        ("string", "x" * 32768),
        ("compact_string", "ä" * 20_000),
    ],
)
def test_what_does_not_fit_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidArgument):
        getattr(Writer(), name)(value)


def test_a_frame_too_large_for_its_size_is_refused() -> None:
    writer = Writer(is_framed=True)
    writer.compact_records(FileRange(fd=3, position=0, size_bytes=2**31 - 1))
    with pytest.raises(InvalidArgument, match="int32"):
        writer.parts()
