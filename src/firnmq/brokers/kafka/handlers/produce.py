"""Produce, the slow path: every request is parsed; batches go to their shards as they are.

The answer waits until the batches are acknowledged, or until the request's time is over. Requests
like the client's last one take the fast path (`produce_fast.py`). Both end in `submit`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from time import monotonic
from typing import Any, NamedTuple, TypeAlias

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.protocol import (
    PRODUCE_VERSION_SERVED_MIN,
    ErrorCode,
    RequestHeader,
)
from firnmq.brokers.kafka.protocol.messages.produce_fetch import (
    BatchIndexAndErrorMessage,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import AddPartitionsRequest, Appends, TransactionCoordinator
from firnmq.brokers.net.loop_turns import Turns
from firnmq.disk.files import Buffer
from firnmq.engines import Acks, Appended
from firnmq.errors import FirnError, InvalidRecord
from firnmq.record import BatchHeader, parse_header
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL, attributes_of

_NO_OFFSET = -1
_TIMEOUT_MS_DEFAULT = 30_000
_ACKS = {int(acks): acks for acks in (Acks.NONE, Acks.LEADER, Acks.ALL)}
_BATCHES_AT_ONCE = 100
"""Batches of one request that are queued or answered before other requests go on."""

_GOOD = ErrorCode.NONE
_ADDED_CODES = {
    ErrorCode.PRODUCER_FENCED: ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.COORDINATOR_NOT_AVAILABLE: ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_COORDINATOR: ErrorCode.NOT_ENOUGH_REPLICAS,
}
"""What Produce tells of an error of the coordinator: producers retry NOT_ENOUGH_REPLICAS."""
_ABORTABLE_SINCE = 11
"""From this version on a producer is told that it can abort a transaction and go on."""
_PARTITIONS_ADDED_SINCE = 12
"""From this version on a partition becomes part of a transaction by its first batch."""

_Outcome: TypeAlias = (
    Awaitable[Appended] | Awaitable[Appended | ErrorCode] | PartitionProduceResponse
)
"""What became of a batch: its append goes on, or it was refused."""


class _Begun(NamedTuple):
    """What became of the batches of a topic."""

    asked: TopicProduceData
    name: str
    partitions: list[tuple[int, _Outcome]]


def acks_of(number: int) -> Acks | None:
    """What a request's number means; None if it means nothing."""
    return _ACKS.get(number)


def deadline_of(timeout_ms: int, received_s: float) -> float:
    """When a request's time is over. Some clients send none (0), and wait all the same."""
    return received_s + (timeout_ms if timeout_ms > 0 else _TIMEOUT_MS_DEFAULT) / 1000


def refused(index: int, error: FirnError) -> PartitionProduceResponse:
    """The answer for a partition that took nothing: why, and which records are at fault."""
    message = str(error)
    at_fault = error.record_indexes if isinstance(error, InvalidRecord) else ()
    return PartitionProduceResponse(
        index=index,
        error_code=code_of(error),
        base_offset=_NO_OFFSET,
        record_errors=[
            BatchIndexAndErrorMessage(batch_index=each, batch_index_error_message=message)
            for each in at_fault
        ],
        error_message=message,
    )


def _refused_with(index: int, code: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=index, error_code=code, base_offset=_NO_OFFSET)


def _told(code: ErrorCode, version: int) -> ErrorCode:
    """What a producer is told of another node's refusal."""
    if code is ErrorCode.INVALID_TXN_STATE and version >= _ABORTABLE_SINCE:
        return ErrorCode.TRANSACTION_ABORTABLE
    return _ADDED_CODES.get(code, code) if version >= _PARTITIONS_ADDED_SINCE else code


async def _told_later(begun: Awaitable[Appended | ErrorCode], version: int) -> Appended | ErrorCode:
    outcome = await begun
    return _told(outcome, version) if isinstance(outcome, ErrorCode) else outcome


