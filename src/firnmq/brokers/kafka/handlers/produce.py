"""Produce: batches go to their shards as they are; the answer waits until they are durable."""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from typing import Any

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import (
    PRODUCE_VERSION_SERVED_MIN,
    ErrorCode,
    Part,
    RequestHeader,
    encode_response,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.engines import Appended
from firnmq.errors import FirnError, InvalidRecord

_LEGAL_ACKS = (-1, 0, 1)
_NO_OFFSET = -1


class ProduceHandler:
    def __init__(self, storage: KafkaStorage) -> None:
        self._storage = storage

    async def begin(
        self, header: RequestHeader, request: ProduceRequest
    ) -> Coroutine[Any, Any, list[Part] | None]:
        """Queues every batch; the returned coroutine waits for them and makes the response."""
        begun: list[tuple[str, list[tuple[int, Awaitable[Appended] | FirnError | ErrorCode]]]] = []
        for topic in request.topic_data:
            partitions: list[tuple[int, Awaitable[Appended] | FirnError | ErrorCode]] = []
            for data in topic.partition_data:
                partitions.append(
                    (data.index, await self._submit(header, request, topic.name, data))
                )
            begun.append((topic.name, partitions))
        return self._finish(header, request, begun)

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
            return await self._storage.submit(name, data.index, [data.records])  # type: ignore[list-item]
        except FirnError as error:
            return error

    async def _finish(
        self,
        header: RequestHeader,
        request: ProduceRequest,
        begun: list[tuple[str, list[tuple[int, Awaitable[Appended] | FirnError | ErrorCode]]]],
    ) -> list[Part] | None:
        topics = []
        for name, partitions in begun:
            answers = [await self._answer(index, outcome) for index, outcome in partitions]
            topics.append(TopicProduceResponse(name=name, partition_responses=answers))
        if request.acks == 0:
            return None  # The client expects no response at all, not even for an error.
        return encode_response(header, ProduceResponse(responses=topics))

    async def _answer(
        self, index: int, outcome: Awaitable[Appended] | FirnError | ErrorCode
    ) -> PartitionProduceResponse:
        if isinstance(outcome, ErrorCode):
            return PartitionProduceResponse(index=index, error_code=outcome, base_offset=_NO_OFFSET)
        try:
            if isinstance(outcome, FirnError):
                raise outcome
            appended = await outcome
        except FirnError as error:
            return PartitionProduceResponse(
                index=index,
                error_code=code_of(error),
                base_offset=_NO_OFFSET,
                error_message=str(error),
            )
        return PartitionProduceResponse(
            index=index, base_offset=appended.base_offset, log_start_offset=0
        )
