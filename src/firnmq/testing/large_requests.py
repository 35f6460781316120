"""The largest requests of every API: each array of a request filled, by turns, as far as it goes.

A request is derived from its message class, so an API that is added is covered without being
named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from firnmq.brokers.kafka.protocol import ApiKey, Message, RequestHeader, encode_request
from firnmq.brokers.kafka.protocol.bounds import element_count_max_of
from firnmq.brokers.kafka.protocol.catalog import REQUESTS
from firnmq.brokers.kafka.protocol.primitives import varint_bytes
from firnmq.brokers.kafka.protocol.schema import ArrayOf, Field, Kind, WireType, fields_of
from firnmq.brokers.kafka.protocol.versions import ADVERTISED, is_flexible

_NO_SUCH: Final = {
    Kind.BOOLEAN: False,
    Kind.INT8: 0,
    Kind.INT16: 0,
    Kind.INT32: 0,
    Kind.FLOAT64: 0.0,
    Kind.INT64: 0,
    Kind.UUID: UUID(int=1),
    Kind.STRING: "x",
    Kind.BYTES: b"",
    Kind.RECORDS: b"\0" * 64,
}

Path = tuple[str, ...]
"""Names of fields, from a message to one of its arrays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeRequest:
    label: str
    api_key: int
    version: int
    frame: bytes
    """With its size in front."""


def large_requests(
    count: int, *, topic: str, topic_id: UUID, group: str, only: ApiKey | None = None
) -> Iterator[LargeRequest]:
    """For every API, each of its arrays in turn with `count` elements, all the same or all
    different; fewer where a request of the API may not have so many.

    Names are those of a topic and a group that exist, where all elements are the same.
    """
    known = {
        "group_id": group,
        "group": group,
        "groups": group,
        "groups_names": group,
        "topic_id": topic_id,
        "resource_type": 2,
        "num_partitions": 1,
        "replication_factor": 1,
        "partition_max_bytes": 1024,
        "max_bytes": 1024 * 1024,
        "session_timeout_ms": 6_000,
        "protocol_type": "consumer",
        "isolation_level": 0,
        "acks": 1,
        "generation_id": -1,
        "validate_only": True,
        "timestamp": -1,
    }
    for name in ("name", "topic", "topics", "topic_names", "resource_name"):
        known[name] = topic
    for api_key, request in REQUESTS.items():
        if only is not None and api_key != only:
            continue
        api = ApiKey(api_key)
        versions = ADVERTISED[api_key]
        for version in sorted({max(versions.first, 3 if api == 0 else 0), versions.last}):
            for path, cost in _arrays(request, version):
                filled = min(count, (element_count_max_of(api_key) - 10) // cost)
                for is_same in (True, False):
                    message = _build(request, version, path, filled if is_same else -filled, known)
                    yield LargeRequest(
                        label=f"{api.name} v{version} {'.'.join(path)} "
                        f"{'the same' if is_same else 'different'}",
                        api_key=api_key,
                        version=version,
                        frame=_framed(api_key, version, message),
                    )
            if is_flexible(api_key, version):
                message = _build(request, version, (), 1, known)
                yield LargeRequest(
                    label=f"{api.name} v{version} tagged fields",
                    api_key=api_key,
                    version=version,
                    frame=_with_tags(
                        _framed(api_key, version, message),
                        min(count, element_count_max_of(api_key) - 10),
                    ),
                )


def _framed(api_key: int, version: int, message: Message) -> bytes:
    header = RequestHeader(
        api_key=api_key, api_version=version, correlation_id=1, client_id="large"
    )
    return b"".join(encode_request(header, message))  # type: ignore[arg-type]


def _with_tags(frame: bytes, count: int) -> bytes:
    """The frame, which ends with its number of tagged fields, with many unknown ones."""
    assert frame[-1] == 0
    body = frame[4:-1] + varint_bytes(count) + b"\x7f\0" * count
    return len(body).to_bytes(4, "big") + body


def _arrays(message: type[Message], version: int) -> Iterator[tuple[Path, int]]:
    """The arrays of a message, and as how many elements one of theirs counts with what it has."""
    for field in _plain_fields(message, version):
        if isinstance(field.type, ArrayOf):
            inner: list[tuple[Path, int]] = []
            if isinstance(field.type.element, type):
                inner = list(_arrays(field.type.element, version))
            yield (field.name,), 1 + len(inner)
            for path, cost in inner:
                yield (field.name, *path), cost


def _plain_fields(message: type[Message], version: int) -> list[Field]:
    return [each for each in fields_of(message) if each.is_in(version) and each.tag is None]


def _build(
    message: type[Message],
    version: int,
    path: Path,
    count: int,
    known: dict[str, Any],
    number: int | None = None,
) -> Message:
    """A message whose array at `path` has `count` elements. One of many that differ has a number.

    A negative count makes elements that differ.
    """
    values: dict[str, Any] = {}
    for field in _plain_fields(message, version):
        name, kind = field.name, field.type
        if isinstance(kind, ArrayOf):
            if path == (name,):
                values[name] = _filled(name, kind.element, version, count, known)
            else:
                inner = path[1:] if path[:1] == (name,) else ()
                values[name] = [_element(name, kind.element, version, inner, count, known, None)]
        elif number is not None and kind is Kind.STRING:
            values[name] = f"x{number}"
        elif number is not None and kind is Kind.UUID:
            values[name] = UUID(int=number)
        elif number is not None and kind is Kind.INT32 and name in _INDEXES:
            values[name] = number
        elif isinstance(kind, Kind):  # Else a structure that may be missing, and is.
            values[name] = known.get(name, _NO_SUCH[kind])
    return message(**values)


def _filled(
    name: str, element: WireType, version: int, count: int, known: dict[str, Any]
) -> list[Any]:
    if count > 0:
        return [_element(name, element, version, (), 1, known, None)] * count
    return [_element(name, element, version, (), 1, known, i) for i in range(-count)]


def _element(
    name: str,
    element: WireType,
    version: int,
    path: Path,
    count: int,
    known: dict[str, Any],
    number: int | None,
) -> Any:
    assert not isinstance(element, ArrayOf)
    if not isinstance(element, Kind):
        return _build(element, version, path, count, known, number)
    if number is None:
        return known.get(name, _NO_SUCH[element])
    if element is Kind.STRING:
        return f"x{number}"
    return number % 128 if element is Kind.INT8 else number


_INDEXES: Final = ("index", "partition", "partition_index")