class ProduceHandler:
    def __init__(
        self, storage: KafkaStorage, transactions: TransactionCoordinator, turns: Turns
    ) -> None:
        self._turns = turns
        self._storage = storage
        self._transactions = transactions

    async def begin(
        self, header: RequestHeader, request: ProduceRequest
    ) -> Coroutine[Any, Any, ProduceResponse]:
        """Queues every batch; the returned coroutine waits for them and makes the response."""
        begun: list[_Begun] = []
        count = 0
        for topic in request.topic_data:
            name = self._storage.named(topic.name, topic.topic_id)
            partitions: list[tuple[int, _Outcome]] = []
            for data in topic.partition_data:
                count += 1
                if count % _BATCHES_AT_ONCE == 0:
                    await self._turns.give_way()
                partitions.append((data.index, await self._submit(header, request, name, data)))
            begun.append(_Begun(topic, name, partitions))
        return self._finish(begun)

    async def _submit(
        self, header: RequestHeader, request: ProduceRequest, name: str, data: PartitionProduceData
    ) -> _Outcome:
        acks = acks_of(request.acks)
        if acks is None:
            return _refused_with(data.index, ErrorCode.INVALID_REQUIRED_ACKS)
        if header.api_version < PRODUCE_VERSION_SERVED_MIN:
            return _refused_with(data.index, ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
        try:
            if not data.records:
                raise InvalidRecord("there is no batch")
            if attributes_of(data.records) & ATTRIBUTE_TRANSACTIONAL:  # type: ignore[arg-type]
                return await self._submit_transactional(
                    request, header.api_version, name, data, acks
                )
            deadline_s = deadline_of(request.timeout_ms, monotonic())
            return await self._storage.submit(name, data.index, data.records, acks, deadline_s)  # type: ignore[arg-type]
        except FirnError as error:
            return self._refused(data.index, error)

    async def _submit_transactional(
        self,
        request: ProduceRequest,
        version: int,
        name: str,
        data: PartitionProduceData,
        acks: Acks,
    ) -> _Outcome:
        batch: Buffer = data.records  # type: ignore[assignment]
        deadline_s = deadline_of(request.timeout_ms, monotonic())
        if self._storage.gate is not None:
            begun = await self._storage.submit_transactional(
                name,
                data.index,
                batch,
                acks,
                deadline_s,
                request.transactional_id,
                adds=version >= _PARTITIONS_ADDED_SINCE,
            )
            if isinstance(begun, ErrorCode):
                return _refused_with(data.index, _told(begun, version))
            return _told_later(begun, version)
        header = parse_header(batch)
        shard = self._storage.shard(name, data.index)
        judged = self._judge_append(request, header, shard)
        if judged is ErrorCode.INVALID_TXN_STATE and version >= _PARTITIONS_ADDED_SINCE:
            added = await self._add_partition(request, name, data.index, header)
            judged = self._judge_append(request, header, shard) if added is _GOOD else added
        if isinstance(judged, ErrorCode):
            if judged is ErrorCode.INVALID_TXN_STATE and version >= _ABORTABLE_SINCE:
                judged = ErrorCode.TRANSACTION_ABORTABLE
            return _refused_with(data.index, judged)
        with judged:
            return await self._storage.submit(name, data.index, batch, acks, deadline_s)

    def _judge_append(
        self, request: ProduceRequest, batch: BatchHeader, shard: str
    ) -> ErrorCode | Appends:
        return self._transactions.judge_append(
            request.transactional_id, batch.producer_id, batch.producer_epoch, shard
        )

    async def _add_partition(
        self, request: ProduceRequest, name: str, index: int, batch: BatchHeader
    ) -> ErrorCode:
        """Makes a partition part of the producer's transaction, which later versions of Produce
        leave to the node."""
        assert request.transactional_id is not None
        partition = self._storage.transaction_partition(name, index)
        error = await self._transactions.add_partitions(
            request.transactional_id,
            AddPartitionsRequest(
                producer_id=batch.producer_id,
                epoch=batch.producer_epoch,
                partitions=(partition,),
            ),
        )
        return _ADDED_CODES.get(error, error)

    async def _finish(
        self,
        begun: list[_Begun],
    ) -> ProduceResponse:
        topics = []
        count = 0
        for asked, name, partitions in begun:
            answers = []
            for index, outcome in partitions:
                count += 1
                if count % _BATCHES_AT_ONCE == 0:
                    await self._turns.give_way()
                answers.append(await self._answer(name, index, outcome))
            topics.append(
                TopicProduceResponse(
                    name=asked.name, topic_id=asked.topic_id, partition_responses=answers
                )
            )
        return ProduceResponse(responses=topics)

    async def _answer(self, name: str, index: int, outcome: _Outcome) -> PartitionProduceResponse:
        if isinstance(outcome, PartitionProduceResponse):
            return outcome
        try:
            appended = await outcome
            if isinstance(appended, ErrorCode):
                return _refused_with(index, appended)
            start_offset = await self._storage.log_start(name, index)
        except FirnError as error:
            return self._refused(index, error)
        return PartitionProduceResponse(
            index=index,
            base_offset=appended.base_offset,
            log_append_time_ms=appended.append_time_ms,
            log_start_offset=start_offset,
        )

    def _refused(self, index: int, error: FirnError) -> PartitionProduceResponse:
        self._storage.catalog.name_shard(error)
        # The frames of tracebacks hold decompressed records, and refer to the error in turn: only
        # the garbage collector would free them, and many of them make it slow.
        error.__cause__ = error.__context__ = None
        return refused(index, error.with_traceback(None))
