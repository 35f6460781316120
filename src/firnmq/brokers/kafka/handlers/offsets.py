"""OffsetCommit, OffsetFetch, OffsetDelete: what groups have read."""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.groups import CommitRequest, GroupCoordinator, GroupState
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import TransactionCoordinator
from firnmq.clock import Clock
from firnmq.errors import FirnError, InvalidArgument

METADATA_CHARS_MAX = 4096
"""What a client may note beside an offset; the limit Kafka has."""


class OffsetHandler:
    def __init__(
        self,
        storage: KafkaStorage,
        offsets: GroupOffsets,
        coordinator: GroupCoordinator,
        clock: Clock,
        transactions: TransactionCoordinator,
    ) -> None:
        self._transactions = transactions
        self._storage = storage
        self._offsets = offsets
        self._coordinator = coordinator
        self._clock = clock

    async def commit(self, request: OffsetCommitRequest) -> OffsetCommitResponse:
        group_code = self._coordinator.check_commit(
            request.group_id,
            CommitRequest(
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
            ),
        )
        entries: dict[str, CommittedOffset] = {}
        codes: dict[tuple[str, int], ErrorCode] = {}
        now_ms = self._clock.now_ms()
        for topic in request.topics:
            for part in topic.partitions:
                code, shard = group_code, ""
                if code is ErrorCode.NONE:
                    code, shard = self._locate(topic.name, part.partition_index)
                if (
                    code is ErrorCode.NONE
                    and len(part.committed_metadata or "") > METADATA_CHARS_MAX
                ):
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                codes[topic.name, part.partition_index] = code
                if code is ErrorCode.NONE:
                    entries[shard] = CommittedOffset(
                        offset=part.committed_offset,
                        metadata=part.committed_metadata,
                        committed_ms=now_ms,
                        leader_epoch=part.committed_leader_epoch,
                    )
        failure = ErrorCode.NONE
        if entries:
            try:
                await self._offsets.commit(request.group_id, entries)
            except FirnError as error:
                is_bad_name = isinstance(error, InvalidArgument)
                failure = ErrorCode.INVALID_GROUP_ID if is_bad_name else code_of(error)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes[topic.name, part.partition_index] or failure,
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    async def fetch(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        if version >= 8:
            groups = []
            for group in request.groups:
                topics, code = self._fetch(group.group_id, group.topics, request.require_stable)
                groups.append(
                    OffsetFetchResponseGroup(
                        group_id=group.group_id, topics=topics, error_code=code
                    )
                )
            return OffsetFetchResponse(groups=groups)
        topics, code = self._fetch(request.group_id, request.topics, request.require_stable)
        return OffsetFetchResponse(topics=topics, error_code=code)

    async def delete(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        state = self._coordinator.describe(request.group_id).state
        if request.group_id not in self._offsets.groups() and state is GroupState.DEAD:
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
        in_use = state not in (GroupState.EMPTY, GroupState.DEAD)
        topics, shards = [], []
        for topic in request.topics:
            partitions = []
            for part in topic.partitions:
                code, shard = self._locate(topic.name, part.partition_index)
                if code is ErrorCode.NONE and in_use:
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if code is ErrorCode.NONE:
                    shards.append(shard)
                partitions.append(
                    OffsetDeleteResponsePartition(
                        partition_index=part.partition_index, error_code=code
                    )
                )
            topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        if shards:
            await self._offsets.forget(request.group_id, shards)
        return OffsetDeleteResponse(topics=topics)

    def _fetch(
        self, group: str, wanted: Sequence[OffsetFetchRequestTopic] | None, must_be_stable: bool
    ) -> tuple[list[OffsetFetchResponseTopic], ErrorCode]:
        try:
            committed = self._offsets.committed(group)
        except FirnError as error:
            is_bad_name = isinstance(error, InvalidArgument)
            return [], ErrorCode.INVALID_GROUP_ID if is_bad_name else code_of(error)
        if wanted is None:
            wanted = self._all_committed(committed)
        return [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    self._fetch_one(topic.name, index, committed, group if must_be_stable else None)
                    for index in topic.partition_indexes
                ],
            )
            for topic in wanted
        ], ErrorCode.NONE

    def _fetch_one(
        self, name: str, index: int, committed: dict[str, CommittedOffset], stable_of: str | None
    ) -> OffsetFetchResponsePartition:
        _, shard = self._locate(name, index)
        if stable_of is not None and self._transactions.has_pending_offset(stable_of, shard):
            # A transaction is about to change it: the client asks again.
            return OffsetFetchResponsePartition(
                partition_index=index,
                committed_offset=-1,
                metadata="",
                error_code=ErrorCode.UNSTABLE_OFFSET_COMMIT,
            )
        entry = committed.get(shard)
        if entry is None:  # Not an error: the client applies its reset policy.
            return OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, metadata=""
            )
        return OffsetFetchResponsePartition(
            partition_index=index,
            committed_offset=entry.offset,
            committed_leader_epoch=entry.leader_epoch,
            metadata=entry.metadata if entry.metadata is not None else "",
        )

    def _all_committed(
        self, committed: dict[str, CommittedOffset]
    ) -> list[OffsetFetchRequestTopic]:
        found = []
        for topic in self._storage.catalog.topics():
            indexes = [i for i, shard in enumerate(topic.shard_names()) if shard in committed]
            if indexes:
                found.append(OffsetFetchRequestTopic(name=topic.name, partition_indexes=indexes))
        return found

    def _locate(self, name: str, index: int) -> tuple[ErrorCode, str]:
        try:
            return ErrorCode.NONE, self._storage.shard(name, index)
        except FirnError as error:
            return code_of(error), ""
