"""The operations that nodes ask of each other: their names, arguments and results as bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import msgspec

from firnmq.engines import AdapterOffsetStrategy, Appended, Page, ShardStatus, StoredPage
from firnmq.engines.api import ProducerStatus
from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.errors import Corruption
from firnmq.record import NewRecord, Record

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation whose arguments and result msgspec encodes as they are."""

    name: str
    arguments: Any
    """Type of the tuple of arguments."""
    result: Any = None
    timeout_s: float = 30.0
    """How long the asking node waits for the answer."""

    def encode(self, *arguments: Any) -> bytes:
        return msgspec.msgpack.encode(arguments)

    def decode(self, data: memoryview) -> Any:
        try:
            return msgspec.msgpack.decode(data, type=self.arguments)
        except msgspec.MsgspecError as error:
            raise Corruption(str(error), where=f"another node's request {self.name}") from error

    def result_of(self, value: memoryview, raw: memoryview) -> Any:
        return msgspec.msgpack.decode(value, type=self.result)


_Text = str
_Limits = tuple[str, int, int, int]
_Bounds = tuple[int, int]

SUBMIT = Operation("submit", tuple[str, int, int], Appended)
"""Shard, acks, how long the sender waits in ms; -1: it does not."""
APPEND = Operation("append", tuple[str, list[bytes]], Appended)
APPEND_MARKER = Operation("append_marker", tuple[str, int, int, bool], Appended)
BOUNDS = Operation("bounds", tuple[str], _Bounds)
STABLE_OFFSET = Operation("stable_offset", tuple[str], int)
STATUS = Operation("status", tuple[str], ShardStatus)
PRODUCERS = Operation("producers", tuple[str], list[ProducerStatus])
ROLL = Operation("roll", tuple[str], None)
MOVE = Operation("move", tuple[str, int], None, 40.0)
"""Shard, the node that shall lead it. Longer than the freeze and the hand-over of a roll."""
TAKE_SNAPSHOT = Operation("take_snapshot", tuple[str, int, int], None, 5.0)
"""Shard, its number, end offset; the snapshot is the request's raw bytes."""
FIND_OFFSET = Operation("find_offset", tuple[str, int, bool], int)
FIND_NEWEST = Operation("find_newest", tuple[str, bool], _Bounds | None)
OFFSET_AT = Operation("offset_at", tuple[str, int, AdapterOffsetStrategy], int)
READ_STORED = Operation("read_stored", tuple[str, int, int, bool])
READ_BY_OFFSET = Operation("read_by_offset", _Limits)
READ_BY_TAG = Operation("read_by_tag", tuple[str, bytes, int, int, int])
READ_BY_KEY = Operation("read_by_key", tuple[str, bytes])
READ_KEY_HISTORY = Operation("read_key_history", tuple[str, bytes, int, int, int])
DELETE_KEY = Operation("delete_key", tuple[str, bytes], int | None)
DELETE_OFFSETS = Operation("delete_offsets", tuple[str, list[int]], list[int])
DELETE_BEFORE = Operation("delete_before", tuple[str, int], int)
CHECK_CHANGE = Operation("check_change", tuple[str, dict[str, str | None]], None)
RECONFIGURE = Operation("reconfigure", tuple[list[str], dict[str, str | None], int], None, 5.0)
WATCH = Operation("watch", tuple[str, int, int], None)
"""Shard, end offset, for how many ms at most."""
FOLLOW = Operation("follow", tuple[int], None, 5.0)
"""Returns once the node has taken over the shards that a revision of the metadata gives to it."""

