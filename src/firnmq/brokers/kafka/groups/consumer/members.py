"""Who is in a consumer group, and who has which partition."""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.brokers.kafka.groups.consumer.messages import (
    NO_PARTITIONS,
    Partition,
    Partitions,
)
from firnmq.brokers.kafka.groups.consumer.state import MemberState
from firnmq.brokers.kafka.groups.roster import MEMBER_BYTES, PROTOCOL_BYTES
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.snapshot import GroupProtocol

NAME_BYTES = 96
"""Memory of a topic's name in a subscription, without its characters."""
PARTITION_BYTES = 160
"""Memory of a partition that a member is to have and has."""
NO_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSide:
    """What a member has told that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    version: int
    """Of its subscription; its assignment has the same."""


@dataclass(slots=True, kw_only=True, eq=False)
class ConsumerMember:
    """One member. Owned and changed by its group's state machine only."""

    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    owner: str = ""
    rebalance_timeout_ms: int = 0
    topic_names: frozenset[str] = frozenset()
    pattern: str = ""
    matched: frozenset[str] = frozenset()
    """What the pattern has found."""
    matched_revision: int | None = None
    """The topics that the pattern was compared with last; None: never."""
    assignor: str | None = None
    classic: ClassicSide | None = None
    """None if it uses the consumer protocol."""

    state: MemberState = MemberState.STABLE
    epoch: int = 0
    previous_epoch: int = NO_EPOCH
    """Good too, because the answer with the present epoch may have been lost."""
    assigned: Partitions = NO_PARTITIONS
    """What it may read."""
    revoking: Partitions = NO_PARTITIONS
    """What it has to give up and may still read. Not empty only while REVOKING."""
    target: Partitions = NO_PARTITIONS
    """What it is to have."""
    counted_bytes: int = 0

    session_deadline_ms: int = 0
    revoke_deadline_ms: int | None = None
    """When it must have given up what it has to."""
    join_deadline_ms: int | None = None
    """When a classic member must have joined again after it was told to."""
    sync_deadline_ms: int | None = None
    """When a classic member must have asked for its assignment after it has joined."""

    @property
    def topics(self) -> frozenset[str]:
        return self.topic_names | self.matched

    @property
    def holds(self) -> Partitions:
        """What no other member may have yet."""
        return self.assigned | self.revoking

    def size(self) -> int:
        """Bytes of memory that it takes."""
        texts = (self.client_id, self.instance_id, self.rack_id, self.pattern, self.assignor)
        size = MEMBER_BYTES + sum(len(each or "") for each in texts)
        size += sum(NAME_BYTES + len(name) for name in self.topics)
        if self.classic is not None:
            size += sum(
                PROTOCOL_BYTES + len(each.name) + len(each.metadata)
                for each in self.classic.protocols
            )
        return size + PARTITION_BYTES * len(self.target)


class Members:
    """The members by id, static ones by instance id, and who holds each partition."""

    def __init__(self, shares: GroupShares) -> None:
        self._shares = shares
        self.by_id: dict[str, ConsumerMember] = {}
        self.static: dict[str, str] = {}
        self._holders: dict[Partition, str] = {}

    def __len__(self) -> int:
        return len(self.by_id)

    def add(self, member: ConsumerMember) -> None:
        assert member.member_id not in self.by_id
        self.by_id[member.member_id] = member
        if member.instance_id is not None:
            assert member.instance_id not in self.static
            self.static[member.instance_id] = member.member_id
        for partition in member.holds:
            self._hold(partition, member)
        self.recount(member)

    def remove(self, member: ConsumerMember) -> None:
        del self.by_id[member.member_id]
        if member.instance_id is not None:
            del self.static[member.instance_id]
        for partition in member.holds:
            del self._holders[partition]
        self._shares.add(member.owner, -member.counted_bytes)
        member.counted_bytes = 0

    def rename(self, member: ConsumerMember, new_id: str) -> None:
        """A static member has started again under another id."""
        assert member.instance_id is not None
        assert new_id not in self.by_id
        del self.by_id[member.member_id]
        member.member_id = new_id
        self.by_id[new_id] = member
        self.static[member.instance_id] = new_id
        for partition in member.holds:
            self._holders[partition] = new_id

    def recount(self, member: ConsumerMember, owner: str | None = None) -> None:
        """Counts the member's memory as it is now."""
        self._shares.add(member.owner, -member.counted_bytes)
        member.owner = member.owner if owner is None else owner
        member.counted_bytes = member.size()
        self._shares.add(member.owner, member.counted_bytes)

    def set_held(self, member: ConsumerMember, assigned: Partitions, revoking: Partitions) -> None:
        """From now on the member has these partitions, and no others."""
        before, after = member.holds, assigned | revoking
        for partition in before - after:
            del self._holders[partition]
        member.assigned, member.revoking = assigned, revoking
        for partition in after - before:
            self._hold(partition, member)

    def _hold(self, partition: Partition, member: ConsumerMember) -> None:
        assert partition not in self._holders, "a partition has two members"
        self._holders[partition] = member.member_id

    def holder(self, partition: Partition) -> str | None:
        return self._holders.get(partition)
