"""The live tail: records of a topic as they are stored, pushed to a browser.

A reader can follow some records, not hundreds of thousands a second. What comes is looked at a few
times a second. Of what is more than the share of such a moment, the newest is shown and the rest is
counted, so that a busy topic costs the node no more than a quiet one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final

import msgspec

from firnmq.adapter import StorageAdapter, Topic, wait_for_append
from firnmq.disk import call_blocking
from firnmq.errors import InvalidArgument
from firnmq.record import Record
from firnmq.record.document import bytes_of
from firnmq.server.admin.console.browsing import shown_record
from firnmq.server.admin.console.documents import BrowsedRecord, Tailed
from firnmq.server.admin.endpoint import Call, Parameter
from firnmq.server.admin.parts import NodeParts

_INTERVAL_S: Final = 0.25
_RATE_MAX: Final = 1_000
"""Records a second that are pushed at most."""
_BYTES_MAX: Final = 256 * 1024
"""Of one look: with this many bytes a second times four, a browser is still usable."""
_VALUE_BYTES: Final = 512
_SIGN_S: Final = 10.0
_SHARDS_MAX: Final = 1_000

PARAMETERS: Final = {
    "shard": Parameter(text="Only this shard."),
    "key": Parameter(text="Only records with this key.", kind="string"),
    "tag": Parameter(text="Only records with this tag.", kind="string"),
    "contains": Parameter(text="Only records with this text in key or value.", kind="string"),
}


class Tail:
    def __init__(self, parts: NodeParts) -> None:
        self._storage = parts.storage
        self._manager = parts.local.manager
        self._stopping = parts.stopping

    async def events(self, call: Call) -> AsyncGenerator[bytes, None]:
        topic = self._storage.topic(call.path["topic"])
        only, contains = call.number("shard"), call.query.get("contains", "").encode()
        key, tag = bytes_of(call.query, "key"), call.query.get("tag")
        seqs = range(topic.shard_count) if only is None else [only]
        if len(seqs) > _SHARDS_MAX:
            raise InvalidArgument("shard", f"choose one: the topic has {topic.shard_count:,}")

        def is_wanted(record: Record) -> bool:
            if key is not None and record.key != key:
                return False
            if tag is not None and tag not in record.tags:
                return False
            return (
                not contains or contains in (record.value or b"") or contains in (record.key or b"")
            )

        places = {seq: (await self._manager.bounds(topic, seq))[1] for seq in seqs}
        yield b""
        while not self._stopping.is_set():
            begun_s = time.monotonic()
            found, skipped, ends = await self._look(topic, places)
            if found or skipped:
                shown = [(seq, record) for seq, record in found if is_wanted(record)]
                documents = await call_blocking(None, _documents, topic, shown)
                yield msgspec.json.encode(Tailed(records=documents, skipped=skipped))
                await self._pause(_INTERVAL_S - (time.monotonic() - begun_s))
            else:
                driver = self._manager.driver_of(topic.name)
                # A shard can end beyond what may be read, where a transaction is open.
                await self._wait(
                    [
                        (driver, topic.shard_name(seq), max(ends[seq], place))
                        for seq, place in places.items()
                    ]
                )
                if time.monotonic() - begun_s >= _SIGN_S:
                    yield b""

    async def _look(
        self, topic: Topic, places: dict[int, int]
    ) -> tuple[list[tuple[int, Record]], int, dict[int, int]]:
        """The newest of what was stored since the last look, how many records were left out, and
        the ends of the shards. Moves the places to where the next look begins."""
        driver = self._manager.driver_of(topic.name)
        ends = {seq: (await self._manager.bounds(topic, seq))[1] for seq in places}
        grown = {seq: end for seq, end in ends.items() if end > places[seq]}
        if not grown:
            return [], 0, ends
        share = max(int(_RATE_MAX * _INTERVAL_S) // len(grown), 1)
        found: list[tuple[int, Record]] = []
        skipped = 0
        for seq, end in grown.items():
            begin = max(places[seq], end - share)
            page = await driver.read_by_offset(
                topic.shard_name(seq), begin, max_records=share, max_bytes=_BYTES_MAX
            )
            records = [each for each in page.records() if each.offset < end]
            if page.next_offset <= begin and begin == places[seq]:
                continue  # Nothing may be read yet: a transaction is open.
            skipped += begin - places[seq]
            places[seq] = max(page.next_offset, begin)
            found += [(seq, record) for record in records]
        found.sort(key=lambda each: each[1].timestamp_ms)
        return found, skipped, ends

    async def _wait(self, places: list[tuple[StorageAdapter, str, int]]) -> None:
        """Until something is stored, for a sign of life, or until the listener stops."""
        tasks = [
            asyncio.ensure_future(wait_for_append(places, _SIGN_S)),
            asyncio.ensure_future(self._stopping.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def _pause(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), max(seconds, 0.0))
        except TimeoutError:
            return


def _documents(topic: Topic, found: list[tuple[int, Record]]) -> list[BrowsedRecord]:
    documents: list[BrowsedRecord] = []
    total_bytes = 0
    for seq, record in found:
        document = shown_record(topic, seq, record, _VALUE_BYTES)
        total_bytes += len(document.value or document.value_base64 or "")
        documents.append(document)
        if total_bytes > _BYTES_MAX:
            break
    return documents
