"""Answers to requests that are not decoded, because they are longer than they may be.

An answer has its API's own layout. Where that has one error code for the whole request, the code is
there; else it is at the first thing that the request names, which is read from the frame's first
bytes. Clients report that error, and what the answer does not mention, to their users.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from uuid import UUID

from firnmq.brokers.kafka.protocol.catalog import REQUESTS, RESPONSES
from firnmq.brokers.kafka.protocol.codec import encode_response
from firnmq.brokers.kafka.protocol.compiler import field_codec, type_codec
from firnmq.brokers.kafka.protocol.errors import ErrorCode, MalformedRequest
from firnmq.brokers.kafka.protocol.header import read_request_header
from firnmq.brokers.kafka.protocol.primitives import Buffer, Part
from firnmq.brokers.kafka.protocol.reader import Reader
from firnmq.brokers.kafka.protocol.schema import (
    ArrayOf,
    Field,
    Kind,
    Message,
    WireType,
    default_of,
    fields_of,
)
from firnmq.brokers.kafka.protocol.versions import ADVERTISED, ApiKey, is_flexible

_EMPTY: Final = {
    Kind.BOOLEAN: False,
    Kind.INT8: 0,
    Kind.INT16: 0,
    Kind.INT32: 0,
    Kind.INT64: -1,
    Kind.FLOAT64: 0.0,
    Kind.UUID: UUID(int=0),
    Kind.STRING: "",
    Kind.BYTES: b"",
    Kind.RECORDS: b"",
}
_ABOUT_ERRORS: Final = ("error_code", "error_message", "throttle_time_ms")
_ELEMENT: Final = ""
"""Where the values of an array's first element are; no field has this name."""
_ADMINISTRATION: Final = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.DELETE_RECORDS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.CREATE_ACLS,
        ApiKey.ALTER_CLIENT_QUOTAS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.DESCRIBE_PRODUCERS,
    }
)
"""Their clients show the code's text to a user, who can send less at a time."""


def refuse(frame: Buffer, text: str, code: ErrorCode | None = None) -> list[Part] | None:
    """The answer to a request of which the first bytes are given; None if there can be none.

    `text` tells a user what is wrong, where the answer has a place for it. Without a `code` the
    answer says that the request is too long.
    """
    reader = Reader(frame)
    try:
        header = read_request_header(reader)
    except MalformedRequest:
        return None
    api_key, version = header.api_key, header.api_version
    if api_key not in ADVERTISED or version not in ADVERTISED[api_key]:
        return None
    flexible = is_flexible(api_key, version)
    asked, is_one = _first_values(REQUESTS[api_key], reader, version, flexible)
    if api_key == ApiKey.PRODUCE and (asked.get("acks") == 0 or not is_one):
        return None  # Without acks there is no answer, and every batch needs its own.
    code = code or _code_of(api_key)
    response = _response(RESPONSES[api_key], version, asked, code, text, is_element=False)
    return None if response is None else encode_response(header, response)


def _code_of(api_key: int) -> ErrorCode:
    if api_key == ApiKey.PRODUCE:
        return ErrorCode.MESSAGE_TOO_LARGE
    if api_key in _ADMINISTRATION:
        return ErrorCode.POLICY_VIOLATION
    return ErrorCode.INVALID_REQUEST


# What the request names ---------------------------------------------------------------------------


def _first_values(
    message: type[Message], reader: Reader, version: int, flexible: bool
) -> tuple[dict[str, Any], bool]:
    """The fields up to the first array that has elements, and the first of those under `_ELEMENT`.

    Returns as well whether no array has a second element.
    """
    values: dict[str, Any] = {}
    try:
        for field in _plain_fields(message, version):
            if not isinstance(field.type, ArrayOf):
                values[field.name] = field_codec(field, version, flexible).read(reader)
                continue
            # Not `array_count`, for which the number is too large.
            count = reader.unsigned_varint() - 1 if flexible else reader.int32()
            if count > 0:
                element, is_one = _first_element(field.type.element, reader, version, flexible)
                values[_ELEMENT] = element
                return values, is_one and count == 1
    except MalformedRequest:  # The bytes end here, or inside a long value.
        pass
    return values, True


def _first_element(
    element: WireType, reader: Reader, version: int, flexible: bool
) -> tuple[dict[str, Any], bool]:
    if not isinstance(element, Kind):
        assert not isinstance(element, ArrayOf)
        return _first_values(element, reader, version, flexible)
    return {element.value: type_codec(element, version, flexible).read(reader)}, True


# The answer ---------------------------------------------------------------------------------------


def _response(
    message: type[Message],
    version: int,
    asked: Mapping[str, Any],
    code: ErrorCode,
    text: str,
    *,
    is_element: bool = True,
) -> Message | None:
    """A message with the code where its layout has one; None if the request does not say enough."""
    path = _path_to_code(message, version)
    values: dict[str, Any] = {}
    for field in _plain_fields(message, version):
        name, kind = field.name, field.type
        if name == "error_code":
            values[name] = code
        elif name == "error_message":
            values[name] = text
        elif isinstance(kind, Kind):
            if name in asked or not _has_default(message, name):
                alike = _alike(kind, values, asked) if is_element else _EMPTY[kind]
                values[name] = asked.get(name) or alike
        elif isinstance(kind, ArrayOf):
            values[name] = ()
            if path and path[0] == name:
                if _ELEMENT not in asked:
                    return None
                assert isinstance(kind.element, type)
                inner = _response(kind.element, version, asked[_ELEMENT], code, text)
                if inner is None:
                    return None
                values[name] = (inner,)
    return message(**values)


def _alike(kind: Kind, before: Mapping[str, Any], asked: Mapping[str, Any]) -> object:
    """The first value of the request with the type of a field that has another name there; only for
    the first field of that type, which is the one that says what the answer is about."""
    empty = _EMPTY[kind]
    if kind in (Kind.STRING, Kind.INT32) and not any(
        type(value) is type(empty) for name, value in before.items() if name not in _ABOUT_ERRORS
    ):
        for name, value in asked.items():
            if name != _ELEMENT and type(value) is type(empty):
                return value
    return empty


@cache
def _path_to_code(message: type[Message], version: int) -> tuple[str, ...] | None:
    """The arrays that lead to the nearest error code; empty if the message has one itself."""
    fields = _plain_fields(message, version)
    if any(field.name == "error_code" for field in fields):
        return ()
    found = [
        (field.name, *path)
        for field in fields
        if isinstance(field.type, ArrayOf) and isinstance(field.type.element, type)
        if (path := _path_to_code(field.type.element, version)) is not None
    ]
    return min(found, key=len, default=None)


def _plain_fields(message: type[Message], version: int) -> list[Field]:
    return [each for each in fields_of(message) if each.is_in(version) and each.tag is None]


def _has_default(message: type[Message], name: str) -> bool:
    try:
        default_of(message, name)
    except TypeError:
        return False
    return True
