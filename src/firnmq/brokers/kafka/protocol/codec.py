"""Whole frames to messages and back: what a connection handler calls.

The busiest calls have hand-written paths (`hot`); this module uses them where they apply and the
table-driven codec everywhere else, so that other modules need not know which is which. A frame is
handed in without its size and comes out with it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from firnmq.brokers.kafka.protocol.bounds import (
    REQUEST_BYTES_MAX,
    SHORT_BYTES_MAX,
    SHORT_ELEMENT_COUNT_MAX,
    bytes_max_of,
    element_count_max_of,
)
from firnmq.brokers.kafka.protocol.catalog import REQUESTS, RESPONSES
from firnmq.brokers.kafka.protocol.compiler import decode, encode
from firnmq.brokers.kafka.protocol.errors import ErrorCode, RequestTooLong, UnsupportedVersion
from firnmq.brokers.kafka.protocol.header import (
    RequestHeader,
    read_request_header,
    read_response_header,
    response_header_version,
    write_request_header,
    write_response_header,
)
from firnmq.brokers.kafka.protocol.hot import (
    BUILDERS,
    PARSERS,
    Builder,
    Parser,
    parse_request_header,
)
from firnmq.brokers.kafka.protocol.primitives import ELEMENT_COUNT_MAX, Buffer, Part
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import Message
from firnmq.brokers.kafka.protocol.versions import (
    ADVERTISED,
    ApiKey,
    api_versions_response,
    is_flexible,
)
from firnmq.brokers.kafka.protocol.writer import TooManyElements, Writer
from firnmq.errors import InvalidArgument

REQUEST_BYTES: Final = "request_bytes"
_PRODUCE: Final = ApiKey.PRODUCE.to_bytes(2, "big")


def decode_short_request(frame: Buffer) -> tuple[RequestHeader, Message] | None:
    """The same as `decode_request`; None for a request that takes long to decode."""
    if len(frame) > SHORT_BYTES_MAX and frame[:2] != _PRODUCE:
        return None
    try:
        return decode_request(frame, element_count_max=SHORT_ELEMENT_COUNT_MAX)
    except RequestTooLong as error:
        if error.limit == REQUEST_BYTES:
            raise
        return None


def decode_request(
    frame: Buffer, *, element_count_max: int = ELEMENT_COUNT_MAX
) -> tuple[RequestHeader, Message]:
    """The header and the message of a request frame, given without its size.

    Record data in the message are views of `frame`. Raises `UnsupportedVersion` for what we do
    not speak (for ApiVersions, answer with `refuse_api_versions`), `RequestTooLong` for more bytes
    or elements than a request of its API may have, `MalformedRequest` otherwise.
    """
    reader = Reader(frame, element_count_max=element_count_max)
    header = parse_request_header(reader) or read_request_header(reader)
    version = header.api_version
    route = _ROUTES.get((header.api_key, version))
    if route is None:
        raise UnsupportedVersion(header.api_key, version, header.correlation_id)
    if len(frame) > REQUEST_BYTES_MAX and route.bytes_max is not None:
        raise RequestTooLong(
            f"{len(frame):,} bytes, a request of API {header.api_key} may have {route.bytes_max:,}",
            position=reader.position,
            limit=REQUEST_BYTES,
        )
    if route.parse is not None:
        parsed = route.parse(reader.view, reader.position, version)
        if parsed is not None:
            return header, parsed
    reader.elements_left = min(reader.elements_left, route.element_count_max)
    return header, decode(route.request, reader, version, flexible=route.is_flexible)


def encode_short_response(header: RequestHeader, response: Message) -> list[Part] | None:
    """The same as `encode_response`; None for an answer that takes long to encode."""
    try:
        return encode_response(header, response, element_count_max=SHORT_ELEMENT_COUNT_MAX)
    except TooManyElements:
        return None


def encode_response(
    header: RequestHeader, response: Message, *, element_count_max: int = sys.maxsize
) -> list[Part]:
    """The frame, with its size, that answers the request with this header."""
    version = header.api_version
    route = _ROUTES.get((header.api_key, version))
    if route is None or type(response) is not route.response:
        raise _mismatch(header, response)
    if route.build is not None:
        built = route.build(response, header.correlation_id, version)
        if built is not None:
            return built
    writer = Writer(is_framed=True, element_count_max=element_count_max)
    write_response_header(writer, header.correlation_id, route.response_header_version)
    encode(response, writer, version, flexible=route.is_flexible)
    return writer.parts()


def refuse_api_versions(correlation_id: int) -> list[Part]:
    """The frame that answers ApiVersions of a version we do not speak.

    It has the layout of version 0, the only one that every client can read.
    """
    header = RequestHeader(
        api_key=ApiKey.API_VERSIONS, api_version=0, correlation_id=correlation_id
    )
    return encode_response(header, api_versions_response(ErrorCode.UNSUPPORTED_VERSION))


def encode_request(header: RequestHeader, request: Message) -> list[Part]:
    """The frame, with its size, that carries a request."""
    route = _ROUTES.get((header.api_key, header.api_version))
    if route is None or type(request) is not route.request:
        raise _mismatch(header, request)
    writer = Writer(is_framed=True)
    write_request_header(writer, header)
    encode(request, writer, header.api_version, flexible=route.is_flexible)
    return writer.parts()


def decode_response(api_key: int, version: int, frame: Buffer) -> tuple[int, Message]:
    """The correlation id and the message of a response frame, given without its size."""
    route = _ROUTES.get((api_key, version))
    if route is None:
        raise InvalidArgument("version", f"API {api_key} has no version {version} here")
    reader = Reader(frame)
    correlation_id = read_response_header(reader, route.response_header_version)
    return correlation_id, decode(route.response, reader, version, flexible=route.is_flexible)


def _mismatch(header: RequestHeader, message: Message) -> InvalidArgument:
    name = type(message).__name__
    return InvalidArgument(
        "message", f"{name} does not go with API {header.api_key} version {header.api_version}"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    """Everything that follows from the key and the version, looked up once per frame."""

    request: type[Message]
    response: type[Message]
    is_flexible: bool
    bytes_max: int | None
    element_count_max: int
    response_header_version: int
    parse: Parser | None
    build: Builder | None


_ROUTES: Final = {
    (int(key), version): _Route(
        request=REQUESTS[key],
        response=RESPONSES[key],
        is_flexible=is_flexible(key, version),
        bytes_max=bytes_max_of(key),
        element_count_max=element_count_max_of(key),
        response_header_version=response_header_version(key, version),
        parse=PARSERS.get(key),
        build=BUILDERS.get(key),
    )
    for key, versions in ADVERTISED.items()
    for version in range(versions.first, versions.last + 1)
}
