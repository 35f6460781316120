"""Pages of records for readers who look around: from a place or a time on, or the newest first.

Records of several shards are merged by their timestamps. A cursor names the next offset of every
shard, so that a page continues exactly where the one before it ended, whatever was stored since.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from heapq import merge
from typing import Final, NamedTuple

import msgspec

from firnmq.adapter import Topic
from firnmq.disk import call_blocking
from firnmq.errors import InvalidArgument, KeyNotFound
from firnmq.record import Record
from firnmq.record.document import to_document
from firnmq.server.admin.console.documents import BrowsedRecord, RecordPage
from firnmq.server.admin.endpoint import Call, Parameter
from firnmq.server.admin.parts import NodeParts
from firnmq.server.reading import PAGE_BYTES, Reader, Reading, read_records, reading_of

_RECORDS: Final = 50
_RECORDS_MAX: Final = 500
_SHARDS_MAX: Final = 64
"""Shards whose records are merged; a cursor names each of them."""
_VALUE_BYTES: Final = 2_048
_VALUE_BYTES_MAX: Final = 4 * 1024 * 1024
_CURSOR_CHARS_MAX: Final = 4_000
_CURSOR: Final = re.compile(r"([fb])((?:\d{1,7}\.\d{1,19}(?:_|$))+)")
_PAGES_MAX: Final = 16
"""Pages of a shard's log, a megabyte each, that a request looks through for what fits a filter."""
_AHEAD: Final = 4
"""A read back over offsets without records takes steps that grow by this factor."""
_STEPS_MAX: Final = 6

PARAMETERS: Final = {
    "from": Parameter(
        text="`newest` (the default; from new to old), `oldest`, or `offset` with `offset`.",
        kind="string",
    ),
    "shard": Parameter(text="Only this shard; otherwise the first 64, merged by time."),
    "offset": Parameter(text="Where to begin; needs a shard unless the topic has one only."),
    "since_ms": Parameter(text="From this timestamp on, from old to new."),
    "until_ms": Parameter(text="Only records with an earlier timestamp."),
    "key": Parameter(text="The newest record of this key.", kind="string"),
    "key_base64": Parameter(text="Likewise, for a key that is not text.", kind="string"),
    "all": Parameter(text="With a key: all its records, from old to new.", kind="boolean"),
    "tag": Parameter(text="Only records with this tag, from old to new.", kind="string"),
    "cursor": Parameter(text="`next` of the page before.", kind="string"),
    "max": Parameter(text=f"Records of the page: {_RECORDS}, at most {_RECORDS_MAX}."),
    "value_bytes_max": Parameter(text=f"Longer values are shortened to this: {_VALUE_BYTES:,}."),
}


class _Run(NamedTuple):
    """Records of a shard, and where to go on."""

    records: list[Record]
    next_offset: int
    is_end: bool


