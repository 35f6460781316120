from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from firnmq.brokers.kafka.protocol.errors import MalformedRequest
from firnmq.brokers.kafka.protocol.reader import NULL, Reader

VALUES: list[tuple[Callable[[Reader], Any], bytes, Any]] = [
    (Reader.int8, b"\x80", -128),
    (Reader.int16, b"\x7f\xff", 32767),
    (Reader.int32, b"\xff\xff\xff\xfe", -2),
    (Reader.int64, b"\x80" + b"\0" * 7, -(2**63)),
    (Reader.uint32, b"\xff\xff\xff\xff", 2**32 - 1),
    (Reader.boolean, b"\0", False),
    (Reader.boolean, b"\2", True),
    (Reader.uuid, bytes(range(16)), UUID(bytes=bytes(range(16)))),
    (Reader.unsigned_varint, b"\x7f", 127),
    (Reader.unsigned_varint, b"\x80\1", 128),
    (Reader.unsigned_varint, b"\x80\0", 0),
    (Reader.unsigned_varint, b"\xff\xff\xff\xff\x0f", 2**32 - 1),
    (Reader.varint, b"\3", -2),
    (Reader.varint, b"\xff\xff\xff\xff\x0f", -(2**31)),
    (Reader.varlong, b"\xff" * 9 + b"\1", -(2**63)),
    (Reader.varlong, b"\xfe" + b"\xff" * 8 + b"\1", 2**63 - 1),
    (Reader.string, b"\0\3\xe2\x82\xac", "€"),
    (Reader.nullable_string, b"\xff\xff", None),
    (Reader.nullable_string, b"\0\0", ""),
    (Reader.compact_string, b"\4\xe2\x82\xac", "€"),
    (Reader.compact_nullable_string, b"\0", None),
    (Reader.compact_nullable_string, b"\1", ""),
    (Reader.blob, b"\0\0\0\2ab", b"ab"),
    (Reader.nullable_blob, b"\xff\xff\xff\xff", None),
    (Reader.nullable_blob, b"\0\0\0\0", b""),
    (Reader.compact_blob, b"\3ab", b"ab"),
    (Reader.compact_nullable_blob, b"\0", None),
    (Reader.compact_nullable_blob, b"\3ab", b"ab"),
    (Reader.records, b"\0\0\0\2ab", b"ab"),
    (Reader.nullable_records, b"\xff\xff\xff\xff", None),
    (Reader.compact_records, b"\3ab", b"ab"),
    (Reader.compact_nullable_records, b"\0", None),
]


@pytest.mark.parametrize(("read", "data", "value"), VALUES)
def test_a_value_and_every_way_to_cut_it_short(
    read: Callable[[Reader], Any], data: bytes, value: object
) -> None:
    reader = Reader(data + b"more")
    assert read(reader) == value
    assert reader.position == len(data)
    assert reader.remaining == 4
    for size in range(len(data)):
        with pytest.raises(MalformedRequest):
            read(Reader(data[:size]))


@pytest.mark.parametrize(
    ("read", "data", "reason"),
    [
        (Reader.string, b"\xff\xff", "null"),
        (Reader.compact_string, b"\0", "null"),
        (Reader.records, b"\xff\xff\xff\xff", "null"),
        (Reader.compact_blob, b"\0", "null"),
        (Reader.string, b"\x80\0", "negative"),
        (Reader.nullable_string, b"\xff\xfe", "negative"),
        (Reader.nullable_records, b"\xff\xff\xff\xfe", "negative"),
        (Reader.string, b"\0\1\xff", "UTF-8"),
        (Reader.compact_string, b"\3\xc3\x28", "UTF-8"),
        (Reader.compact_string, b"\x81\x80\2" + b"x" * 32768, "limit"),
        (Reader.unsigned_varint, b"\xff" * 5, "too many bytes"),
        (Reader.unsigned_varint, b"\xff\xff\xff\xff\x1f", "more than 32 bits"),
        (Reader.varlong, b"\xff" * 10, "too many bytes"),
        (Reader.varlong, b"\xff" * 9 + b"\2", "more than 64 bits"),
    ],
)
def test_what_is_refused(read: Callable[[Reader], Any], data: bytes, reason: str) -> None:
    with pytest.raises(MalformedRequest, match=reason):
        read(Reader(data))


def test_records_are_views_and_bytes_are_copies() -> None:
    frame = bytearray(b"\0\0\0\2ab" * 2)
    reader = Reader(frame)
    records, copied = reader.records(), reader.blob()
    frame[4:6] = frame[10:12] = b"XY"
    assert records == b"XY"
    assert copied == b"ab"


def test_an_array_is_bounded_by_what_its_elements_take() -> None:
    data = b"\0\0\0\3" + b"?" * 12
    assert Reader(data).array_count(4) == 3
    with pytest.raises(MalformedRequest, match="3 elements of at least 5 bytes"):
        Reader(data).array_count(5)
    assert Reader(b"\xff\xff\xff\xff").array_count(1) == NULL
    assert Reader(b"\0").compact_array_count(1) == NULL
    assert Reader(b"\1").compact_array_count(100) == 0
    with pytest.raises(MalformedRequest, match="negative"):
        Reader(b"\xff\xff\xff\xfe").array_count(1)


def test_tagged_fields_are_bounded_and_skipped() -> None:
    reader = Reader(b"\2" + b"\5\2ab" + b"\6\0" + b"rest")
    reader.skip_tagged_fields()
    assert reader.remaining == 4
    with pytest.raises(MalformedRequest):
        Reader(b"\1\5\3ab").skip_tagged_fields()
    with pytest.raises(MalformedRequest):
        Reader(b"\2\5\0").skip_tagged_fields()
    with pytest.raises(MalformedRequest):
        Reader(b"ab").skip(3)


def test_any_buffer_will_do() -> None:
    assert Reader(bytearray(b"\0\1")).int16() == 1
    assert Reader(memoryview(b"\0\1")).int16() == 1
    assert Reader(memoryview(b"\0\1").cast("H")).int16() == 1
    assert Reader(b"??\0\1", 2).int16() == 1
