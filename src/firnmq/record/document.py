"""Records as JSON documents.

Keys and values are text where they are UTF-8, else base64 in a field whose name ends so. Headers
that hold tags or the expiry are left out, since those have fields of their own.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import TYPE_CHECKING

from firnmq.errors import InvalidRecord
from firnmq.record.types import NewRecord, Record

if TYPE_CHECKING:
    from firnmq.config import TopicConfig

_BASE64 = "_base64"
_PLACE_FIELDS = {"topic", "shard", "offset"}
"""Where a record was: printed, and passed over when it is written somewhere else."""
_RECORD_FIELDS = {
    *("key", "key_base64", "value", "value_base64"),
    *("tags", "headers", "timestamp_ms", "expire_at_ms"),
}


def to_document(
    record: Record, *, topic: str, shard: int, config: TopicConfig
) -> dict[str, object]:
    """A record and where it was found."""
    hidden = {*config.tag_headers, config.expire_header}
    document: dict[str, object] = {
        "topic": topic,
        "shard": shard,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
    }
    _put(document, "key", record.key)
    _put(document, "value", record.value)
    document["tags"] = [_valid(tag) for tag in record.tags]
    headers = []
    for name, value in record.headers:
        if name not in hidden:
            header: dict[str, object] = {"name": _valid(name)}
            _put(header, "value", value)
            headers.append(header)
    document["headers"] = headers
    document["expire_at_ms"] = record.expire_at_ms
    return document


def _put(document: dict[str, object], field: str, raw: bytes | None) -> None:
    if raw is None:
        document[field] = None
        return
    try:
        document[field] = raw.decode("utf-8")
    except UnicodeDecodeError:
        document[field + _BASE64] = base64.b64encode(raw).decode("ascii")


def _valid(text: str) -> str:
    """Text without surrogates, which JSON cannot carry."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def from_document(document: object) -> NewRecord:
    """A record from a document; InvalidRecord says what is wrong with it."""
    if not isinstance(document, dict):
        raise InvalidRecord('a record is an object such as {"key": "k", "value": "v"}')
    for name in document.keys() - _RECORD_FIELDS - _PLACE_FIELDS:
        known = ", ".join(sorted(_RECORD_FIELDS))
        raise InvalidRecord(f"{name!r} is no field of a record; there are: {known}")
    tags = document.get("tags") or []
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        raise InvalidRecord("tags must be a list of text")
    return NewRecord(
        value=bytes_of(document, "value"),
        key=bytes_of(document, "key"),
        tags=tuple(tags),
        headers=_headers_of(document.get("headers") or []),
        timestamp_ms=document.get("timestamp_ms"),
        expire_at_ms=document.get("expire_at_ms"),
    )


def bytes_of(document: Mapping[str, object], field: str) -> bytes | None:
    """The bytes of a field that is text, or base64 under a name that ends so."""
    encoded = document.get(field + _BASE64)
    if encoded is not None:
        if document.get(field) is not None:
            raise InvalidRecord(f"{field} and {field}{_BASE64} are both given")
        try:
            return base64.b64decode(str(encoded), validate=True)
        except ValueError as error:  # Of which binascii.Error is a kind.
            raise InvalidRecord(f"{field}{_BASE64}: {error}") from error
    text = document.get(field)
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidRecord(f"{field} must be text or null, not {type(text).__name__}")
    return text.encode()


def _headers_of(given: object) -> tuple[tuple[str, bytes | None], ...]:
    if isinstance(given, dict):
        given = [{"name": name, "value": value} for name, value in given.items()]
    if not isinstance(given, list):
        raise InvalidRecord("headers must be an object or a list of names and values")
    headers = []
    for header in given:
        if not isinstance(header, dict) or not isinstance(header.get("name"), str):
            raise InvalidRecord('a header is an object such as {"name": "n", "value": "v"}')
        headers.append((header["name"], bytes_of(header, "value")))
    return tuple(headers)
