"""A group whatever its members speak: a classic group or a consumer group, and the way between."""

from __future__ import annotations

from firnmq.brokers.kafka.groups.config import GroupConfig, Migration
from firnmq.brokers.kafka.groups.consumer.conversion import can_upgrade, downgraded, upgrade
from firnmq.brokers.kafka.groups.consumer.heartbeats import refusal_of
from firnmq.brokers.kafka.groups.consumer.machine import ConsumerGroup
from firnmq.brokers.kafka.groups.consumer.messages import (
    JOIN_EPOCH,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    Topics,
)
from firnmq.brokers.kafka.groups.consumer.snapshot import ConsumerGroupSnapshot
from firnmq.brokers.kafka.groups.core import MemberIdFactory
from firnmq.brokers.kafka.groups.machine import Group
from firnmq.brokers.kafka.groups.messages import (
    Asked,
    GroupAction,
    GroupDescription,
    GroupEvent,
    GroupRequest,
    JoinRequest,
    OffsetRetention,
    Reply,
    Token,
)
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.snapshot import GroupSnapshot
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.protocol.errors import ErrorCode

_UPGRADES = (Migration.BIDIRECTIONAL, Migration.UPGRADE)
_DOWNGRADES = (Migration.BIDIRECTIONAL, Migration.DOWNGRADE)


class CoordinatedGroup:
    """One group. As with its two kinds, the owner hands it events and carries out its actions."""

    def __init__(
        self,
        group_id: str,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        topics: Topics,
        shares: GroupShares | None = None,
    ) -> None:
        """`shares` are those of all groups of a node."""
        self._config = config
        self._new_id = new_id
        self._topics = topics
        self._shares = shares or GroupShares(config)
        self._group: Group | ConsumerGroup = Group(
            group_id, config=config, new_id=new_id, shares=self._shares
        )

    @classmethod
    def restore(
        cls,
        group_id: str,
        snapshot: GroupSnapshot | ConsumerGroupSnapshot,
        now_ms: int,
        *,
        config: GroupConfig,
        new_id: MemberIdFactory,
        topics: Topics,
        generation_gap: int,
        shares: GroupShares | None = None,
    ) -> CoordinatedGroup:
        """The group as it was saved. For `generation_gap` see `Group.restore`."""
        group = cls(group_id, config=config, new_id=new_id, topics=topics, shares=shares)
        if isinstance(snapshot, ConsumerGroupSnapshot):
            group._group = ConsumerGroup.restore(
                group_id,
                snapshot,
                now_ms,
                config=config,
                new_id=new_id,
                topics=topics,
                shares=group._shares,
            )
        else:
            group._group = Group.restore(
                group_id,
                snapshot,
                now_ms,
                config=config,
                new_id=new_id,
                generation_gap=generation_gap,
                shares=group._shares,
            )
        return group

    @property
    def kind(self) -> Group | ConsumerGroup:
        """What it is at present."""
        return self._group

    @property
    def group_id(self) -> str:
        return self._group.group_id

    @property
    def state(self) -> GroupState:
        return self._group.state

    @property
    def generation(self) -> int:
        return self._group.generation

    @property
    def protocol_type(self) -> str:
        return self._group.protocol_type

    @property
    def owner(self) -> str:
        return self._group.owner

    @property
    def member_count(self) -> int:
        return self._group.member_count

    @property
    def wake_ms(self) -> int | None:
        return self._group.wake_ms

    @property
    def is_idle(self) -> bool:
        return self._group.is_idle

    @property
    def is_blank(self) -> bool:
        return self._group.is_blank

    def retention(self, empty_since_ms: int) -> OffsetRetention:
        return self._group.retention(empty_since_ms)

    def describe(self) -> GroupDescription:
        return self._group.describe()

    def describe_fully(self) -> ConsumerGroupDescription | None:
        """None for a classic group."""
        group = self._group
        return group.describe_fully() if isinstance(group, ConsumerGroup) else None

    def handle(self, event: GroupEvent, now_ms: int) -> list[GroupAction]:
        """Takes in one event; the actions are to be carried out in this order."""
        actions: list[GroupAction] = []
        if isinstance(event, Asked):
            refusal = self._prepare(event.token, event.request, now_ms, actions)
            if refusal is not None:
                return [*actions, refusal]
        actions += self._group.handle(event, now_ms)
        group = self._group
        if (
            isinstance(group, ConsumerGroup)
            and group.is_left_to_classic
            and self._config.consumer_migration in _DOWNGRADES
        ):
            actions += self._downgrade(group, now_ms)
        return actions

    def _prepare(
        self, token: Token, request: GroupRequest, now_ms: int, actions: list[GroupAction]
    ) -> Reply | None:
        """Makes of the group what the request is about; or the refusal."""
        group = self._group
        if isinstance(request, ConsumerHeartbeat) and isinstance(group, Group):
            return self._upgrade(token, request, group, now_ms, actions)
        is_classic = isinstance(request, JoinRequest)
        if is_classic and isinstance(group, ConsumerGroup) and group.state is GroupState.EMPTY:
            actions += self._become_classic(group, now_ms)
        return None

    def _upgrade(
        self,
        token: Token,
        request: ConsumerHeartbeat,
        classic: Group,
        now_ms: int,
        actions: list[GroupAction],
    ) -> Reply | None:
        refusal = refusal_of(request, self._topics)
        if refusal is not None:
            return Reply(token=token, body=refusal)
        if request.epoch != JOIN_EPOCH or classic.state is GroupState.DEAD:
            return None  # It says that it knows no such member.
        has_members = classic.member_count > 0
        is_allowed = not has_members or self._config.consumer_migration in _UPGRADES
        if not (is_allowed and can_upgrade(classic.core)):
            text = f"Group {self.group_id} is not a consumer group."
            body = ConsumerHeartbeatReply(error=ErrorCode.GROUP_ID_NOT_FOUND, message=text)
            return Reply(token=token, body=body)
        group = ConsumerGroup(
            self.group_id,
            config=self._config,
            new_id=self._new_id,
            topics=self._topics,
            shares=self._shares,
        )
        if not classic.is_blank:
            upgrade(classic.core, group.core, now_ms)
        actions += classic.convert(now_ms)
        self._group = group
        return None

    def _downgrade(self, group: ConsumerGroup, now_ms: int) -> list[GroupAction]:
        actions = self._become_classic(group, now_ms)
        assert isinstance(self._group, Group)
        # Its members agree on the partitions themselves from now on, which takes a leader.
        return actions + self._group.rebalance(now_ms)

    def _become_classic(self, group: ConsumerGroup, now_ms: int) -> list[GroupAction]:
        snapshot = downgraded(group.core)
        seq = group.core.write_seq
        actions = group.convert()
        classic = Group.restore(
            self.group_id,
            snapshot,
            now_ms,
            config=self._config,
            new_id=self._new_id,
            generation_gap=1,
            shares=self._shares,
        )
        classic.core.write_seq = seq
        self._group = classic
        return actions
