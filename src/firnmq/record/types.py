"""Records as values: what a caller hands in and what a reader gets back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record.batch import RECORD_BYTES_MAX

Headers = tuple[tuple[str, bytes | None], ...]

TIMESTAMP_MS_MAX: Final = 2**62 - 1
"""Far beyond any date, and the difference of two such timestamps still fits 64 bits."""
EXPIRE_AT_MS_MAX: Final = 10**18 - 1
"""Eighteen decimal digits: the longest expiry header that every reader parses."""

RECORD_OVERHEAD_BYTES: Final = 36
"""The most that length, attributes, deltas, key length, value length and header count take."""
_HEADER_OVERHEAD_BYTES: Final = 10
"""The most that the two lengths of one header take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRecord:
    """A record to append. It has no offset yet; a missing timestamp becomes the append time.

    Tags and expiry are stored as headers whose names the topic chooses, so every Kafka client
    can read and write them.
    """

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    tags: tuple[str, ...] = ()
    timestamp_ms: int | None = None
    expire_at_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A stored record.

    `headers` holds every stored header, those of tags and expiry included; `tags` and
    `expire_at_ms` are derived from them and from the topic's time to live. Bytes of names and
    tags that are not UTF-8 appear as surrogates, so encoding them with `surrogateescape` gives
    back what is stored.
    """

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    tags: tuple[str, ...]
    expire_at_ms: int | None


class Keys(Protocol):
    """Keys with offsets; of a key that is there more than once the last counts."""

    def __len__(self) -> int: ...

    def items(self) -> Iterable[tuple[bytes, int]]: ...


class BatchTerms(NamedTuple):
    """What the indexes need to know of a batch."""

    keys: Keys
    """Each key with the offset of its newest record; a dictionary unless they are packed."""
    tags: dict[bytes, list[int]]
    """Each tag with the ascending offsets of the records that have it."""


def checked(record: NewRecord, *, max_record_bytes: int = RECORD_BYTES_MAX) -> NewRecord:
    """`record` itself if it can be stored; InvalidRecord or LimitExceeded if not.

    The size is an upper bound of the encoded size, at most a few dozen bytes above it.
    """
    if not isinstance(record, NewRecord):
        raise InvalidRecord(f"expected a NewRecord, got {type(record).__name__}")
    size = RECORD_OVERHEAD_BYTES + _size("value", record.value) + _size("key", record.key)
    if record.headers:
        size += _headers_size(record.headers)
    if record.tags:
        size += _tags_size(record.tags)
    if record.timestamp_ms is not None:
        _check_time("timestamp_ms", record.timestamp_ms, TIMESTAMP_MS_MAX)
    if record.expire_at_ms is not None:
        _check_time("expire_at_ms", record.expire_at_ms, EXPIRE_AT_MS_MAX)
    if size > max_record_bytes:
        raise LimitExceeded("record", size, max_record_bytes, option="max.record.bytes")
    return record


def _size(field: str, value: object) -> int:
    if value is None:
        return 0
    if not isinstance(value, bytes):
        raise InvalidRecord(f"{field} must be bytes or None, not {type(value).__name__}")
    return len(value)


def _text_size(field: str, text: object, errors: str) -> int:
    if not isinstance(text, str):
        raise InvalidRecord(f"{field} must be str, not {type(text).__name__}")
    try:
        return len(text.encode("utf-8", errors))
    except UnicodeEncodeError as bad:
        raise InvalidRecord(f"{field} {text!r} cannot be written as UTF-8") from bad


def _headers_size(headers: Headers) -> int:
    if not isinstance(headers, tuple):
        raise InvalidRecord(f"headers must be a tuple, not {type(headers).__name__}")
    size = 0
    header: object
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 2:
            raise InvalidRecord("each header must be a pair of name and value")
        size += _HEADER_OVERHEAD_BYTES
        size += _text_size("header name", header[0], "strict")
        size += _size("header value", header[1])
    return size


def _tags_size(tags: tuple[str, ...]) -> int:
    if not isinstance(tags, tuple):
        raise InvalidRecord(f"tags must be a tuple, not {type(tags).__name__}")
    size = 0
    for tag in tags:
        size += _HEADER_OVERHEAD_BYTES + _text_size("tag", tag, "surrogateescape")
    return size


def _check_time(field: str, value: object, limit: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidRecord(f"{field} must be an int, not {type(value).__name__}")
    if not 0 <= value <= limit:
        raise InvalidRecord(f"{field} {value} is outside 0..{limit}")
