"""AddPartitionsToTxn, AddOffsetsToTxn, TxnOffsetCommit and EndTxn."""

from __future__ import annotations

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.failures import code_of, group_code_of
from firnmq.brokers.kafka.groups import GENERATION_NONE, CommitRequest, GroupCoordinator
from firnmq.brokers.kafka.handlers.offsets import METADATA_CHARS_MAX
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
    EndTxnRequest,
    EndTxnResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from firnmq.brokers.kafka.spread_offsets import SpreadOffsets, commit_adding
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import (
    AddGroupRequest,
    AddPartitionsRequest,
    CommitOffsetsRequest,
    EndRequest,
    TransactionCoordinator,
    TransactionPartition,
)
from firnmq.brokers.net.loop_turns import Turns
from firnmq.clock import Clock
from firnmq.config.names import check_group_name
from firnmq.errors import FirnError, InvalidArgument

_FENCED_FIRST_VERSION = 2
"""Clients that speak less know only INVALID_PRODUCER_EPOCH."""

_ABORTABLE_SINCE = 4
"""From this version of TxnOffsetCommit on clients know that they can abort and go on."""
_GROUP_ADDED_SINCE = 5
"""From this version on a group becomes part of a transaction by its first offset."""

Codes = dict[tuple[str, int], ErrorCode]


