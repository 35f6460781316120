"""Topics, segments and records, as the HTTP listener offers them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from firnmq.adapter import Topic, wait_for_append
from firnmq.brokers.kafka.configs import is_topic_config, topic_config
from firnmq.brokers.kafka.handlers.configs import ConfigHandler
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from firnmq.brokers.net.loop_turns import Turns
from firnmq.config import unknown_option
from firnmq.disk import call_blocking
from firnmq.errors import Corruption, InvalidArgument, StorageFailed
from firnmq.record.document import from_document, to_document
from firnmq.record.types import NewRecord
from firnmq.server.admin.errors import BrokerRefused, Refused
from firnmq.server.admin.http.places import StreamTurn
from firnmq.server.admin.parts import NodeParts
from firnmq.server.deletion import delete_records
from firnmq.server.described import described_shards
from firnmq.server.documents import (
    Deletion,
    NewRecords,
    NewTopic,
    OptionChanges,
    Placement,
    Segment,
    ShardDeletion,
    ShardSummary,
    TopicDeleted,
    TopicDescription,
    TopicOptions,
    TopicSummary,
    segments_of,
)
from firnmq.server.reading import Found, Reading, read_records

_INLINE_RECORDS_MAX = 100
"""Above this many records a thread converts them, so that the event loop stays responsive."""
_TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1


class TopicAdmin:
    def __init__(self, parts: NodeParts) -> None:
        self._storage = parts.storage
        self._stopping = parts.stopping
        self._manager = parts.local.manager
        self._defaults = parts.config.topic_defaults
        self._configs = ConfigHandler(
            parts.storage, parts.config.kafka, parts.broker.address, Turns()
        )

    def all(self) -> list[TopicSummary]:
        return [TopicSummary.of(topic) for topic in self._storage.catalog.topics()]

    async def describe(
        self, name: str, first: int | None = None, count: int | None = None
    ) -> TopicDescription:
        """With the shards from `first` on, at most `count` of them."""
        topic = self._storage.topic(name)
        described = described_shards(topic.shard_count, first, count)
        shards = [await self._shard(topic, seq) for seq in described]
        return TopicDescription.described(topic, shards)

    async def create(self, wanted: NewTopic) -> TopicSummary:
        options = {name: _text(value) for name, value in wanted.options.items()}
        config = topic_config(self._defaults, options)
        topic = await self._manager.create_topic(wanted.topic, wanted.shard_count, config)
        return TopicSummary.of(topic)

    async def delete(self, name: str) -> TopicDeleted:
        await self._manager.delete_topic(name)
        return TopicDeleted(topic=name)

    def options(self, name: str) -> TopicOptions:
        return TopicOptions(topic=name, options=self._storage.topic(name).config.options())

    async def change(self, name: str, changes: OptionChanges) -> TopicOptions:
        """Uses the code path of a Kafka client's request, so that both behave the same."""
        self._storage.topic(name)
        for option in changes.options:  # Kafka's clients may take away an unknown one.
            if not is_topic_config(option):
                raise unknown_option(option, self._defaults.options())
        resource = IncrementalAlterConfigsResource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=name,
            configs=[
                IncrementalAlterableConfig(
                    name=option,
                    config_operation=_DELETE if value is None else _SET,
                    value=_text(value),
                )
                for option, value in changes.options.items()
            ],
        )
        request = IncrementalAlterConfigsRequest(
            resources=[resource], validate_only=changes.dry_run
        )
        result = (await self._configs.alter_some(request)).responses[0]
        if result.error_code == ErrorCode.INVALID_CONFIG:
            option, _, reason = (result.error_message or "options: ").partition(": ")
            raise InvalidArgument(option, reason)
        if result.error_code:
            raise BrokerRefused(ErrorCode(result.error_code), result.error_message or "")
        return self.options(name)

    async def segments(self, name: str, shard: int | None) -> list[Segment]:
        topic = self._storage.topic(name)
        chosen = range(topic.shard_count) if shard is None else [shard]
        found: list[Segment] = []
        for seq in chosen:
            found += segments_of(name, seq, await self._storage.status(name, seq))
        return found

    async def records(
        self, name: str, wanted: Reading, turn: StreamTurn | None = None
    ) -> AsyncGenerator[bytes, None]:
        """The records as lines of JSON, page by page. The `turn` of a stream is left while it waits
        for new records."""
        topic = self._storage.topic(name)

        def lines(found: Found) -> bytes:
            documents = [
                to_document(record, topic=name, shard=found.shard, config=topic.config)
                for record in found.records
            ]
            return msgspec.json.Encoder().encode_lines(documents)

        async def wait(ends: Mapping[int, int], timeout_s: float) -> None:
            driver = self._manager.driver_of(name)
            places = [(driver, topic.shard_name(seq), end) for seq, end in ends.items()]
            if turn is not None:
                turn.leave()
            await self._unless_stopping(wait_for_append(places, timeout_s))
            if turn is not None:
                await turn.enter()

        async with aclosing(read_records(self._manager, topic, wanted, wait)) as pages:
            async for found in pages:
                if self._stopping.is_set():
                    raise Refused(503, "the node is stopping")
                # A thread encodes the documents, so that the event loop stays responsive.
                yield await call_blocking(None, lines, found) if found.records else b"\n"

    async def _unless_stopping(self, waiting: Coroutine[Any, Any, None]) -> None:
        """Waits, at most until the HTTP listener stops."""
        tasks = [asyncio.ensure_future(each) for each in (waiting, self._stopping.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    async def write(self, name: str, wanted: NewRecords) -> list[Placement]:
        if not wanted.records:
            return []
        if len(wanted.records) <= _INLINE_RECORDS_MAX:
            records = _converted(wanted.records)
        else:
            records = await call_blocking(None, _converted, wanted.records)
        written = await self._manager.write(name, records, wanted.shard)
        return [Placement.of(name, part) for part in written]

    async def delete_records(self, name: str, wanted: Deletion) -> list[ShardDeletion]:
        return await delete_records(self._manager, name, wanted)

    async def _shard(self, topic: Topic, seq: int) -> ShardSummary:
        logs = self._manager.driver_of(topic.name).logs
        if logs is not None:
            try:
                return ShardSummary.of(seq, await logs.status(topic.shard_name(seq)))
            except (Corruption, StorageFailed) as error:
                return ShardSummary(shard=seq, failure=str(error))
        start, end = await self._manager.bounds(topic, seq)
        return ShardSummary(shard=seq, start_offset=start, end_offset=end)


def _converted(documents: list[dict[str, Any]]) -> list[NewRecord]:
    return [from_document(document) for document in documents]


def _text(value: str | float | bool | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