class Browser:
    def __init__(self, parts: NodeParts) -> None:
        self._storage = parts.storage
        self._manager = parts.local.manager

    async def page(self, call: Call) -> RecordPage:
        query = dict(call.query)
        topic = self._storage.topic(call.path["topic"])
        count = _bounded(call, "max", _RECORDS, _RECORDS_MAX)
        limit = _bounded(call, "value_bytes_max", _VALUE_BYTES, _VALUE_BYTES_MAX)
        kind, places = _cursor_of(query.pop("cursor", None))
        begin = query.pop("from", "newest")
        if begin not in ("newest", "oldest", "offset"):
            raise InvalidArgument("from", f"must be newest, oldest or offset, not {begin!r}")
        for name in ("max", "value_bytes_max"):
            query.pop(name, None)
        wanted = reading_of(query)
        seqs, note = self._shards(topic, wanted)
        filters = (wanted.key, wanted.tag, wanted.since_ms, wanted.until_ms, wanted.offset)
        if wanted.key is not None and not wanted.all_versions:
            found, cursor = await self._newest_of_key(topic, wanted), None
        elif kind == "b" or (not kind and begin == "newest" and all(x is None for x in filters)):
            found, cursor = await self._back(topic, seqs, places, count)
        else:
            found, cursor = await self._forward(topic, wanted, seqs, places, count)

        def shown() -> list[BrowsedRecord]:
            return [shown_record(topic, seq, record, limit) for seq, record in found]

        return RecordPage(records=await call_blocking(None, shown), next=cursor, note=note)

    def _shards(self, topic: Topic, wanted: Reading) -> tuple[list[int], str | None]:
        if wanted.shard is not None:
            return [self._manager.check_shard(topic, wanted.shard)], None
        if topic.shard_count <= _SHARDS_MAX or wanted.key is not None:
            return list(range(topic.shard_count)), None
        text = f"records of the first {_SHARDS_MAX} of {topic.shard_count:,} shards; choose a shard"
        return list(range(_SHARDS_MAX)), text

    async def _newest_of_key(self, topic: Topic, wanted: Reading) -> list[tuple[int, Record]]:
        try:
            return [
                (found.shard, record)
                async for found in read_records(self._manager, topic, wanted)
                for record in found.records
            ]
        except KeyNotFound:
            return []

    async def _forward(
        self, topic: Topic, wanted: Reading, seqs: list[int], places: Mapping[int, int], count: int
    ) -> tuple[list[tuple[int, Record]], str | None]:
        """From old to new. The shards are merged in the order of their offsets, since timestamps
        need not rise with them."""
        reader = Reader(self._manager, topic, wanted)
        if not places:
            places = await _starts(reader, seqs)
        runs: list[list[tuple[int, Record]]] = []
        following: dict[int, int] = {}
        is_end = True
        for seq, place in places.items():
            run = await self._run(reader, seq, place, count)
            runs.append([(seq, record) for record in run.records])
            following[seq] = run.next_offset
            is_end = is_end and run.is_end
        merged = list(merge(*runs, key=_time))
        for seq, record in reversed(merged[count:]):
            following[seq] = record.offset
        is_end = is_end and len(merged) <= count
        return merged[:count], None if is_end else _cursor("f", following)

    async def _run(self, reader: Reader, seq: int, place: int, count: int) -> _Run:
        """Some of a shard's records from a place on. So much of the log is looked at and no more;
        the next page goes on from there."""
        topic, wanted = reader.topic, reader.wanted
        start, end = await self._manager.bounds(topic, seq)
        records: list[Record] = []
        at, pages = max(place, start), 0
        while at < end and len(records) < count and pages < _PAGES_MAX:
            page = await reader.page(seq, at, None)
            if page.next_offset <= at:
                return _Run(records, end, is_end=True)
            at, pages = page.next_offset, pages + 1
            records += reader.chosen(page, end)
            lowest = min((min(each.timestamps) for each in page.columns), default=0)
            if wanted.until_ms is not None and lowest >= wanted.until_ms:
                return _Run(records[:count], at, is_end=len(records) <= count)
        if len(records) > count:
            return _Run(records[:count], records[count].offset, is_end=False)
        return _Run(records, at, is_end=at >= end)

    async def _back(
        self, topic: Topic, seqs: list[int], places: Mapping[int, int], count: int
    ) -> tuple[list[tuple[int, Record]], str | None]:
        """From new to old."""
        runs: list[list[tuple[int, Record]]] = []
        following: dict[int, int] = {}
        starts: dict[int, int] = {}
        for seq in places or seqs:
            start, end = await self._manager.bounds(topic, seq)
            high = min(places.get(seq, end), end)
            records, following[seq] = await self._before(topic, seq, start, high, count)
            starts[seq] = start
            runs.append([(seq, record) for record in reversed(records)])
        merged = list(merge(*runs, key=lambda each: -_time(each)))
        for seq, record in reversed(merged[count:]):
            following[seq] = record.offset + 1
        is_end = all(following[seq] <= start for seq, start in starts.items())
        return merged[:count], None if is_end else _cursor("b", following)

    async def _before(
        self, topic: Topic, seq: int, start: int, high: int, count: int
    ) -> tuple[list[Record], int]:
        """The last records below an offset, and the offset from which on they are all. Looks
        further back where offsets have no record."""
        driver, shard = self._manager.driver_of(topic.name), topic.shard_name(seq)
        step, low, found, steps = count, high, list[Record](), 0
        while len(found) < count and low > start and steps < _STEPS_MAX:
            steps += 1
            first, low = low, max(start, low - step)
            more: list[Record] = []
            at = low
            while at < first:
                page = await driver.read_by_offset(
                    shard, at, max_records=step, max_bytes=PAGE_BYTES
                )
                more += [record for record in page.records() if record.offset < first]
                if page.next_offset <= at:
                    break
                at = page.next_offset
            found = [*more, *found]
            step *= _AHEAD
        if len(found) > count:
            found = found[-count:]
            low = found[0].offset
        return found, low


def shown_record(topic: Topic, seq: int, record: Record, value_bytes_max: int) -> BrowsedRecord:
    """A record as the console shows it; a long value is shortened, at a character if it is text."""
    value, length = record.value, None if record.value is None else len(record.value)
    is_shortened = value is not None and len(value) > value_bytes_max
    document = to_document(record, topic=topic.name, shard=seq, config=topic.config)
    if is_shortened and value is not None:
        part = bytes(value[:value_bytes_max])
        if document.get("value") is not None:
            document["value"] = part.decode("utf-8", "ignore")
        else:
            document["value_base64"] = base64.b64encode(part).decode("ascii")
    found = msgspec.convert(document, BrowsedRecord)
    return msgspec.structs.replace(found, value_length=length, is_shortened=is_shortened)


async def _starts(reader: Reader, seqs: list[int]) -> dict[int, int]:
    if reader.wanted.shard is None and len(seqs) < reader.topic.shard_count:
        return {seq: await reader.start(seq) for seq in seqs}
    return await reader.starts()


def _time(found: tuple[int, Record]) -> int:
    return found[1].timestamp_ms


def _bounded(call: Call, name: str, default: int, most: int) -> int:
    given = call.number(name)
    if given is None:
        return default
    if not 1 <= given <= most:
        raise InvalidArgument(name, f"must be 1 to {most:,}, not {given}")
    return given


def _cursor(kind: str, places: Mapping[int, int]) -> str:
    return kind + "_".join(f"{seq}.{offset}" for seq, offset in places.items())


def _cursor_of(text: str | None) -> tuple[str, dict[int, int]]:
    if text is None:
        return "", {}
    match = _CURSOR.fullmatch(text) if len(text) <= _CURSOR_CHARS_MAX else None
    if match is None:
        raise InvalidArgument("cursor", "is not one that a page has given")
    pairs = (each.partition(".") for each in match[2].rstrip("_").split("_"))
    places = {int(seq): int(offset) for seq, _, offset in pairs}
    if len(places) > _SHARDS_MAX:
        raise InvalidArgument("cursor", "is not one that a page has given")
    return match[1], places
