"""The calls of consumer groups whose coordinator assigns the partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from uuid import UUID, uuid4

from firnmq.brokers.kafka.groups import GroupCoordinator
from firnmq.brokers.kafka.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeat,
    ConsumerMemberDescription,
    Partitions,
)
from firnmq.brokers.kafka.groups.consumer.snapshot import pack
from firnmq.brokers.kafka.operations import GROUP_OPERATIONS
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.consumer_groups import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    DescribedAssignment,
    DescribedConsumer,
    DescribedConsumerGroup,
    HeartbeatAssignment,
    NamedTopicPartitions,
    TopicPartitions,
)
from firnmq.brokers.kafka.protocol.messages.metadata import OPERATIONS_NOT_REQUESTED
from firnmq.brokers.kafka.storage import KafkaStorage
from firnmq.brokers.net.loop_turns import Turns

_OWN_ID_SINCE = 1
"""Version from which on members choose their ids themselves."""
_CLASSIC, _CONSUMER = 0, 1
"""How ConsumerGroupDescribe says which protocol a member uses."""


class ConsumerGroupHandler:
    def __init__(
        self,
        storage: KafkaStorage,
        coordinator: GroupCoordinator,
        turns: Turns,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        self._storage = storage
        self._coordinator = coordinator
        self._turns = turns
        self._new_id = new_id

    async def heartbeat(
        self,
        request: ConsumerGroupHeartbeatRequest,
        version: int,
        *,
        client_id: str,
        client_host: str,
        owner: str,
        sees: Callable[[str], bool],
    ) -> ConsumerGroupHeartbeatResponse:
        """`sees`: which topics the client may find with a regular expression."""
        member_id = request.member_id
        if not member_id and version < _OWN_ID_SINCE and request.member_epoch == JOIN_EPOCH:
            member_id = self._new_id()
        names, timeout_ms = request.subscribed_topic_names, request.rebalance_timeout_ms
        reply = await self._coordinator.consumer_heartbeat(
            request.group_id,
            ConsumerHeartbeat(
                member_id=member_id,
                epoch=request.member_epoch,
                instance_id=request.instance_id,
                rack_id=request.rack_id,
                rebalance_timeout_ms=None if timeout_ms == -1 else timeout_ms,
                topic_names=None if names is None else frozenset(names),
                pattern=request.subscribed_topic_regex,
                assignor=request.server_assignor,
                owned=_owned(request.topic_partitions),
                client_id=client_id,
                client_host=client_host,
                owner=owner,
                sees=sees,
            ),
        )
        return ConsumerGroupHeartbeatResponse(
            error_code=reply.error,
            error_message=reply.message,
            member_id=reply.member_id,
            member_epoch=reply.epoch,
            heartbeat_interval_ms=reply.heartbeat_interval_ms,
            assignment=None
            if reply.assignment is None
            else HeartbeatAssignment(
                topic_partitions=[
                    TopicPartitions(topic_id=UUID(topic_id), partitions=indexes)
                    for topic_id, indexes in pack(reply.assignment).items()
                ]
            ),
        )

    async def describe(
        self, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        operations = OPERATIONS_NOT_REQUESTED
        if request.include_authorized_operations:
            operations = GROUP_OPERATIONS
        names = self._turns.distinct(request.group_ids)
        return ConsumerGroupDescribeResponse(
            groups=[await self._describe(name, operations) async for name in names]
        )

    async def _describe(self, name: str, operations: int) -> DescribedConsumerGroup:
        found = self._coordinator.describe_fully(name)
        if found is None:
            return DescribedConsumerGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND,
                error_message=f"Group {name} is not a consumer group.",
                group_id=name,
                group_state="",
                group_epoch=0,
                assignment_epoch=0,
                assignor_name="",
                members=[],
            )
        return DescribedConsumerGroup(
            group_id=name,
            group_state=found.state,
            group_epoch=found.epoch,
            assignment_epoch=found.target_epoch,
            assignor_name=found.assignor,
            members=[self._member(each) async for each in self._turns.over(found.members)],
            authorized_operations=operations,
        )

    def _member(self, member: ConsumerMemberDescription) -> DescribedConsumer:
        return DescribedConsumer(
            member_id=member.member_id,
            instance_id=member.instance_id,
            rack_id=member.rack_id,
            member_epoch=member.epoch,
            client_id=member.client_id,
            client_host=member.client_host,
            subscribed_topic_names=member.topic_names,
            subscribed_topic_regex=member.pattern or None,
            assignment=self._assignment(member.assigned),
            target_assignment=self._assignment(member.target),
            member_type=_CLASSIC if member.is_classic else _CONSUMER,
        )

    def _assignment(self, partitions: Partitions) -> DescribedAssignment:
        """Without topics that are gone; the group notices that soon."""
        found = []
        for topic_id, indexes in pack(partitions).items():
            topic = self._storage.catalog.with_id(topic_id)
            if topic is not None:
                found.append(
                    NamedTopicPartitions(
                        topic_id=UUID(topic_id), topic_name=topic.name, partitions=indexes
                    )
                )
        return DescribedAssignment(topic_partitions=found)


def _owned(topics: Iterable[TopicPartitions] | None) -> Partitions | None:
    if topics is None:
        return None
    return frozenset((topic.topic_id.hex, index) for topic in topics for index in topic.partitions)
