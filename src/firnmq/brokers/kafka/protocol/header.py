"""The headers in front of every request and response.

Request headers come in three versions. Version 0 has no client id; only an API that we do not
speak uses it. Version 1 adds the client id. Version 2 adds tagged fields and belongs to the
flexible versions, but keeps the client id as a classic string: a broker must be able to read it
before it knows the version. Response headers are version 0 (the correlation id), or 1 (with
tagged fields) for flexible versions, except that of ApiVersions, which is always 0 because the
client may not know yet what we speak.
"""

from __future__ import annotations

from firnmq.brokers.kafka.protocol.errors import MalformedRequest
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import Int16, Int32, Message, String
from firnmq.brokers.kafka.protocol.versions import ApiKey, is_flexible
from firnmq.brokers.kafka.protocol.writer import Writer


class RequestHeader(Message):
    api_key: Int16
    api_version: Int16
    correlation_id: Int32
    client_id: String | None = None


def request_header_version(api_key: int, api_version: int) -> int:
    return 2 if is_flexible(api_key, api_version) else 1


def response_header_version(api_key: int, api_version: int) -> int:
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if is_flexible(api_key, api_version) else 0


def read_request_header(reader: Reader, header_version: int | None = None) -> RequestHeader:
    """Reads a header, of the version that follows from its own key and API version.

    Works for keys and versions we do not speak too, so that they can be refused by name.
    """
    try:
        api_key, api_version = reader.int16(), reader.int16()
        correlation_id = reader.int32()
        if header_version is None:
            header_version = request_header_version(api_key, api_version)
        client_id = reader.nullable_string() if header_version >= 1 else None
        if header_version >= 2:
            reader.skip_tagged_fields()
    except MalformedRequest as error:
        error.within("RequestHeader")
        raise
    return RequestHeader(
        api_key=api_key,
        api_version=api_version,
        correlation_id=correlation_id,
        client_id=client_id,
    )


def write_request_header(
    writer: Writer, header: RequestHeader, header_version: int | None = None
) -> None:
    if header_version is None:
        header_version = request_header_version(header.api_key, header.api_version)
    writer.int16(header.api_key)
    writer.int16(header.api_version)
    writer.int32(header.correlation_id)
    if header_version >= 1:
        writer.nullable_string(header.client_id)
    if header_version >= 2:
        writer.unsigned_varint(0)


def read_response_header(reader: Reader, header_version: int) -> int:
    """The correlation id."""
    try:
        correlation_id = reader.int32()
        if header_version >= 1:
            reader.skip_tagged_fields()
    except MalformedRequest as error:
        error.within("ResponseHeader")
        raise
    return correlation_id


def write_response_header(writer: Writer, correlation_id: int, header_version: int) -> None:
    writer.int32(correlation_id)
    if header_version >= 1:
        writer.unsigned_varint(0)
