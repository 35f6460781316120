"""Members that keep their place over a restart."""

import struct

from firnmq.brokers.kafka.groups import GroupState, JoinReply, Leaver
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.stage import REBALANCE_MS, SESSION_MS, Stage


def static_pair(stage: Stage) -> tuple[JoinReply, JoinReply]:
    """Two static members `i1`, the leader, and `i2` in a Stable group."""
    first = stage.join(instance_id="i1")
    stage.settle(first)
    second = stage.join(instance_id="i2")
    again = stage.join(first.joined.member_id, instance_id="i1")
    leader, follower = stage.settle(again, second)
    assert stage.state() is GroupState.STABLE
    return leader, follower


def test_a_restarted_follower_gets_its_old_assignment_without_a_rebalance() -> None:
    stage = Stage()
    leader, follower = static_pair(stage)
    # 1. It comes back without an id and is given a new one in the same generation.
    back = stage.join(instance_id="i2")
    assert back.joined.generation == follower.generation
    assert back.joined.member_id != follower.member_id
    assert back.joined.leader == leader.member_id
    # 2. What was assigned to its former id is its own.
    synced = stage.sync(back.joined, instance_id="i2").synced
    assert synced.assignment == f"{follower.member_id}@{follower.generation}".encode()
    # 3. The former run, should it still be alive, learns that it has been replaced.
    fenced = ErrorCode.FENCED_INSTANCE_ID
    assert stage.heartbeat(follower, instance_id="i2") is fenced
    assert stage.sync(follower, instance_id="i2").error is fenced
    assert stage.join(follower.member_id, instance_id="i2").error is fenced
    assert stage.commit(follower.member_id, follower.generation, instance_id="i2") is fenced
    # 4. Nobody else has noticed, and the store knows.
    assert stage.heartbeat(leader) is ErrorCode.NONE
    assert stage.saved is not None
    assert back.member_id in {m.member_id for m in stage.saved.members}


def test_a_restarted_leader_does_not_take_itself_for_the_leader() -> None:
    stage = Stage()
    leader, _ = static_pair(stage)
    back = stage.join(instance_id="i1")
    assert back.joined.leader == leader.member_id != back.joined.member_id
    assert back.joined.members == ()
    # It is the leader all the same: when it joins again, there is a rebalance.
    assert stage.group.leader == back.joined.member_id
    assert stage.join(back.member_id, instance_id="i1").is_parked


def test_a_restart_with_other_topics_rebalances() -> None:
    stage = Stage()
    leader, _ = static_pair(stage)
    back = stage.join(instance_id="i2", topics=b"other")
    assert back.is_parked
    again = stage.join(leader.member_id, instance_id="i1")
    assert {m.metadata for m in again.joined.members} == {b"t", b"other"}


def test_a_restart_that_forgot_what_it_owned_does_not_rebalance() -> None:
    def subscription(owned: bytes) -> bytes:
        return struct.pack(">hih", 1, 1, 4) + b"jobs" + owned

    stage = Stage()
    stage.settle(stage.join(instance_id="i1", topics=subscription(b"owns 1, 2 and 3")))
    back = stage.join(instance_id="i1", topics=subscription(b""))
    assert back.joined.generation == 1


def test_a_restart_that_lost_the_chosen_protocol_rebalances() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join(instance_id="i1", protocols={"a": b"", "b": b""}))
    back = stage.join(instance_id="i1", protocols={"b": b""})
    assert back.joined.protocol_name == "b"
    assert back.joined.generation == alone.generation + 1


def test_a_restart_during_completing_rebalances() -> None:
    stage = Stage()
    leader, follower = static_pair(stage)
    again = stage.join(leader.member_id, instance_id="i1")
    other = stage.join(follower.member_id, instance_id="i2")
    waiting = stage.sync(other.joined)
    # The leader is at work on a list with the id that is now replaced.
    back = stage.join(instance_id="i2")
    assert waiting.error is ErrorCode.FENCED_INSTANCE_ID
    assert back.is_parked
    assert stage.sync(again.joined).error is ErrorCode.REBALANCE_IN_PROGRESS
    once_more = stage.join(leader.member_id, instance_id="i1")
    assert {m.member_id for m in once_more.joined.members} == {leader.member_id, back.member_id}


def test_a_restart_during_preparing_takes_the_place_of_the_parked_join() -> None:
    stage = Stage()
    leader, follower = static_pair(stage)
    parked = stage.join(follower.member_id, instance_id="i2", topics=b"x")
    back = stage.join(instance_id="i2", topics=b"x")
    assert parked.error is ErrorCode.FENCED_INSTANCE_ID
    assert parked.member_id == follower.member_id
    stage.join(leader.member_id, instance_id="i1")
    assert back.joined.member_id == back.member_id


