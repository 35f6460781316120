"""Heartbeats, commits, descriptions, deletion, and groups that have ended."""

from firnmq.brokers.kafka.groups import GroupState
from firnmq.brokers.kafka.groups.messages import CodeReply, SyncRequest, Unloaded
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.stage import SESSION_MS, Stage


def test_heartbeats_are_judged_by_member_then_generation_then_state() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    assert stage.heartbeat(leader) is ErrorCode.NONE
    stage.join(leader.member_id, name="a")
    assert stage.heartbeat(follower) is ErrorCode.REBALANCE_IN_PROGRESS
    other = stage.join(follower.member_id, name="b")
    assert stage.heartbeat(follower) is ErrorCode.ILLEGAL_GENERATION
    assert stage.heartbeat(other.joined) is ErrorCode.NONE, "in Completing all is well"
    stage.leave(follower.member_id)
    assert stage.heartbeat(other.joined) is ErrorCode.UNKNOWN_MEMBER_ID


def test_heartbeats_to_a_group_that_never_was() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    fresh = Stage()
    assert fresh.heartbeat(alone) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fresh.sync(alone).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert fresh.leave(alone.member_id) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert fresh.join(alone.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert fresh.group.is_blank


def test_syncs_of_another_generation_or_protocol_are_refused() -> None:
    stage = Stage()
    joined = stage.join().joined

    def sync(**changes: str | int) -> ErrorCode:
        fields: dict[str, object] = {
            "member_id": joined.member_id,
            "generation": joined.generation,
            "protocol_type": "consumer",
            "protocol_name": "range",
        }
        return stage.ask(SyncRequest(**(fields | changes))).error  # type: ignore[arg-type]

    assert sync(generation=joined.generation + 1) is ErrorCode.ILLEGAL_GENERATION
    assert sync(protocol_type="connect") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync(protocol_name="robin") is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert sync() is ErrorCode.NONE


def test_commits_without_a_generation_are_for_empty_groups() -> None:
    stage = Stage()
    assert stage.commit() is ErrorCode.NONE
    leader, follower = stage.stable_pair()
    assert stage.commit() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.commit(leader.member_id) is ErrorCode.ILLEGAL_GENERATION
    assert stage.commit(is_transactional=True) is ErrorCode.NONE
    stage.leave(leader.member_id, follower.member_id)
    assert stage.commit() is ErrorCode.NONE
    assert stage.commit(leader.member_id) is ErrorCode.NONE
    assert stage.commit(leader.member_id, leader.generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_commits_follow_the_rebalance() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    mine = (follower.member_id, follower.generation)
    assert stage.commit(*mine) is ErrorCode.NONE
    assert stage.commit(follower.member_id, 99) is ErrorCode.ILLEGAL_GENERATION
    assert stage.commit("nobody", follower.generation) is ErrorCode.UNKNOWN_MEMBER_ID
    # In Preparing a member may still note how far it came, in Completing it may not.
    again = stage.join(leader.member_id, name="a")
    assert stage.commit(*mine) is ErrorCode.NONE
    other = stage.join(follower.member_id, name="b")
    now_mine = (follower.member_id, other.joined.generation)
    assert stage.commit(*mine) is ErrorCode.ILLEGAL_GENERATION
    assert stage.commit(*now_mine) is ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.commit(*now_mine, is_transactional=True) is ErrorCode.NONE
    stage.settle(again, other)
    assert stage.commit(*now_mine) is ErrorCode.NONE


def test_a_commit_is_a_sign_of_life() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    for _ in range(4):
        stage.wait(SESSION_MS - 1)
        assert stage.commit(alone.member_id, alone.generation) is ErrorCode.NONE


def test_a_description_shows_assignments_only_while_they_hold() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    seen = stage.group.describe()
    assert (seen.state, seen.protocol_type, seen.protocol_name) == (
        GroupState.STABLE,
        "consumer",
        "range",
    )
    assert [(m.client_id, m.metadata, m.assignment) for m in seen.members] == [
        ("a", b"t", b"a-1@2"),
        ("b", b"t", b"b-2@2"),
    ]
    stage.join(leader.member_id, name="a")
    seen = stage.group.describe()
    assert seen.protocol_name == ""
    assert [(m.member_id, m.assignment) for m in seen.members] == [
        (leader.member_id, b""),
        (follower.member_id, b""),
    ]


def test_only_an_empty_group_can_be_deleted() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    assert stage.delete().error is ErrorCode.NON_EMPTY_GROUP
    stage.leave(alone.member_id)
    assert stage.delete().error is ErrorCode.NONE
    assert stage.saved is None
    # A deleted group takes part in nothing.
    gone = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state() is GroupState.DEAD
    assert stage.delete().error is ErrorCode.GROUP_ID_NOT_FOUND
    assert stage.join().error is gone
    assert stage.sync(alone).error is gone
    assert stage.heartbeat(alone) is gone
    assert stage.commit() is gone
    assert stage.leave("x") == []


def test_a_join_that_comes_during_deletion_saves_the_group() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    stage.leave(alone.member_id)
    stage.auto_save = False
    deletion = stage.delete()
    assert stage.delete().error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    newcomer = stage.join()
    assert deletion.error is ErrorCode.NON_EMPTY_GROUP
    stage.auto_save = True
    stage.save()
    stage.settle(newcomer)
    assert stage.saved is not None
    assert stage.state() is GroupState.STABLE


def test_a_promise_keeps_the_group_from_being_deleted() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    stage.leave(alone.member_id)
    stage.auto_save = False
    # 1. It is given while the deletion is under way.
    deletion = stage.delete()
    promised = stage.join(requires_known_member_id=True)
    assert deletion.error is ErrorCode.NON_EMPTY_GROUP
    stage.save()
    # 2. It stands in the way of the next.
    assert stage.delete().error is ErrorCode.NON_EMPTY_GROUP
    assert stage.join(promised.member_id).joined.member_id == promised.member_id


def test_a_deletion_that_fails_leaves_the_group() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    stage.leave(alone.member_id)
    stage.auto_save = False
    deletion = stage.delete()
    stage.fail_save()
    assert deletion.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.state() is GroupState.EMPTY


def test_assignments_that_cannot_be_saved_are_given_to_nobody() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    again = stage.join(leader.member_id, name="a")
    other = stage.join(follower.member_id, name="b")
    stage.auto_save = False
    waiting = [stage.sync(other.joined), stage.sync(again.joined)]
    assert all(call.is_parked for call in waiting)
    stage.fail_save()
    assert {call.error for call in waiting} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert stage.state() is GroupState.COMPLETING
    # The clients come back, are told the same, and try again.
    stage.auto_save = True
    again, other = stage.join(leader.member_id, name="a"), stage.join(follower.member_id, name="b")
    assert again.joined.generation == other.joined.generation == leader.generation + 1
    stage.settle(again, other)
    assert stage.state() is GroupState.STABLE


def test_a_save_that_is_overtaken_by_a_rebalance_changes_nothing() -> None:
    stage = Stage()
    leader, _ = stage.settle(stage.join())[0], None
    again = stage.join(leader.member_id)
    stage.auto_save = False
    overtaken = stage.sync(again.joined)
    stage.join(name="b")
    assert overtaken.error is ErrorCode.REBALANCE_IN_PROGRESS
    stage.save()
    assert stage.state() is GroupState.PREPARING


def test_a_group_that_is_handed_over_answers_everyone() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    parked = stage.join(follower.member_id, name="b", topics=b"x")
    stage.give(Unloaded())
    assert parked.error is ErrorCode.NOT_COORDINATOR
    assert stage.group.wake_ms is None
    assert stage.heartbeat(leader) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_deletion_under_way_at_hand_over_is_answered() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    stage.leave(alone.member_id)
    stage.auto_save = False
    deletion = stage.delete()
    stage.give(Unloaded())
    assert deletion.body == CodeReply(error=ErrorCode.NOT_COORDINATOR)
