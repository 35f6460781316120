"""Groups that go over from the classic protocol to the consumer protocol and back."""

from __future__ import annotations

from typing import Any

import pytest

from firnmq.brokers.kafka.groups import (
    GroupConfig,
    GroupSnapshot,
    GroupState,
    JoinReply,
    Migration,
)
from firnmq.brokers.kafka.groups.consumer.embedded import read_assignment, write_assignment
from firnmq.brokers.kafka.groups.consumer.machine import ConsumerGroup
from firnmq.brokers.kafka.groups.consumer.messages import LEAVE_EPOCH
from firnmq.brokers.kafka.groups.consumer.snapshot import ConsumerGroupSnapshot
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.consumer_stage import SESSION_MS, ConsumerStage
from tests.unit.brokers.kafka.groups.fake_topics import FakeTopics


def stage_of(**changes: Any) -> ConsumerStage:
    return ConsumerStage(
        topics=FakeTopics(a=4), config=GroupConfig(initial_rebalance_delay_ms=0, **changes)
    )


def joined(stage: ConsumerStage, token: Any) -> JoinReply:
    reply = stage.answers[token]
    assert isinstance(reply, JoinReply)
    assert reply.error is ErrorCode.NONE, reply.error
    return reply


def classic_member(stage: ConsumerStage, *partitions: int, **changes: Any) -> JoinReply:
    """The only member of a classic group, which has given itself these partitions."""
    reply = joined(stage, stage.classic_join(**changes))
    plan = {reply.member_id: write_assignment({"a": partitions})}
    assert stage.sync(reply.member_id, reply.generation, **plan).error is ErrorCode.NONE
    return reply


def rejoin(stage: ConsumerStage, reply: JoinReply, *owned: int) -> tuple[JoinReply, list[int]]:
    """A classic member joins again and syncs; what it was given."""
    places = tuple(("a", index) for index in owned)
    again = joined(stage, stage.classic_join(reply.member_id, owned=places))
    assert (again.leader, again.members, again.protocol_type) == ("", (), "consumer")
    synced = stage.sync(again.member_id, again.generation)
    assert synced.error is ErrorCode.NONE
    found = read_assignment(synced.assignment)
    assert found is not None
    return again, [index for _, index in found]


def test_an_empty_group_takes_the_protocol_of_who_comes_next() -> None:
    stage = stage_of()
    reply = classic_member(stage, 0, 1, 2, 3)
    stage.classic_leave(reply.member_id)
    generation = stage.group.generation
    assert stage.join("m1").epoch > generation
    assert isinstance(stage.snapshot, ConsumerGroupSnapshot)
    stage.beat("m1", LEAVE_EPOCH)
    epoch = stage.group.generation
    back = classic_member(stage, 0, 1, 2, 3)
    assert back.generation > epoch
    assert back.leader == back.member_id
    assert isinstance(stage.snapshot, GroupSnapshot)


def test_a_group_goes_over_member_by_member_and_back() -> None:
    stage = stage_of()
    classic = classic_member(stage, 0, 1, 2, 3)
    # 1. The first member of the consumer protocol: what the classic one reads stays its own.
    new = stage.join("m1")
    assert (new.assignment, new.epoch) == (frozenset(), classic.generation + 1)
    assert stage.commit(classic.member_id, classic.generation) is ErrorCode.NONE
    # 2. The classic one is told to join, which an eager consumer does without partitions.
    told = stage.classic_beat(classic.member_id, classic.generation)
    assert told is ErrorCode.REBALANCE_IN_PROGRESS
    classic, got = rejoin(stage, classic)
    assert len(got) == 2
    assert stage.classic_beat(classic.member_id, classic.generation) is ErrorCode.NONE
    rest = stage.beat("m1", new.epoch).assignment
    assert rest == stage.topics.partitions("a") - {(each[0], i) for each in rest or () for i in got}
    assert stage.group.state is GroupState.STABLE
    described = stage.group.describe_fully()
    assert described is not None
    assert [each.is_classic for each in described.members] == [True, False]
    # 3. The node restarts, and nothing has changed.
    stage.restart()
    assert stage.classic_beat(classic.member_id, classic.generation) is ErrorCode.NONE
    assert stage.beat("m1", new.epoch).error is ErrorCode.NONE
    # 4. The member of the consumer protocol leaves: the group is classic again, and rebalances.
    stage.beat("m1", LEAVE_EPOCH)
    assert not isinstance(stage.group.kind, ConsumerGroup)
    told = stage.classic_beat(classic.member_id, stage.group.generation)
    assert told is ErrorCode.REBALANCE_IN_PROGRESS
    again = joined(stage, stage.classic_join(classic.member_id))
    assert again.leader == classic.member_id
    plan = {again.member_id: write_assignment({"a": range(4)})}
    assert stage.sync(again.member_id, again.generation, **plan).error is ErrorCode.NONE
    assert isinstance(stage.snapshot, GroupSnapshot)


