"""Produce: batches go to their shards as they are; the answer waits until they are durable."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import (
    PRODUCE_VERSION_SERVED_MIN,
    ErrorCode,
    RequestHeader,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import TransactionCoordinator
from firnmq.disk.files import Buffer
from firnmq.engines import Appended
from firnmq.errors import FirnError, InvalidRecord
from firnmq.record import parse_header
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL, attributes_of

_LEGAL_ACKS = (-1, 0, 1)
_NO_OFFSET = -1


class ProduceHandler:
    def __init__(self, storage: KafkaStorage, transactions: TransactionCoordinator) -> None:
        self._storage = storage
        self._transactions = transactions

    async def begin(
        self, header: RequestHeader, request: ProduceRequest
    ) -> Coroutine[Any, Any, ProduceResponse]:
        """Queues every batch; the returned coroutine waits for them and makes the response."""
        begun: list[tuple[str, list[tuple[int, Awaitable[Appended] | FirnError | ErrorCode]]]] = []
        for topic in request.topic_data:
            partitions: list[tuple[int, Awaitable[Appended] | FirnError | ErrorCode]] = []
            for data in topic.partition_data:
                partitions.append(
                    (data.index, await self._submit(header, request, topic.name, data))
                )
            begun.append((topic.name, partitions))
        return self._finish(begun)

    async def _submit(
        self, header: RequestHeader, request: ProduceRequest, name: str, data: PartitionProduceData
    ) -> Awaitable[Appended] | FirnError | ErrorCode:
        if request.acks not in _LEGAL_ACKS:
            return ErrorCode.INVALID_REQUIRED_ACKS
        if header.api_version < PRODUCE_VERSION_SERVED_MIN:
            return ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        try:
            if not data.records:
                raise InvalidRecord("there is no batch")
            if attributes_of(data.records) & ATTRIBUTE_TRANSACTIONAL:  # type: ignore[arg-type]
                return await self._submit_transactional(request, name, data)
            return await self._storage.submit(name, data.index, [data.records])  # type: ignore[list-item]
        except FirnError as error:
            return error

    async def _submit_transactional(
        self, request: ProduceRequest, name: str, data: PartitionProduceData
    ) -> Awaitable[Appended] | ErrorCode:
        batch: Buffer = data.records  # type: ignore[assignment]
        header = parse_header(batch)
        shard = self._storage.shard(name, data.index)
        judged = self._transactions.judge_append(
            request.transactional_id, header.producer_id, header.producer_epoch, shard
        )
        if isinstance(judged, ErrorCode):
            return judged
        with judged:
            return await self._storage.submit(name, data.index, [batch])

    async def _finish(
        self,
        begun: list[tuple[str, list[tuple[int, Awaitable[Appended] | FirnError | ErrorCode]]]],
    ) -> ProduceResponse:
        topics = []
        for name, partitions in begun:
            answers = [await self._answer(name, index, outcome) for index, outcome in partitions]
            topics.append(TopicProduceResponse(name=name, partition_responses=answers))
        return ProduceResponse(responses=topics)

    async def _answer(
        self, name: str, index: int, outcome: Awaitable[Appended] | FirnError | ErrorCode
    ) -> PartitionProduceResponse:
        if isinstance(outcome, ErrorCode):
            return PartitionProduceResponse(index=index, error_code=outcome, base_offset=_NO_OFFSET)
        try:
            if isinstance(outcome, FirnError):
                raise outcome
            appended = await outcome
            start_offset, _ = await self._storage.bounds(name, index)
        except FirnError as error:
            self._storage.catalog.name_shard(error)
            return PartitionProduceResponse(
                index=index,
                error_code=code_of(error),
                base_offset=_NO_OFFSET,
                error_message=str(error),
            )
        return PartitionProduceResponse(
            index=index, base_offset=appended.base_offset, log_start_offset=start_offset
        )
