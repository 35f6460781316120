import pytest

from firnmq.brokers.kafka.protocol.errors import MalformedRequest
from firnmq.brokers.kafka.protocol.header import (
    RequestHeader,
    read_request_header,
    read_response_header,
    request_header_version,
    response_header_version,
    write_request_header,
    write_response_header,
)
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.versions import ApiKey
from firnmq.brokers.kafka.protocol.writer import Writer
from tests.unit.brokers.kafka.protocol.samples import joined


@pytest.mark.parametrize(
    ("key", "version", "request_version", "response_version"),
    [
        (ApiKey.PRODUCE, 8, 1, 0),
        (ApiKey.PRODUCE, 9, 2, 1),
        (ApiKey.SASL_HANDSHAKE, 1, 1, 0),
        (ApiKey.DESCRIBE_CLUSTER, 0, 2, 1),
        (ApiKey.API_VERSIONS, 0, 1, 0),
        (ApiKey.API_VERSIONS, 3, 2, 0),
        (ApiKey.API_VERSIONS, 4, 2, 0),
    ],
)
def test_which_header_goes_with_which_version(
    key: ApiKey, version: int, request_version: int, response_version: int
) -> None:
    assert request_header_version(key, version) == request_version
    assert response_header_version(key, version) == response_version


@pytest.mark.parametrize(
    ("header_version", "tail", "client_id"),
    [
        (0, b"", None),
        (1, b"\0\3abc", "abc"),
        (1, b"\xff\xff", None),
        (2, b"\0\3abc\0", "abc"),
        (2, b"\xff\xff\0", None),
    ],
)
def test_layouts_of_the_request_header(
    header_version: int, tail: bytes, client_id: str | None
) -> None:
    """In version 2 the client id is still a classic string."""
    header = RequestHeader(api_key=3, api_version=5, correlation_id=7, client_id=client_id)
    data = b"\0\3\0\5\0\0\0\7" + tail
    reader = Reader(data)
    assert read_request_header(reader, header_version) == header
    assert reader.remaining == 0
    writer = Writer()
    write_request_header(writer, header, header_version)
    assert joined(writer.parts()) == data


def test_layouts_of_the_response_header() -> None:
    for header_version, data in ((0, b"\0\0\0\7"), (1, b"\0\0\0\7\0")):
        writer = Writer()
        write_response_header(writer, 7, header_version)
        assert joined(writer.parts()) == data
        assert read_response_header(Reader(data), header_version) == 7
    assert read_response_header(Reader(b"\0\0\0\7" + b"\1\1\1x"), 1) == 7


def test_a_damaged_header_says_so() -> None:
    with pytest.raises(MalformedRequest, match="RequestHeader at byte 4"):
        read_request_header(Reader(b"\0\3\0\5\0"))
    with pytest.raises(MalformedRequest, match="ResponseHeader at byte 0"):
        read_response_header(Reader(b""), 0)
