"""Damaged and hostile frames: one typed error, and no memory taken on a frame's word."""

import struct
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from firnmq.brokers.kafka.protocol import (
    ApiKey,
    MalformedRequest,
    Message,
    RequestHeader,
    UnsupportedVersion,
    decode_request,
    encode_request,
)
from firnmq.brokers.kafka.protocol.compiler import compile_codec, decode
from firnmq.brokers.kafka.protocol.messages.metadata import MetadataRequest
from firnmq.brokers.kafka.protocol.messages.offsets import OffsetCommitRequest
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import ArrayOf, WireType, fields_of
from tests.unit.brokers.kafka.protocol.oracles import plain
from tests.unit.brokers.kafka.protocol.samples import CASES, Case, Samples, encoded, joined


@contextmanager
def allocating_at_most(size_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= size_bytes


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_message_cut_short_anywhere_is_malformed(case: Case) -> None:
    data = encoded(Samples(5, length_max=2).message(case), case)
    for size in range(0, len(data), max(1, len(data) // 200)):
        with pytest.raises(MalformedRequest):
            decode(case.message, Reader(data[:size]), case.version, flexible=case.flexible)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_request_cut_short_anywhere_is_malformed(case: Case) -> None:
    """The same through the hand-written paths."""
    if not case.message.__name__.endswith("Request"):
        return
    header = RequestHeader(
        api_key=case.key, api_version=case.version, correlation_id=1, client_id="c"
    )
    frame = joined(encode_request(header, Samples(6, length_max=2).message(case)))[4:]
    for size in range(0, len(frame), max(1, len(frame) // 100)):
        with pytest.raises(MalformedRequest):
            decode_request(frame[:size])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_changed_bytes_give_a_message_or_the_one_error(case: Case) -> None:
    samples = Samples(8, length_max=2)
    data = encoded(samples.message(case), case)
    for position in range(0, len(data), max(1, len(data) // 60)):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            damaged = data[:position] + bytes((value,)) + data[position + 1 :]
            outcome = attempt(damaged, case)
            if isinstance(outcome, MalformedRequest):
                assert outcome.field.startswith(case.message.__name__)
                assert 0 <= outcome.position <= len(damaged)
            else:
                plain(outcome, case.version)


def attempt(data: bytes, case: Case) -> Message | MalformedRequest:
    try:
        return decode(case.message, Reader(data), case.version, flexible=case.flexible)
    except MalformedRequest as error:
        return error


def first_type(case: Case) -> WireType | None:
    fields = [field for field in fields_of(case.message) if field.is_in(case.version)]
    return fields[0].type if fields else None


ARRAY_FIRST = [case for case in CASES if isinstance(first_type(case), ArrayOf)]


@pytest.mark.parametrize("case", ARRAY_FIRST, ids=str)
@pytest.mark.parametrize("count", [2**31 - 1, 2**28, 20_000])
def test_the_length_of_an_array_is_not_believed(case: Case, count: int) -> None:
    compile_codec(case.message, case.version, case.flexible)
    size = _varint(count + 1) if case.flexible else struct.pack(">i", count)
    frame = size + b"\0" * 10_000
    with allocating_at_most(100_000), pytest.raises(MalformedRequest):
        decode(case.message, Reader(frame), case.version, flexible=case.flexible)


@pytest.mark.parametrize(
    ("key", "version", "body"),
    [
        (ApiKey.PRODUCE, 7, b"\xff\xff\0\1\0\0\0\0\x7f\xff\xff\xff"),
        (ApiKey.PRODUCE, 9, b"\0\0\1\0\0\0\0\xff\xff\xff\xff\x0f"),
        (ApiKey.FETCH, 11, b"\0" * 25 + b"\x7f\xff\xff\xff"),
        (ApiKey.FETCH, 12, b"\0" * 25 + b"\xff\xff\xff\xff\x0f"),
        (ApiKey.OFFSET_COMMIT, 7, b"\0\0\0\0\0\0\0\0\xff\xff\x7f\xff\xff\xff"),
        (ApiKey.OFFSET_COMMIT, 8, b"\1\0\0\0\0\1\0\xff\xff\xff\xff\x0f"),
    ],
)
def test_the_hand_written_paths_do_not_believe_it_either(
    key: ApiKey, version: int, body: bytes
) -> None:
    flexible = (key, version) in {
        (ApiKey.PRODUCE, 9),
        (ApiKey.FETCH, 12),
        (ApiKey.OFFSET_COMMIT, 8),
    }
    head = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if flexible else b"")
    frame = head + body + b"\0" * 10_000
    with pytest.raises(MalformedRequest):
        decode_request(frame)
    with allocating_at_most(100_000), pytest.raises(MalformedRequest):
        decode_request(frame)


def test_many_tiny_elements_are_refused_although_they_fit() -> None:
    """Two million topics of two bytes would become some two hundred megabytes of objects."""
    frame = struct.pack(">i", 2_000_000) + b"\0" * 4_000_000
    with allocating_at_most(1_000_000), pytest.raises(MalformedRequest, match="more are allowed"):
        decode(MetadataRequest, Reader(frame), 0, flexible=False)


def test_many_tagged_fields_are_refused_although_they_fit() -> None:
    frame = b"\0\0\0\0" + _varint(1_000_000) + b"\x7f\0" * 1_000_000
    with pytest.raises(MalformedRequest, match="more are allowed"):
        decode(MetadataRequest, Reader(frame), 9, flexible=True)


def test_the_elements_of_all_arrays_count_together() -> None:
    topic = b"\0\1t" + struct.pack(">i", 3) + (b"\0" * 12 + b"\xff\xff") * 3
    frame = b"\0\1g" + b"\0\0\0\1" + b"\0\1m" + b"\0" * 8 + struct.pack(">i", 4) + topic * 4
    decode(OffsetCommitRequest, Reader(frame, element_count_max=16), 2, flexible=False)
    with pytest.raises(MalformedRequest):
        decode(OffsetCommitRequest, Reader(frame, element_count_max=15), 2, flexible=False)


def test_the_error_says_what_and_where() -> None:
    topic = b"\0\1t" + struct.pack(">i", 1) + b"\0" * 12 + b"\0\2\xff\xff"
    frame = b"\0\1g" + b"\0\0\0\1" + b"\0\1m" + b"\0" * 8 + struct.pack(">i", 1) + topic
    with pytest.raises(MalformedRequest) as caught:
        decode(OffsetCommitRequest, Reader(frame), 2, flexible=False)
    assert caught.value.field == "OffsetCommitRequest.topics.partitions.committed_metadata"
    assert caught.value.position == len(frame) - 2
    assert str(caught.value) == (
        "OffsetCommitRequest.topics.partitions.committed_metadata at byte 43: "
        "a string is not UTF-8: invalid start byte"
    )


def test_null_where_the_version_does_not_allow_it() -> None:
    assert decode(MetadataRequest, Reader(b"\xff" * 4), 1, flexible=False).topics is None
    with pytest.raises(MalformedRequest, match="null where an array is required"):
        decode(MetadataRequest, Reader(b"\xff" * 4), 0, flexible=False)


def test_a_tagged_field_that_does_not_fill_its_size_is_malformed() -> None:
    head = b"\0" * 25 + b"\1\1\1"
    good = head + b"\1" + b"\0\3\3ab"
    header = struct.pack(">hhih", ApiKey.FETCH, 12, 1, -1) + b"\0"
    _, request = decode_request(header + good)
    assert getattr(request, "cluster_id", "") == "ab"
    with pytest.raises(MalformedRequest, match="does not fill") as caught:
        decode_request(header + head + b"\1" + b"\0\4\3ab?")
    assert caught.value.field == "FetchRequest.cluster_id"


@pytest.mark.parametrize(
    ("key", "version"), [(0, 14), (0, -1), (1, 3), (7, 0), (18, 5), (71, 0), (-1, 0)]
)
def test_what_we_do_not_speak_is_refused_by_name(key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion) as caught:
        decode_request(struct.pack(">hhih", key, version, 99, -1) + b"\0")
    assert (caught.value.api_key, caught.value.api_version) == (key, version)
    assert caught.value.correlation_id == 99


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
