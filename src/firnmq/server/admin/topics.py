"""Topics, segments and records, as the HTTP listener offers them."""

from __future__ import annotations

from firnmq.adapter import EngineStorageAdapter, Topic
from firnmq.brokers.kafka.handlers.configs import ConfigHandler, topic_config
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.admin import (
    IncrementalAlterableConfig,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResource,
)
from firnmq.engines import Page
from firnmq.errors import InvalidArgument
from firnmq.record.document import from_document, to_document
from firnmq.server.admin.errors import BrokerRefused
from firnmq.server.admin.parts import NodeParts
from firnmq.server.deletion import delete_records
from firnmq.server.documents import (
    Deletion,
    NewRecords,
    NewTopic,
    OptionChanges,
    Placement,
    RecordPage,
    Segment,
    ShardDeletion,
    ShardSummary,
    TopicDeleted,
    TopicDescription,
    TopicOptions,
    TopicSummary,
    segments_of,
)

RECORDS_MAX = 1000
RECORD_BYTES_MAX = 4 * 1024 * 1024
WAIT_MS_MAX = 30_000
_TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1


class TopicAdmin:
    def __init__(self, parts: NodeParts) -> None:
        self._storage = parts.storage
        self._manager = parts.local.manager
        self._defaults = parts.config.kafka.topic_defaults
        self._configs = ConfigHandler(parts.storage, parts.config.kafka)

    def all(self) -> list[TopicSummary]:
        return [TopicSummary.of(topic) for topic in self._storage.catalog.topics()]

    async def describe(self, name: str) -> TopicDescription:
        topic = self._storage.topic(name)
        shards = [await self._shard(topic, seq) for seq in range(topic.shard_count)]
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
        """Goes the way of a Kafka client's request, so that both mean the same."""
        self._storage.topic(name)
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
        self, name: str, shard: int, offset: int, max_records: int, wait_ms: int
    ) -> RecordPage:
        """Records from an offset on; a negative one counts from the end. Waits only at the end."""
        if not 1 <= max_records <= RECORDS_MAX:
            raise InvalidArgument("max", f"must be 1 to {RECORDS_MAX:,}, not {max_records:,}")
        if not 0 <= wait_ms <= WAIT_MS_MAX:
            raise InvalidArgument("wait_ms", f"must be 0 to {WAIT_MS_MAX:,}, not {wait_ms:,}")
        topic = self._storage.topic(name)
        start, end = await self._manager.bounds(topic, shard)
        if offset < 0:
            offset = max(end + offset, start)
        if offset == end and wait_ms:
            await self._storage.wait_for_append([(name, shard, end)], wait_ms / 1000)
        page = await self._read(topic, shard, offset, max_records)
        return RecordPage(
            topic=name,
            shard=shard,
            start_offset=page.start_offset,
            end_offset=page.end_offset,
            next_offset=page.next_offset,
            records=[
                to_document(record, topic=name, shard=shard, config=topic.config)
                for record in page.records()
            ],
        )

    async def write(self, name: str, wanted: NewRecords) -> list[Placement]:
        records = [from_document(document) for document in wanted.records]
        if not records:
            return []
        written = await self._manager.write(name, records, wanted.shard)
        return [Placement.of(name, part) for part in written]

    async def delete_records(self, name: str, wanted: Deletion) -> list[ShardDeletion]:
        return await delete_records(self._manager, name, wanted)

    async def _shard(self, topic: Topic, seq: int) -> ShardSummary:
        if isinstance(self._manager.driver_of(topic.name), EngineStorageAdapter):
            return ShardSummary.of(seq, await self._storage.status(topic.name, seq))
        start, end = await self._manager.bounds(topic, seq)
        return ShardSummary(shard=seq, start_offset=start, end_offset=end)

    async def _read(self, topic: Topic, seq: int, offset: int, max_records: int) -> Page:
        return await self._manager.driver_of(topic.name).read_by_offset(
            topic.shard_name(seq), offset, max_records=max_records, max_bytes=RECORD_BYTES_MAX
        )


def _text(value: str | float | bool | None) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)
