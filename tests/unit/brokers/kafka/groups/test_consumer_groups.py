"""Groups whose coordinator assigns the partitions: what members are told, and when."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from firnmq.brokers.kafka.groups import GroupConfig, GroupState
from firnmq.brokers.kafka.groups.consumer.core import RETRY_MS
from firnmq.brokers.kafka.groups.consumer.messages import (
    LEAVE_EPOCH,
    PAUSE_EPOCH,
    ConsumerHeartbeat,
)
from firnmq.brokers.kafka.groups.consumer.state import (
    MEMBER_TRANSITIONS,
    TRANSITIONS,
    ConsumerStep,
    IllegalConsumerStep,
    MemberState,
    MemberStep,
    next_group_state,
    next_member_state,
)
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.consumer_stage import (
    REBALANCE_MS,
    ConsumerStage,
    NotAnswered,
)
from tests.unit.brokers.kafka.groups.fake_topics import FakeTopics


@pytest.mark.parametrize("state, step", list(itertools.product(GroupState, ConsumerStep)))
def test_a_step_of_a_group_leads_where_the_table_says_or_nowhere(
    state: GroupState, step: ConsumerStep
) -> None:
    if (state, step) in TRANSITIONS:
        assert next_group_state(state, step) is TRANSITIONS[state, step]
        assert state is not GroupState.DEAD
    else:
        with pytest.raises(IllegalConsumerStep) as caught:
            next_group_state(state, step)
        assert (caught.value.state, caught.value.step) == (state, step)


@pytest.mark.parametrize("state, step", list(itertools.product(MemberState, MemberStep)))
def test_a_step_of_a_member_leads_where_the_table_says_or_nowhere(
    state: MemberState, step: MemberStep
) -> None:
    if (state, step) in MEMBER_TRANSITIONS:
        assert next_member_state(state, step) is MEMBER_TRANSITIONS[state, step]
    else:
        assert state is MemberState.AWAY, "a member that is there can take every step"
        with pytest.raises(IllegalConsumerStep):
            next_member_state(state, step)


def test_the_first_member_gets_everything_at_once() -> None:
    stage = ConsumerStage()
    reply = stage.join("m1")
    assert (reply.member_id, reply.epoch) == ("m1", 1)
    assert reply.assignment == stage.topics.partitions("a")
    assert reply.heartbeat_interval_ms == 5_000
    assert stage.group.state is GroupState.STABLE
    # What has not changed is not told again, unless the member tells everything.
    assert stage.beat("m1", 1).assignment is None
    full = {"rebalance_timeout_ms": 1, "topic_names": frozenset({"a"}), "owned": reply.assignment}
    assert stage.beat("m1", 1, **full).assignment == reply.assignment


def test_a_partition_moves_only_after_it_was_given_up() -> None:
    stage = ConsumerStage()
    everything = stage.join("m1").assignment
    assert everything is not None
    # 1. The second member is there and gets nothing yet: the first has it all.
    second = stage.join("m2")
    assert (second.epoch, second.assignment) == (2, frozenset())
    # 2. The first is told to keep half, in its old epoch.
    told = stage.beat("m1", 1)
    assert told.epoch == 1
    assert told.assignment is not None
    kept = told.assignment
    assert len(kept) == 3
    # 3. As long as it does not say that it gave up the rest, nothing moves.
    assert stage.beat("m1", 1, owned=everything).assignment is None
    assert stage.beat("m1", 1).assignment is None
    assert stage.beat("m2", 2).assignment is None
    # 4. It says so, and is in the new epoch; the second gets what is free.
    assert stage.beat("m1", 1, owned=kept).epoch == 2
    assert stage.beat("m2", 2).assignment == everything - kept
    assert stage.group.state is GroupState.STABLE


def test_a_member_that_does_not_give_up_its_partitions_is_put_out() -> None:
    stage = ConsumerStage()
    stage.join("m1")
    stage.join("m2")
    stage.beat("m1", 1)
    for _ in range(REBALANCE_MS // 10_000):
        stage.wait(9_999)
        assert stage.beat("m1", 1).error is ErrorCode.NONE
        stage.beat("m2", 2)
    stage.wait(9_999)
    assert stage.beat("m1", 1).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.beat("m2", 2).assignment == stage.topics.partitions("a")


def test_a_member_that_is_not_heard_from_is_gone() -> None:
    stage = ConsumerStage()
    stage.join("m1")
    stage.join("m2")
    stage.settle("m1", "m2")
    stage.wait(44_999)
    assert stage.beat("m2", 2).error is ErrorCode.NONE
    stage.wait(1)
    reply = stage.beat("m2", 2)
    assert (reply.epoch, reply.assignment) == (3, stage.topics.partitions("a"))
    assert stage.beat("m1", 2).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_member_that_leaves_is_gone_at_once() -> None:
    stage = ConsumerStage()
    stage.join("m1")
    stage.join("m2")
    stage.settle("m1", "m2")
    reply = stage.beat("m1", LEAVE_EPOCH)
    assert (reply.error, reply.epoch) == (ErrorCode.NONE, LEAVE_EPOCH)
    assert stage.beat("m2", 2).assignment == stage.topics.partitions("a")
    assert stage.beat("m1", LEAVE_EPOCH).error is ErrorCode.UNKNOWN_MEMBER_ID
    stage.beat("m2", LEAVE_EPOCH)
    assert stage.group.state is GroupState.EMPTY
    assert stage.delete() is ErrorCode.NONE
    assert stage.saved is None


def test_epochs_fence_members_that_fell_behind() -> None:
    stage = ConsumerStage()
    had = stage.join("m1").assignment
    assert had is not None
    assert stage.beat("m1", 5).error is ErrorCode.FENCED_MEMBER_EPOCH
    stage.join("m2")
    stage.settle("m1", "m2")
    # The answer with the new epoch was lost: the old one is good if the member has no more.
    epoch = stage.group.generation
    kept = stage.settle("m1")["m1"]
    assert stage.beat("m1", epoch - 1, owned=kept).epoch == epoch
    assert stage.beat("m1", epoch - 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert stage.beat("m1", epoch - 1, owned=had).error is ErrorCode.FENCED_MEMBER_EPOCH
    # A member that was fenced comes back with the same id, and is told what it has.
    again = stage.beat("m1", 0)
    assert (again.error, again.epoch, again.assignment) == (ErrorCode.NONE, epoch, kept)


def test_what_was_told_was_saved_before() -> None:
    stage = ConsumerStage(auto_save=False)
    with pytest.raises(NotAnswered):
        stage.join("m1")
    assert not stage.answers
    # Two more come while the first write is under way; one more write is enough for both.
    for name in ("m2", "m3"):
        with pytest.raises(NotAnswered):
            stage.join(name)
    assert len(stage.writes) == 1
    stage.save()
    assert {each.epoch for each in stage.answers.values()} == {1, 2, 3}  # type: ignore[union-attr]
    stage.auto_save = True
    stage.restart()
    assert stage.beat("m3", 3).error is ErrorCode.NONE
    has = stage.settle("m1", "m2", "m3")
    assert sorted(map(len, has.values())) == [2, 2, 2]


def test_a_failed_write_is_repeated_and_its_members_are_told_to_try_again() -> None:
    stage = ConsumerStage(auto_save=False)
    token = stage.ask(
        ConsumerHeartbeat(
            member_id="m1",
            epoch=0,
            rebalance_timeout_ms=1_000,
            topic_names=frozenset({"a"}),
            owned=frozenset(),
        )
    )
    stage.fail_save()
    assert stage.answers[token].error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert not stage.writes
    stage.wait(RETRY_MS)
    assert len(stage.writes) == 1
    stage.save()
    stage.auto_save = True
    # The client does not know that it is a member, and joins again.
    assert stage.join("m1").assignment == stage.topics.partitions("a")


def test_topics_that_appear_grow_and_go() -> None:
    stage = ConsumerStage(topics=FakeTopics(a=2))
    names = frozenset({"a", "b"})
    stage.join("m1", topic_names=names)
    stage.topics.set("b", 3)
    assert stage.beat("m1", 1).assignment == stage.topics.partitions("a", "b")
    stage.topics.set("a", 4)
    assert stage.beat("m1", 2).assignment == stage.topics.partitions("a", "b")
    stage.topics.set("c", 4)
    assert stage.beat("m1", 3).assignment is None
    gone = stage.topics.partitions("b")
    stage.topics.remove("b")
    told = stage.beat("m1", 3)
    assert told.assignment == stage.topics.partitions("a")
    assert stage.beat("m1", 3, owned=told.assignment).epoch == 4
    stage.topics.set("b", 3)  # Another topic of the same name.
    assert not stage.topics.partitions("b") & gone
    assert stage.beat("m1", 4).assignment == stage.topics.partitions("a", "b")


def test_a_pattern_finds_what_its_member_may_see() -> None:
    stage = ConsumerStage(topics=FakeTopics(orders=1, payments=1, other=1))
    first = stage.join("m1", topic_names=None, pattern="(orders|payments|refunds)")
    assert first.assignment == stage.topics.partitions("orders", "payments")
    stage.topics.set("refunds", 2)
    reply = stage.beat("m1", 1)
    assert reply.assignment == stage.topics.partitions("orders", "payments", "refunds")
    reply = stage.beat("m1", 2, pattern=".*", sees=lambda name: name != "other")
    assert reply.epoch == 2, "it finds the same topics"
    bad = stage.beat("m1", 2, pattern="(")
    assert bad.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert stage.beat("m1", 2).error is ErrorCode.NONE
    # Names instead of the pattern: it gives up the rest.
    told = stage.beat("m1", 2, pattern="", topic_names=frozenset({"other"}), sees=lambda _: False)
    assert told.assignment == frozenset()
    assert stage.beat("m1", 2, owned=frozenset()).assignment == stage.topics.partitions("other")


def test_a_static_member_that_comes_back_keeps_its_partitions() -> None:
    stage = ConsumerStage()
    stage.join("m1", instance_id="i1")
    stage.join("m2", instance_id="i2")
    has = stage.settle("m1", "m2")
    epoch = stage.group.generation
    # 1. Another process with its instance id is refused while it is there.
    assert stage.beat("x", 0, instance_id="i1").error is ErrorCode.UNRELEASED_INSTANCE_ID
    assert stage.beat("x", epoch, instance_id="i1").error is ErrorCode.FENCED_INSTANCE_ID
    assert stage.beat("x", epoch, instance_id="i3").error is ErrorCode.UNKNOWN_MEMBER_ID
    # 2. It leaves for now: nothing moves, not even after a restart of the node.
    assert stage.beat("m1", PAUSE_EPOCH, instance_id="i1").epoch == PAUSE_EPOCH
    stage.restart()
    assert stage.beat("m2", epoch, instance_id="i2").assignment is None
    assert stage.commit("m1", epoch) is ErrorCode.STALE_MEMBER_EPOCH
    # 3. It is back under another id, with what it had.
    again = stage.join("m3", instance_id="i1")
    assert (again.epoch, again.assignment) == (epoch, has["m1"])
    assert stage.group.generation == epoch
    assert stage.beat("m1", epoch, instance_id="i1").error is ErrorCode.FENCED_INSTANCE_ID
    # 4. It leaves for now and does not come back.
    stage.beat("m3", PAUSE_EPOCH, instance_id="i1")
    stage.wait(44_999)
    stage.beat("m2", epoch, instance_id="i2")
    stage.wait(1)
    reply = stage.beat("m2", epoch, instance_id="i2")
    assert reply.assignment == stage.topics.partitions("a")


@pytest.mark.parametrize(
    "changes, error",
    [
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"epoch": -3}, ErrorCode.INVALID_REQUEST),
        ({"epoch": PAUSE_EPOCH}, ErrorCode.INVALID_REQUEST),
        ({"rebalance_timeout_ms": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": None}, ErrorCode.INVALID_REQUEST),
        ({"owned": frozenset({("x", 0)})}, ErrorCode.INVALID_REQUEST),
        ({"topic_names": None}, ErrorCode.INVALID_REQUEST),
        ({"assignor": "sticky"}, ErrorCode.UNSUPPORTED_ASSIGNOR),
        ({"topic_names": None, "pattern": "("}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"pattern": "x" * 1_025}, ErrorCode.INVALID_REGULAR_EXPRESSION),
        ({"epoch": 1}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_bad_requests_are_refused_and_make_no_group(
    changes: dict[str, Any], error: ErrorCode
) -> None:
    stage = ConsumerStage()
    fields: dict[str, Any] = {
        "member_id": "m1",
        "epoch": 0,
        "rebalance_timeout_ms": 1,
        "topic_names": frozenset({"a"}),
        "owned": frozenset(),
    }
    assert stage.answer(ConsumerHeartbeat(**(fields | changes))).error is error
    assert stage.group.is_blank
    assert stage.saved is None


def test_members_and_memory_have_limits() -> None:
    stage = ConsumerStage(config=GroupConfig(member_count_max=2, client_bytes_max=8_000))
    stage.join("m1", owner="one")
    stage.join("m2", owner="one")
    assert stage.beat("m3", 0, owner="two").error is ErrorCode.GROUP_MAX_SIZE_REACHED
    many = frozenset(f"topic {number}" for number in range(100))
    full = stage.beat("m1", 2, topic_names=many, owner="one")
    assert full.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    stage.beat("m2", LEAVE_EPOCH)
    stage.topics.set("large", 1_000)
    large = stage.beat("m3", 0, owner="three", topic_names=frozenset({"large"}))
    assert large.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_commits_and_fetches_are_checked_by_epoch() -> None:
    stage = ConsumerStage()
    assert stage.commit() is ErrorCode.NONE, "an empty group takes commits of outsiders"
    stage.join("m1")
    assert stage.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.commit(is_transactional=True) is ErrorCode.NONE
    assert stage.commit("m1", 1) is ErrorCode.NONE
    assert stage.commit("m1", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert stage.commit("m1", 0, is_transactional=True) is ErrorCode.ILLEGAL_GENERATION
    assert stage.commit("m1", 1, knows_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    assert stage.commit("m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.fetch("m1", 1) is ErrorCode.NONE
    assert stage.fetch("m1", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert stage.fetch("m2", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.delete() is ErrorCode.NON_EMPTY_GROUP
    retention = stage.group.retention(0)
    assert retention.topics == {"a"}


def test_the_assignor_that_most_ask_for_is_taken() -> None:
    stage = ConsumerStage(topics=FakeTopics(a=3, b=3))
    names = frozenset({"a", "b"})
    for number in range(3):
        stage.join(f"m{number}", topic_names=names, assignor="range")
    has = stage.settle("m0", "m1", "m2")
    for number in range(3):
        assert {index for _, index in has[f"m{number}"]} == {number}
    described = stage.group.describe_fully()
    assert described is not None
    assert (described.assignor, described.state) == ("range", "Stable")


def test_a_large_group_is_assigned_now_and_then() -> None:
    config = GroupConfig(consumer_assignment_interval_ms=1_000)
    stage = ConsumerStage(topics=FakeTopics(a=3_000), config=config)
    stage.join("m1")
    reply = stage.join("m2")
    assert (reply.epoch, stage.group.state) == (1, GroupState.ASSIGNING)
    stage.join("m3")
    stage.wait(1_000)
    assert stage.group.state is GroupState.RECONCILING
    has = stage.settle("m1", "m2", "m3")
    assert [len(each) for each in has.values()] == [1_000, 1_000, 1_000]
    assert stage.group.state is GroupState.STABLE


def test_topics_that_changed_while_the_node_was_away_are_noticed() -> None:
    stage = ConsumerStage(topics=FakeTopics(a=2))
    stage.join("m1")
    stage.topics.set("a", 4)
    stage.restart()
    assert stage.beat("m1", 1).assignment == stage.topics.partitions("a")