def test_the_last_classic_member_leaves_a_consumer_group() -> None:
    stage = stage_of()
    classic = classic_member(stage, 0, 1, 2, 3)
    epoch = stage.join("m1").epoch
    assert stage.classic_leave(classic.member_id) is ErrorCode.NONE
    assert stage.beat("m1", epoch).assignment == stage.topics.partitions("a")
    assert isinstance(stage.group.kind, ConsumerGroup)


def test_a_cooperative_member_gives_up_only_what_it_has_to() -> None:
    stage = stage_of()
    classic = classic_member(stage, 0, 1, 2, 3)
    new = stage.join("m1")
    stage.classic_beat(classic.member_id, classic.generation)
    # 1. It joins with all that it has, in its old generation, and is given less.
    again, got = rejoin(stage, classic, 0, 1, 2, 3)
    assert again.generation == classic.generation
    assert len(got) == 2
    assert stage.beat("m1", new.epoch).assignment is None
    # 2. It joins again without the rest.
    again, same = rejoin(stage, again, *got)
    assert (again.generation, same) == (new.epoch, got)
    assert len(stage.beat("m1", new.epoch).assignment or ()) == 2


def test_what_a_member_still_reads_is_kept_for_it_during_a_rebalance() -> None:
    stage = stage_of()
    classic = classic_member(stage, 0, 1, 2, 3)
    # 1. A second classic member has the group rebalance; the first has not heard of it yet.
    waiting = stage.classic_join()
    assert stage.group.state is GroupState.PREPARING
    # 2. The group goes over now: the newcomer is told to try again.
    new = stage.join("m1")
    assert stage.answers[waiting].error is ErrorCode.REBALANCE_IN_PROGRESS
    assert new.assignment == frozenset(), "the first member may still read everything"
    # 3. It never joins again: what it had is free when its session is over.
    stage.wait(SESSION_MS)
    assert stage.classic_beat(classic.member_id, classic.generation) in (
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
    )
    assert stage.settle("m1")["m1"] == stage.topics.partitions("a")


def test_a_classic_member_that_does_not_join_again_is_put_out() -> None:
    stage = stage_of()
    classic = classic_member(stage, 0, 1, 2, 3)
    epoch = stage.join("m1").epoch
    for _ in range(6):
        assert stage.classic_beat(classic.member_id, classic.generation) is (
            ErrorCode.REBALANCE_IN_PROGRESS
        )
        stage.wait(SESSION_MS // 2)
        stage.beat("m1", epoch)
    gone = stage.classic_beat(classic.member_id, classic.generation)
    assert gone is ErrorCode.UNKNOWN_MEMBER_ID


def test_static_classic_members_and_known_ids() -> None:
    stage = stage_of()
    stage.join("m1")
    # 1. A dynamic member is given an id first, with which it comes back.
    promised = stage.answers[stage.classic_join(requires_known_member_id=True)]
    assert promised.error is ErrorCode.MEMBER_ID_REQUIRED
    assert isinstance(promised, JoinReply)
    joined(stage, stage.classic_join(promised.member_id, requires_known_member_id=True))
    # 2. A static member starts again under another id.
    first = joined(stage, stage.classic_join(instance_id="i1"))
    second = joined(stage, stage.classic_join(instance_id="i1"))
    assert second.member_id != first.member_id
    fenced = stage.answers[stage.classic_join(first.member_id, instance_id="i1")]
    assert fenced.error is ErrorCode.FENCED_INSTANCE_ID
    unknown = stage.answers[stage.classic_join("x", instance_id="i2")]
    assert unknown.error is ErrorCode.UNKNOWN_MEMBER_ID
    # 3. Clients that would not understand each other are refused.
    refused = stage.answers[stage.classic_join(protocols=("sticky",))]
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    connect = stage.answers[stage.classic_join(protocol_type="connect")]
    assert connect.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize("policy", Migration)
def test_the_policy_says_which_groups_may_go_over(policy: Migration) -> None:
    stage = stage_of(consumer_migration=policy)
    classic = classic_member(stage, 0, 1, 2, 3)
    reply = stage.beat("m1", 0)
    if policy in (Migration.DOWNGRADE, Migration.DISABLED):
        assert reply.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert stage.classic_beat(classic.member_id, classic.generation) is ErrorCode.NONE
        return
    assert reply.error is ErrorCode.NONE
    stage.beat("m1", LEAVE_EPOCH)
    is_consumer = isinstance(stage.group.kind, ConsumerGroup)
    assert is_consumer is (policy is Migration.UPGRADE)


def test_a_group_of_another_kind_stays_what_it_is() -> None:
    stage = stage_of()
    token = stage.classic_join(protocol_type="connect")
    assert stage.answers[token].error is ErrorCode.NONE
    assert stage.beat("m1", 0).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.beat("m1", 3).error is ErrorCode.UNKNOWN_MEMBER_ID