SHARD_OPERATIONS = {
    each.name: each
    for each in (
        *(SUBMIT, APPEND, APPEND_MARKER, BOUNDS, STABLE_OFFSET, STATUS, ROLL, FIND_OFFSET),
        *(FIND_NEWEST, OFFSET_AT, READ_STORED, READ_BY_OFFSET, READ_BY_TAG, READ_BY_KEY),
        *(
            READ_KEY_HISTORY,
            DELETE_KEY,
            DELETE_OFFSETS,
            DELETE_BEFORE,
            CHECK_CHANGE,
            WATCH,
            PRODUCERS,
        ),
    )
}
"""Those about one shard, which is their first argument."""


class _RecordWire(NamedTuple):
    """A record; text that need not be UTF-8 is bytes."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    tags: list[bytes]
    expire_at_ms: int | None


class _PageWire(NamedTuple):
    records: list[_RecordWire]
    next_offset: int
    start_offset: int
    end_offset: int


class _NewRecordWire(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: list[tuple[bytes, bytes | None]]
    tags: list[bytes]
    timestamp_ms: int | None
    expire_at_ms: int | None


class _StoredWire(NamedTuple):
    lengths: list[int]
    """Of the buffers, which follow as raw bytes."""
    next_offset: int
    start_offset: int
    end_offset: int
    stable_offset: int
    aborted: list[list[int]]


def encode_page(page: Page) -> bytes:
    records = [
        _RecordWire(
            each.offset,
            each.timestamp_ms,
            each.key,
            each.value,
            _headers(each.headers),
            [_bytes(tag) for tag in each.tags],
            each.expire_at_ms,
        )
        for each in page.records()
    ]
    return msgspec.msgpack.encode(
        _PageWire(records, page.next_offset, page.start_offset, page.end_offset)
    )


def decode_page(value: memoryview, raw: memoryview) -> Page:
    wire = msgspec.msgpack.decode(value, type=_PageWire)
    records = [
        Record(
            offset=each.offset,
            timestamp_ms=each.timestamp_ms,
            key=each.key,
            value=each.value,
            headers=tuple((_text(name), content) for name, content in each.headers),
            tags=tuple(map(_text, each.tags)),
            expire_at_ms=each.expire_at_ms,
        )
        for each in wire.records
    ]
    return Page.from_records(
        records,
        next_offset=wire.next_offset,
        start_offset=wire.start_offset,
        end_offset=wire.end_offset,
    )


def encode_stored(page: StoredPage) -> bytes:
    return msgspec.msgpack.encode(
        _StoredWire(
            [len(content) for content in page.contents],
            page.next_offset,
            page.start_offset,
            page.end_offset,
            page.stable_offset,
            [list(each) for each in page.aborted],
        )
    )


def decode_stored(value: memoryview, raw: memoryview) -> StoredPage:
    wire = msgspec.msgpack.decode(value, type=_StoredWire)
    contents, at = [], 0
    for length in wire.lengths:
        contents.append(raw[at : at + length])
        at += length
    return StoredPage(
        tuple(contents),
        wire.next_offset,
        wire.start_offset,
        wire.end_offset,
        wire.stable_offset,
        tuple(AbortedTransaction(*each) for each in wire.aborted),
    )


def encode_record(record: NewRecord) -> bytes:
    return msgspec.msgpack.encode(
        _NewRecordWire(
            record.value,
            record.key,
            _headers(record.headers),
            [_bytes(tag) for tag in record.tags],
            record.timestamp_ms,
            record.expire_at_ms,
        )
    )


def decode_record(data: bytes) -> NewRecord:
    wire = msgspec.msgpack.decode(data, type=_NewRecordWire)
    return NewRecord(
        value=wire.value,
        key=wire.key,
        headers=tuple((_text(name), content) for name, content in wire.headers),
        tags=tuple(map(_text, wire.tags)),
        timestamp_ms=wire.timestamp_ms,
        expire_at_ms=wire.expire_at_ms,
    )


Decode = Callable[[memoryview, memoryview], T]


def _headers(headers: tuple[tuple[str, bytes | None], ...]) -> list[tuple[bytes, bytes | None]]:
    return [(_bytes(name), content) for name, content in headers]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
