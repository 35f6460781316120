"""OffsetCommit, OffsetFetch, OffsetDelete: what groups have read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.failures import code_of, group_code_of, offset_fetch_code_of
from firnmq.brokers.kafka.groups import (
    CONSUMER_PROTOCOL_TYPE,
    CommitRequest,
    GroupCoordinator,
    GroupState,
)
from firnmq.brokers.kafka.groups.consumer.messages import FetchCheck
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
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from firnmq.brokers.kafka.spread_offsets import SpreadOffsets
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.kafka.transactions import TransactionCoordinator
from firnmq.brokers.net.loop_turns import Turns
from firnmq.clock import Clock
from firnmq.errors import FirnError

_GROUPS_AT_ONCE = 100
"""Groups whose offsets are read with one change of thread."""
_EPOCHS_SINCE = 9
"""Version of OffsetCommit and OffsetFetch from which on they know members' epochs."""
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
        turns: Turns,
        spread: SpreadOffsets | None = None,
    ) -> None:
        self._spread = spread
        self._turns = turns
        self._transactions = transactions
        self._storage = storage
        self._offsets = offsets
        self._coordinator = coordinator
        self._clock = clock

    async def commit(
        self, request: OffsetCommitRequest, version: int, owner: str
    ) -> OffsetCommitResponse:
        group_code = self._coordinator.check_commit(
            request.group_id,
            CommitRequest(
                member_id=request.member_id,
                generation=request.generation_id,
                instance_id=request.group_instance_id,
                knows_epochs=version >= _EPOCHS_SINCE,
            ),
        )
        entries: dict[str, CommittedOffset] = {}
        codes: dict[tuple[str, int], ErrorCode] = {}
        now_ms = self._clock.now_ms()
        async for topic in self._turns.over(request.topics):
            name = self._storage.named(topic.name, topic.topic_id)
            async for part in self._turns.over(topic.partitions):
                code, shard = group_code, ""
                if code is ErrorCode.NONE:
                    code, shard = self._locate(name, part.partition_index)
                if (
                    code is ErrorCode.NONE
                    and len(part.committed_metadata or "") > METADATA_CHARS_MAX
                ):
                    code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                if code is ErrorCode.NONE and part.committed_offset < 0:
                    code = ErrorCode.INVALID_REQUEST
                codes[name, part.partition_index] = code
                if code is ErrorCode.NONE:
                    entries[shard] = CommittedOffset(
                        offset=part.committed_offset,
                        metadata=part.committed_metadata,
                        committed_ms=now_ms,
                        leader_epoch=part.committed_leader_epoch,
                        owner=owner,
                    )
        failure = ErrorCode.NONE
        if entries:
            try:
                await self._offsets.commit(request.group_id, entries)
            except FirnError as error:
                failure = group_code_of(error)
        return OffsetCommitResponse(
            topics=[
                OffsetCommitResponseTopic(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=[
                        OffsetCommitResponsePartition(
                            partition_index=part.partition_index,
                            error_code=codes[name, part.partition_index] or failure,
                        )
                        async for part in self._turns.over(topic.partitions)
                    ],
                )
                async for topic in self._turns.over(request.topics)
                for name in (self._storage.named(topic.name, topic.topic_id),)
            ]
        )

    async def fetch(self, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
        if version >= 8:
            return OffsetFetchResponse(groups=await self._fetch_groups(request))
        pending = await self._pending(request.group_id, request)
        (committed,) = await self._offsets.load_committed_of([request.group_id])
        topics, code = await self._fetch(committed, pending, request.topics)
        return OffsetFetchResponse(topics=topics, error_code=code)

    async def _fetch_groups(self, request: OffsetFetchRequest) -> list[OffsetFetchResponseGroup]:
        # Each group is answered once, with all the topics that were asked for.
        wanted: dict[str, list[OffsetFetchRequestTopic] | None] = {}
        found: list[OffsetFetchResponseGroup] = []
        async for group in self._turns.over(request.groups):
            code = self._check_member(group)
            if code is not ErrorCode.NONE:
                found.append(
                    OffsetFetchResponseGroup(group_id=group.group_id, topics=[], error_code=code)
                )
            elif group.group_id not in wanted:
                wanted[group.group_id] = None if group.topics is None else list(group.topics)
            elif (before := wanted[group.group_id]) is not None:
                before.extend(group.topics or ())
        names = list(wanted)
        refused = len(found)
        while (count := len(found) - refused) < len(names):
            some = names[count : count + _GROUPS_AT_ONCE]
            pending = [await self._pending(name, request) async for name in self._turns.over(some)]
            loaded = await self._offsets.load_committed_of(some)
            for name, shards, committed in zip(some, pending, loaded, strict=False):
                topics, code = await self._fetch(committed, shards, wanted[name])
                found.append(
                    OffsetFetchResponseGroup(group_id=name, topics=topics, error_code=code)
                )
        return found

    def _check_member(self, group: OffsetFetchRequestGroup) -> ErrorCode:
        """Whether a member of a consumer group may be told, if it is one that asks."""
        if not group.member_id or group.member_epoch < 0:
            return ErrorCode.NONE
        check = FetchCheck(member_id=group.member_id, epoch=group.member_epoch)
        return self._coordinator.check_fetch(group.group_id, check)

    async def _pending(
        self, group: str, request: OffsetFetchRequest
    ) -> Sequence[Iterable[str]] | FirnError:
        """Shards whose offset a transaction is about to change: the client asks again. Looked up
        before the offsets are read, so that a transaction that ends between both is seen."""
        if not request.require_stable:
            return ()
        here = self._transactions.pending_offsets(group)
        if self._spread is None:
            return here
        try:
            return [*here, *await self._spread.pending(group)]
        except FirnError as error:
            return error

    async def delete(self, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        group = self._coordinator.describe(request.group_id)
        if group.state is GroupState.DEAD and not self._offsets.has_offsets(request.group_id):
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_ID_NOT_FOUND, topics=[])
        retention = self._coordinator.retention(request.group_id)
        is_in_use = group.state not in (GroupState.EMPTY, GroupState.DEAD)
        if is_in_use and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return OffsetDeleteResponse(error_code=ErrorCode.NON_EMPTY_GROUP, topics=[])
        topics, shards = [], []
        async for topic in self._turns.over(request.topics):
            partitions = []
            async for part in self._turns.over(topic.partitions):
                code, shard = self._locate(topic.name, part.partition_index)
                # What a group subscribes to is known once the group is stable.
                is_subscribed = retention.is_kept or topic.name in retention.topics
                if code is ErrorCode.NONE and is_in_use and is_subscribed:
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
            try:
                await self._offsets.forget(request.group_id, shards)
            except FirnError as error:
                return OffsetDeleteResponse(error_code=group_code_of(error), topics=[])
        return OffsetDeleteResponse(topics=topics)

    async def _fetch(
        self,
        committed: dict[str, CommittedOffset] | FirnError,
        pending: Sequence[Iterable[str]] | FirnError,
        wanted: Sequence[OffsetFetchRequestTopic] | None,
    ) -> tuple[list[OffsetFetchResponseTopic], ErrorCode]:
        if isinstance(committed, FirnError):
            return [], offset_fetch_code_of(committed)
        unstable: set[str] | None = None  # Unknown: any offset may be about to change.
        if not isinstance(pending, FirnError):
            unstable = set()
            async for shards in self._turns.over(pending):
                unstable.update(shards)
        if wanted is None:
            wanted = await self._all_committed(committed)
        return [
            OffsetFetchResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    self._fetch_one(name, index, committed, unstable)
                    async for index in self._turns.over(topic.partition_indexes)
                ],
            )
            async for topic in self._turns.over(wanted)
            for name in (self._storage.named(topic.name, topic.topic_id),)
        ], ErrorCode.NONE

    def _fetch_one(
        self,
        name: str,
        index: int,
        committed: dict[str, CommittedOffset],
        unstable: set[str] | None,
    ) -> OffsetFetchResponsePartition:
        code, shard = self._locate(name, index)
        if code is ErrorCode.UNKNOWN_TOPIC_ID:
            return OffsetFetchResponsePartition(
                partition_index=index, committed_offset=-1, metadata="", error_code=code
            )
        if unstable is None or shard in unstable:
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

    async def _all_committed(
        self, committed: dict[str, CommittedOffset]
    ) -> list[OffsetFetchRequestTopic]:
        found: dict[str, list[int]] = {}
        async for shard in self._turns.over(committed):
            topic_id, _, seq = shard.rpartition("_")
            topic = self._storage.catalog.with_id(topic_id)
            if topic is not None and seq.isdecimal() and int(seq) < topic.shard_count:
                found.setdefault(topic.name, []).append(int(seq))
        return [
            OffsetFetchRequestTopic(
                name=name, topic_id=self._storage.id_of(name), partition_indexes=sorted(indexes)
            )
            for name, indexes in sorted(found.items())
        ]

    def _locate(self, name: str, index: int) -> tuple[ErrorCode, str]:
        try:
            return ErrorCode.NONE, self._storage.shard(name, index)
        except FirnError as error:
            return code_of(error), ""