def test_an_absent_static_member_stays_for_its_session_and_keeps_getting_work() -> None:
    stage = Stage()
    session_ms = 1_000_000
    first = stage.join(instance_id="i1", session_timeout_ms=session_ms)
    stage.settle(first)
    second = stage.join(name="b")
    again = stage.join(first.joined.member_id, instance_id="i1", session_timeout_ms=session_ms)
    stage.settle(again, second)
    # 1. The static one, which leads, is down while another member comes.
    third = stage.join(name="c")
    other = stage.join(second.joined.member_id, name="b")
    stage.wait(REBALANCE_MS)
    # 2. The rebalance ends without it, with another leader that plans for it as well.
    assert other.joined.leader == second.member_id
    assert first.member_id in {m.member_id for m in other.joined.members}
    stage.settle(other, third)
    # 3. Back in time, it takes up its share without disturbing anyone.
    back = stage.join(instance_id="i1", session_timeout_ms=session_ms)
    assert back.joined.generation == other.joined.generation
    plan = f"{first.member_id}@{other.joined.generation}".encode()
    assert stage.sync(back.joined, instance_id="i1").synced.assignment == plan


def test_a_rebalance_of_absent_static_members_waits_for_their_sessions() -> None:
    stage = Stage()
    joined = stage.join(instance_id="i1", session_timeout_ms=200_000)
    (alone,) = stage.settle(joined)
    parked = stage.join(alone.member_id, instance_id="i1", topics=b"x", session_timeout_ms=200_000)
    assert not parked.is_parked
    newcomer = stage.join(name="b")
    stage.hang_up(newcomer)
    stage.wait(REBALANCE_MS)
    assert stage.state() is GroupState.PREPARING
    stage.wait(200_000)
    assert stage.state() is GroupState.EMPTY


def test_an_operator_removes_a_static_member_by_its_instance_id() -> None:
    stage = Stage()
    leader, _ = static_pair(stage)
    assert stage.leave(
        Leaver(instance_id="i2"),
        Leaver(instance_id="i3"),
        Leaver(member_id="former", instance_id="i1"),
    ) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
    ]
    assert stage.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_with_an_unknown_id_is_unknown() -> None:
    stage = Stage()
    stage.settle(stage.join(instance_id="i1"))
    assert stage.join("made-up", instance_id="i9").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.join("made-up", instance_id="i1").error is ErrorCode.FENCED_INSTANCE_ID
    assert stage.join("made-up").error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_needs_no_promise() -> None:
    stage = Stage()
    joined = stage.join(instance_id="i1", requires_known_member_id=True)
    assert joined.joined.member_id == "i1-1"


def test_until_the_new_id_is_saved_the_old_one_is_good() -> None:
    stage = Stage()
    _, follower = static_pair(stage)
    stage.auto_save = False
    back = stage.join(instance_id="i2")
    assert back.is_parked
    assert stage.heartbeat(follower, instance_id="i2") is ErrorCode.NONE
    # A failed save leaves everything as it was.
    stage.fail_save()
    assert back.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert stage.heartbeat(follower, instance_id="i2") is ErrorCode.NONE
    # The next attempt goes through.
    once_more = stage.join(instance_id="i2")
    stage.save()
    assert once_more.joined.generation == follower.generation
    assert stage.heartbeat(follower, instance_id="i2") is ErrorCode.FENCED_INSTANCE_ID


def test_restarts_that_come_while_another_is_saved_take_turns() -> None:
    stage = Stage()
    leader, follower = static_pair(stage)
    stage.auto_save = False
    first = stage.join(instance_id="i2")
    other = stage.join(instance_id="i1")
    second = stage.join(instance_id="i2")
    third = stage.join(instance_id="i2")
    assert second.error is ErrorCode.FENCED_INSTANCE_ID
    stage.save()
    members = {m.instance_id: m.member_id for m in stage.group.describe().members}
    assert members == {"i1": other.member_id, "i2": third.member_id}
    assert first.joined.generation == third.joined.generation == leader.generation
    assert stage.heartbeat(first.joined, instance_id="i2") is ErrorCode.FENCED_INSTANCE_ID
    assert stage.saved is not None
    assert {m.member_id for m in stage.saved.members} == set(members.values())
    assert follower.member_id not in members.values()


def test_a_rebalance_takes_up_restarts_that_wait_for_the_store() -> None:
    stage = Stage()
    static_pair(stage)
    stage.auto_save = False
    first = stage.join(instance_id="i2")
    other = stage.join(instance_id="i1")
    newcomer = stage.join(name="c")
    assert newcomer.joined.generation == first.joined.generation == other.joined.generation
    stage.save()  # The write that was under way changes nothing any more.
    assert stage.state() is GroupState.COMPLETING
    stage.auto_save = True
    stage.settle(first, other, newcomer)
    assert stage.state() is GroupState.STABLE


def test_a_restart_whose_connection_drops_still_counts_once_it_is_saved() -> None:
    stage = Stage()
    _, follower = static_pair(stage)
    stage.auto_save = False
    lost = stage.join(instance_id="i2")
    deferred = stage.join(instance_id="i1")
    stage.hang_up(lost)
    stage.hang_up(deferred)
    stage.save()
    assert stage.heartbeat(follower, instance_id="i2") is ErrorCode.FENCED_INSTANCE_ID
    stage.wait(SESSION_MS)
    assert stage.state() is GroupState.EMPTY