class TransactionHandler:
    def __init__(
        self,
        storage: KafkaStorage,
        transactions: TransactionCoordinator,
        groups: GroupCoordinator,
        offsets: GroupOffsets,
        clock: Clock,
        turns: Turns,
        spread: SpreadOffsets | None = None,
    ) -> None:
        self._spread = spread
        self._turns = turns
        self._offsets = offsets
        self._storage = storage
        self._transactions = transactions
        self._groups = groups
        self._clock = clock

    async def add_partitions(
        self, request: AddPartitionsToTxnRequest, version: int
    ) -> AddPartitionsToTxnResponse:
        """Adds all of the partitions or none."""
        codes, partitions = await self._find(request)
        if not any(codes.values()):
            error = await self._transactions.add_partitions(
                request.transactional_id,
                AddPartitionsRequest(
                    producer_id=request.producer_id,
                    epoch=request.producer_epoch,
                    partitions=tuple(partitions),
                ),
            )
            code = fenced_code(error, version, _FENCED_FIRST_VERSION)
            codes = dict.fromkeys(codes, code)
        else:
            codes = {
                place: code or ErrorCode.OPERATION_NOT_ATTEMPTED for place, code in codes.items()
            }
        return AddPartitionsToTxnResponse(
            results=[
                AddPartitionsToTxnTopicResult(
                    name=topic.name,
                    results=[
                        AddPartitionsToTxnPartitionResult(
                            partition_index=index, error_code=codes[topic.name, index]
                        )
                        async for index in self._turns.over(topic.partitions)
                    ],
                )
                async for topic in self._turns.over(request.topics)
            ]
        )

    async def _find(
        self, request: AddPartitionsToTxnRequest
    ) -> tuple[Codes, list[TransactionPartition]]:
        codes: Codes = {}
        partitions = []
        async for topic in self._turns.over(request.topics):
            async for index in self._turns.over(topic.partitions):
                try:
                    partitions.append(self._storage.transaction_partition(topic.name, index))
                    codes[topic.name, index] = ErrorCode.NONE
                except FirnError as error:
                    codes[topic.name, index] = code_of(error)
        return codes, partitions

    async def add_offsets(
        self, request: AddOffsetsToTxnRequest, version: int
    ) -> AddOffsetsToTxnResponse:
        try:
            check_group_name(request.group_id)
        except InvalidArgument:
            return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        error = await self._transactions.add_group(
            request.transactional_id,
            AddGroupRequest(
                producer_id=request.producer_id,
                epoch=request.producer_epoch,
                group=request.group_id,
            ),
        )
        code = fenced_code(error, version, _FENCED_FIRST_VERSION)
        return AddOffsetsToTxnResponse(error_code=code)

    async def commit_offsets(
        self, request: TxnOffsetCommitRequest, version: int, owner: str
    ) -> TxnOffsetCommitResponse:
        """Keeps offsets with the transaction; the group has them once it is committed."""
        group_code = self._judge_group(request)
        codes: Codes = {}
        offsets: dict[str, CommittedOffset] = {}
        async for topic in self._turns.over(request.topics):
            async for part in self._turns.over(topic.partitions):
                code, shard = group_code, ""
                if code is ErrorCode.NONE:
                    code, shard = self._judge_offset(topic.name, part)
                codes[topic.name, part.partition_index] = code
                if code is ErrorCode.NONE:
                    offsets[shard] = CommittedOffset(
                        offset=part.committed_offset,
                        metadata=part.committed_metadata,
                        committed_ms=self._clock.now_ms(),
                        leader_epoch=part.committed_leader_epoch,
                        owner=owner,
                    )
        failure = ErrorCode.NONE
        if offsets:
            failure = await self._keep_offsets(request, offsets, version)
        return TxnOffsetCommitResponse(
            topics=[
                TxnOffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        TxnOffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes[topic.name, part.partition_index] or failure,
                        )
                        async for part in self._turns.over(topic.partitions)
                    ],
                )
                async for topic in self._turns.over(request.topics)
            ]
        )

    async def _keep_offsets(
        self, request: TxnOffsetCommitRequest, offsets: dict[str, CommittedOffset], version: int
    ) -> ErrorCode:
        try:
            await self._offsets.check(request.group_id, offsets)
        except FirnError as refusal:
            return group_code_of(refusal)
        wanted = CommitOffsetsRequest(
            producer_id=request.producer_id,
            epoch=request.producer_epoch,
            group=request.group_id,
            offsets=offsets,
        )
        name, adds = request.transactional_id, version >= _GROUP_ADDED_SINCE
        try:
            if self._spread is not None:
                error = await self._spread.commit_offsets(name, wanted, adds=adds)
            else:
                error = await commit_adding(self._transactions, name, wanted, adds=adds)
        except FirnError as refusal:
            return group_code_of(refusal)
        if error is ErrorCode.INVALID_TXN_STATE and version >= _ABORTABLE_SINCE:
            return ErrorCode.TRANSACTION_ABORTABLE
        # This call was never told of PRODUCER_FENCED.
        is_fenced = error is ErrorCode.PRODUCER_FENCED
        return ErrorCode.INVALID_PRODUCER_EPOCH if is_fenced else error

    def _judge_group(self, request: TxnOffsetCommitRequest) -> ErrorCode:
        is_member = (
            request.generation_id != GENERATION_NONE
            or request.member_id != ""
            or request.group_instance_id is not None
        )
        if not is_member:  # Before version 3 only the producer's epoch fences.
            return ErrorCode.NONE
        return self._groups.check_commit(
            request.group_id,
            CommitRequest(
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                is_transactional=True,
            ),
        )

    def _judge_offset(
        self, topic: str, part: TxnOffsetCommitRequestPartition
    ) -> tuple[ErrorCode, str]:
        if len(part.committed_metadata or "") > METADATA_CHARS_MAX:
            return ErrorCode.OFFSET_METADATA_TOO_LARGE, ""
        if part.committed_offset < 0:
            return ErrorCode.INVALID_REQUEST, ""
        try:
            return ErrorCode.NONE, self._storage.shard(topic, part.partition_index)
        except FirnError as error:
            return code_of(error), ""

    async def end(self, request: EndTxnRequest, version: int) -> EndTxnResponse:
        error = await self._transactions.end(
            request.transactional_id,
            EndRequest(
                producer_id=request.producer_id,
                epoch=request.producer_epoch,
                is_commit=request.committed,
            ),
        )
        return EndTxnResponse(error_code=fenced_code(error, version, _FENCED_FIRST_VERSION))


def fenced_code(error: ErrorCode, version: int, first_version: int) -> ErrorCode:
    """The error, or what stood for PRODUCER_FENCED before there was such a code."""
    if error is ErrorCode.PRODUCER_FENCED and version < first_version:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error
