"""A group that goes over from one protocol to the other, with its members or without.

A classic group becomes a consumer group when the first member joins with the consumer protocol, and
a classic one again when the last of those has gone. Its members keep their ids and what they read;
their generation is their epoch.
"""

from __future__ import annotations

from firnmq.brokers.kafka.groups.consumer.classic_members import assignment_of
from firnmq.brokers.kafka.groups.consumer.core import ConsumerCore
from firnmq.brokers.kafka.groups.consumer.embedded import read_assignment, read_subscription
from firnmq.brokers.kafka.groups.consumer.members import ClassicSide, ConsumerMember
from firnmq.brokers.kafka.groups.consumer.messages import Partition
from firnmq.brokers.kafka.groups.core import GroupCore
from firnmq.brokers.kafka.groups.snapshot import GroupSnapshot, MemberSnapshot
from firnmq.brokers.kafka.groups.subscription import CONSUMER_PROTOCOL_TYPE


def can_upgrade(classic: GroupCore) -> bool:
    """Whether the coordinator can read what the members say."""
    members = classic.roster.members.values()
    if members and classic.protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    return all(
        read_subscription(member.protocols[0].metadata) is not None
        and read_assignment(member.held) is not None
        for member in members
    )


def upgrade(classic: GroupCore, consumer: ConsumerCore, now_ms: int) -> None:
    """Fills a new consumer group with what is in the classic one."""
    taken: set[Partition] = set()
    for each in classic.roster.members.values():
        subscription = read_subscription(each.protocols[0].metadata)
        places = read_assignment(each.held)
        assert subscription is not None
        assert places is not None
        member = ConsumerMember(
            member_id=each.member_id,
            instance_id=each.instance_id,
            rack_id=subscription.rack_id,
            client_id=each.client_id,
            client_host=each.client_host,
            owner=each.owner,
            rebalance_timeout_ms=each.rebalance_timeout_ms,
            topic_names=subscription.topics,
            classic=ClassicSide(
                session_timeout_ms=each.session_timeout_ms,
                protocols=each.protocols,
                version=subscription.version,
            ),
            epoch=classic.generation,
            previous_epoch=classic.generation,
        )
        found = ((consumer.topics.find(topic), index) for topic, index in places)
        held = {(size.topic_id, index) for size, index in found if size is not None}
        # Assignors of clients may have given a partition to two members.
        member.assigned = member.target = frozenset(held - taken)
        taken |= held
        consumer.members.add(member)
    consumer.target_epoch = classic.generation
    # Ahead of every generation that a member was ever told.
    consumer.epoch = classic.generation + classic.generation_step - 1
    consumer.write_seq = classic.write_seq
    consumer.take_up(now_ms)
    consumer.changed()


def downgraded(consumer: ConsumerCore) -> GroupSnapshot:
    """What a classic group begins with whose members were in this one."""
    members = []
    shared: set[str] | None = None
    for each in consumer.members.by_id.values():
        classic = each.classic
        assert classic is not None
        names = {protocol.name for protocol in classic.protocols}
        shared = names if shared is None else shared & names
        members.append(
            MemberSnapshot(
                member_id=each.member_id,
                instance_id=each.instance_id,
                client_id=each.client_id,
                client_host=each.client_host,
                session_timeout_ms=classic.session_timeout_ms,
                rebalance_timeout_ms=each.rebalance_timeout_ms,
                protocols=classic.protocols,
                assignment=assignment_of(consumer, each.assigned, classic.version),
                owner=each.owner,
            )
        )
    return GroupSnapshot(
        generation=consumer.epoch,
        protocol_type=CONSUMER_PROTOCOL_TYPE,
        protocol_name=min(shared) if shared else None,
        leader=members[0].member_id if members else None,
        members=tuple(members),
    )
