"""What we encode, we decode, in every version; unknown tagged fields change nothing."""

import pytest

from firnmq.brokers.kafka.protocol import (
    ApiKey,
    RequestHeader,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from firnmq.brokers.kafka.protocol.compiler import compile_codec, decode, encode
from firnmq.brokers.kafka.protocol.messages.metadata import ApiVersionsResponse
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import default_of, fields_of
from firnmq.brokers.kafka.protocol.writer import Writer
from tests.unit.brokers.kafka.protocol.oracles import plain
from tests.unit.brokers.kafka.protocol.samples import CASES, Case, Samples, encoded, joined

FLEXIBLE = [case for case in CASES if case.flexible]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_message_survives_its_bytes(case: Case) -> None:
    samples = Samples(100 + case.version)
    for _ in range(5):
        message = samples.message(case)
        data = encoded(message, case)
        assert len(data) >= compile_codec(case.message, case.version, case.flexible).size_bytes_min
        reader = Reader(data)
        decoded = decode(case.message, reader, case.version, flexible=case.flexible)
        assert reader.remaining == 0
        assert plain(decoded, case.version) == plain(message, case.version)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_frame_survives_the_way_there_and_back(case: Case) -> None:
    message = Samples(7).message(case)
    header = RequestHeader(
        api_key=case.key, api_version=case.version, correlation_id=-5, client_id="ä client"
    )
    if case.message.__name__.endswith("Request"):
        frame = joined(encode_request(header, message))
        decoded_header, decoded = decode_request(frame[4:])
        assert decoded_header == header
    else:
        frame = joined(encode_response(header, message))
        correlation_id, decoded = decode_response(case.key, case.version, frame[4:])
        assert correlation_id == -5
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert plain(decoded, case.version) == plain(message, case.version)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fields_that_a_version_lacks_are_left_out(case: Case) -> None:
    """A message whose every field has a value, written in a version that may lack some."""
    message = Samples(3).full(case.message)
    data = encoded(message, case)
    decoded = decode(case.message, Reader(data), case.version, flexible=case.flexible)
    assert plain(decoded, case.version) == plain(message, case.version)
    for field in fields_of(case.message):
        if not field.is_in(case.version):
            assert getattr(decoded, field.name) == default_of(case.message, field.name)


class TaggingWriter(Writer):
    """Writes two tagged fields that nobody knows wherever a structure has none."""

    def raw(self, data: bytes) -> None:
        assert data == b"\0"
        super().raw(b"\2" + b"\x4d\0" + b"\xe8\x07\x81\1" + b"x" * 129)


@pytest.mark.parametrize("case", FLEXIBLE, ids=str)
def test_unknown_tagged_fields_are_passed_over_in_every_structure(case: Case) -> None:
    samples = Samples(11)
    for _ in range(5):
        message = samples.message(case)
        writer = TaggingWriter()
        encode(message, writer, case.version, flexible=True)
        reader = Reader(joined(writer.parts()))
        decoded = decode(case.message, reader, case.version, flexible=True)
        assert reader.remaining == 0
        assert plain(decoded, case.version) == plain(message, case.version)


def test_unknown_tagged_fields_between_known_ones_are_passed_over() -> None:
    body = b"\0\x23" + b"\1" + b"\0\0\0\7"  # error_code, no api_keys, throttle_time_ms.
    tags = b"\3" + b"\1\x08\0\0\0\0\0\0\0\x09" + b"\x09\2??" + b"\2\1\1"
    decoded = decode(ApiVersionsResponse, Reader(body + tags), 3, flexible=True)
    assert decoded == ApiVersionsResponse(
        error_code=35, api_keys=(), throttle_time_ms=7, finalized_features_epoch=9
    )


def test_a_tagged_field_with_its_default_is_not_written() -> None:
    case = Case(ApiKey.API_VERSIONS, 3, ApiVersionsResponse)
    message = ApiVersionsResponse(api_keys=[], finalized_features=[], finalized_features_epoch=-1)
    assert encoded(message, case) == b"\0\0" + b"\1" + b"\0\0\0\0" + b"\0"
