"""Stories of joining, syncing, leaving and crashing, told step by step."""

from firnmq.brokers.kafka.groups import GroupConfig, GroupState
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from tests.unit.brokers.kafka.groups.stage import REBALANCE_MS, SESSION_MS, Stage


def test_two_members_join_and_share_the_work() -> None:
    stage = Stage()
    # 1. The first member is alone, so it leads a generation of its own.
    first = stage.join(name="a")
    assert first.joined.generation == 1
    assert first.joined.leader == first.member_id
    assert [m.member_id for m in first.joined.members] == [first.member_id]
    assert stage.sync(first.joined).synced.assignment == b"a-1@1"
    assert stage.state() is GroupState.STABLE
    # 2. The second has to wait until the first has joined again.
    second = stage.join(name="b")
    assert second.is_parked
    assert stage.heartbeat(first.joined) is ErrorCode.REBALANCE_IN_PROGRESS
    again = stage.join(first.member_id, name="a")
    # 3. The leader stays the leader, and it alone is told who the members are.
    assert again.joined.generation == second.joined.generation == 2
    assert again.joined.leader == second.joined.leader == first.member_id
    assert {m.member_id for m in again.joined.members} == {"a-1", "b-2"}
    assert second.joined.members == ()
    # 4. Who syncs before the leader waits for it.
    waiting = stage.sync(second.joined)
    assert waiting.is_parked
    assert stage.sync(again.joined).synced.assignment == b"a-1@2"
    assert waiting.synced.assignment == b"b-2@2"
    assert stage.heartbeat(second.joined) is ErrorCode.NONE


def test_a_late_sync_is_answered_from_the_saved_assignments() -> None:
    stage = Stage()
    first = stage.join(name="a")
    second = stage.join(name="b")
    again = stage.join(first.joined.member_id, name="a")
    stage.sync(again.joined)
    assert stage.state() is GroupState.STABLE
    assert stage.sync(second.joined).synced.assignment == b"b-2@2"


def test_assignments_the_leader_forgot_are_empty_and_strangers_are_ignored() -> None:
    stage = Stage()
    first = stage.join(name="a")
    second = stage.join(name="b")
    again = stage.join(first.joined.member_id, name="a")
    waiting = stage.sync(second.joined)
    stage.sync(again.joined, {first.member_id: b"all", "stranger": b"x"})
    assert waiting.synced.assignment == b""


def test_a_member_that_leaves_makes_the_others_join_again() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    assert stage.leave(leader.member_id) == [ErrorCode.NONE]
    assert stage.state() is GroupState.PREPARING
    assert stage.heartbeat(leader) is ErrorCode.UNKNOWN_MEMBER_ID
    again = stage.join(follower.member_id, name="b")
    assert again.joined.leader == follower.member_id
    assert again.joined.generation == follower.generation + 1


def test_the_last_to_leave_empties_the_group_and_the_next_goes_on_counting() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    assert stage.leave(leader.member_id, follower.member_id, "nobody") == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert stage.state() is GroupState.EMPTY
    assert stage.saved is not None
    assert stage.saved.members == ()
    generation = stage.group.generation
    assert stage.join().joined.generation > generation


def test_naming_a_member_twice_in_one_request_takes_it_out_once() -> None:
    stage = Stage()
    leader, _ = stage.stable_pair()
    assert stage.leave(leader.member_id, leader.member_id) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]


def test_a_crashed_member_is_missed_after_its_session() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    # 1. Only the leader is heard from.
    for _ in range(3):
        stage.wait(SESSION_MS // 4)
        assert stage.heartbeat(leader) is ErrorCode.NONE
    # 2. The other's session ends, and with it the generation.
    stage.wait(SESSION_MS // 2)
    assert stage.heartbeat(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    again = stage.join(leader.member_id, name="a")
    assert [m.member_id for m in again.joined.members] == [leader.member_id]
    assert stage.heartbeat(follower) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_lost_leader_is_replaced_by_the_oldest_that_joined() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    third = stage.join(name="c")
    stage.wait(SESSION_MS // 2)
    stage.heartbeat(follower)
    again = stage.join(follower.member_id, name="b")
    stage.wait(SESSION_MS)  # The leader is not heard from again.
    assert again.joined.leader == third.joined.leader == follower.member_id
    assert leader.member_id not in {m.member_id for m in again.joined.members}


def test_a_member_that_heartbeats_but_does_not_join_is_left_behind() -> None:
    stage = Stage()
    leader, slow = stage.stable_pair()
    again = stage.join(leader.member_id, name="a")  # The leader wants a new assignment.
    for _ in range(REBALANCE_MS // 5_000 - 1):
        stage.wait(5_000)
        assert stage.heartbeat(slow) is ErrorCode.REBALANCE_IN_PROGRESS
    assert again.is_parked
    stage.wait(5_000)
    assert [m.member_id for m in again.joined.members] == [leader.member_id]
    assert stage.heartbeat(slow) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_parked_join_does_not_expire() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    waiting = stage.join(follower.member_id, name="b", topics=b"other")
    for _ in range(5):
        stage.wait(SESSION_MS - 1)
        stage.heartbeat(leader)
    assert waiting.is_parked
    stage.join(leader.member_id, name="a")
    assert waiting.joined.member_id == follower.member_id


def test_a_leader_that_never_syncs_is_put_out_though_it_heartbeats() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    again = stage.join(leader.member_id, name="a")
    other = stage.join(follower.member_id, name="b")
    waiting = stage.sync(other.joined)
    for _ in range(REBALANCE_MS // 5_000):
        stage.wait(5_000)
        stage.heartbeat(again.joined)
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.heartbeat(again.joined) is ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.join(follower.member_id, name="b").joined.leader == follower.member_id


def test_a_newcomer_during_completing_starts_over() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    again = stage.join(leader.member_id, name="a")
    other = stage.join(follower.member_id, name="b")
    waiting = stage.sync(other.joined)
    # 1. Before the leader has synced, a third member comes.
    third = stage.join(name="c")
    assert waiting.error is ErrorCode.REBALANCE_IN_PROGRESS
    # 2. The leader's plan is out of date.
    assert stage.sync(again.joined).error is ErrorCode.REBALANCE_IN_PROGRESS
    # 3. Everyone joins again under the id it has.
    joins = [stage.join(leader.member_id, name="a"), stage.join(follower.member_id, name="b")]
    replies = stage.settle(*joins, third)
    assert {r.generation for r in replies} == {leader.generation + 2}
    assert stage.state() is GroupState.STABLE


def test_joining_again_unchanged_in_completing_repeats_the_answer() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    again = stage.join(leader.member_id, name="a")
    stage.join(follower.member_id, name="b")
    assert stage.join(leader.member_id, name="a").joined == again.joined
    repeated = stage.join(follower.member_id, name="b").joined
    assert repeated.generation == again.joined.generation
    assert repeated.members == ()


def test_joining_again_changed_in_completing_rebalances() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    again = stage.join(leader.member_id, name="a")
    stage.join(follower.member_id, name="b")
    changed = stage.join(follower.member_id, name="b", topics=b"other")
    assert changed.is_parked
    assert stage.sync(again.joined).error is ErrorCode.REBALANCE_IN_PROGRESS


def test_in_stable_only_a_changed_follower_or_the_leader_rebalances() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    # 1. A follower that joins unchanged is told what it knows.
    same = stage.join(follower.member_id, name="b")
    assert same.joined.generation == follower.generation
    assert stage.sync(same.joined).synced.assignment == b"b-2@2"
    assert stage.state() is GroupState.STABLE
    # 2. One that subscribes to something else is not.
    changed = stage.join(follower.member_id, name="b", topics=b"other")
    again = stage.join(leader.member_id, name="a")
    _, changed_reply = stage.settle(again, changed)
    assert changed_reply.generation == follower.generation + 1
    metadata = {m.member_id: m.metadata for m in again.joined.members}
    assert metadata[follower.member_id] == b"other"
    # 3. The leader joins because it has seen something, such as new partitions.
    assert stage.join(leader.member_id, name="a").is_parked


def test_a_client_that_asks_twice_waits_once() -> None:
    stage = Stage()
    _, follower = stage.stable_pair()
    first = stage.join(follower.member_id, name="b", topics=b"x")
    second = stage.join(follower.member_id, name="b", topics=b"x")
    assert first.error is ErrorCode.REBALANCE_IN_PROGRESS
    assert second.is_parked


def test_new_members_get_an_id_before_they_count() -> None:
    stage = Stage()
    asked = stage.join(name="a", requires_known_member_id=True)
    assert asked.error is ErrorCode.MEMBER_ID_REQUIRED
    assert stage.state() is GroupState.EMPTY
    joined = stage.join(asked.member_id, name="a", requires_known_member_id=True)
    assert joined.joined.member_id == asked.member_id


def test_a_promised_id_is_waited_for_until_it_lapses() -> None:
    stage = Stage()
    promised = stage.join(name="late", requires_known_member_id=True)
    waiting = stage.join(name="a")
    assert waiting.is_parked
    stage.wait(SESSION_MS)
    assert waiting.joined.generation == 1
    assert stage.join(promised.member_id).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_promised_id_can_be_given_back() -> None:
    stage = Stage()
    promised = stage.join(name="late", requires_known_member_id=True)
    waiting = stage.join(name="a")
    assert stage.leave(promised.member_id) == [ErrorCode.NONE]
    assert not waiting.is_parked


def test_an_empty_group_waits_for_a_fleet_to_start() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=3_000))
    first = stage.join(name="a")
    stage.wait(2_900)
    second = stage.join(name="b")
    stage.wait(2_900)
    third = stage.join(name="c")
    assert first.is_parked
    stage.wait(3_100 + 3_000)
    assert first.joined.generation == third.joined.generation == 1
    assert len(first.joined.members) == 3
    assert second.joined.leader == first.member_id


def test_the_wait_for_a_fleet_ends_with_the_rebalance_timeout() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=3_000))
    first = stage.join(name="a", rebalance_timeout_ms=8_000)
    for _ in range(8):
        assert first.is_parked
        stage.join(name="b", rebalance_timeout_ms=8_000)
        stage.wait(1_000)
    assert len(first.joined.members) == 9


def test_a_joiner_whose_connection_drops_counts_until_its_session_ends() -> None:
    stage = Stage()
    leader, _ = stage.stable_pair()
    newcomer = stage.join(name="c")
    stage.hang_up(newcomer)
    again = stage.join(leader.member_id, name="a")
    stage.join("b-2", name="b")
    assert stage.group.member_count == 3
    assert again.is_parked
    stage.wait(SESSION_MS)
    assert len(again.joined.members) == 2


def test_a_joiner_whose_connection_drops_may_come_back() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    lost = stage.join(follower.member_id, name="b", topics=b"x")
    stage.hang_up(lost)
    stage.wait(SESSION_MS // 2)
    back = stage.join(follower.member_id, name="b", topics=b"x")
    stage.heartbeat(leader)
    stage.wait(SESSION_MS - 1)
    stage.join(leader.member_id, name="a")
    assert back.joined.member_id == follower.member_id


def test_a_sync_whose_connection_drops_is_taken_up_by_the_next() -> None:
    stage = Stage(auto_save=False)
    first = stage.join()
    lost = stage.sync(first.joined)
    stage.hang_up(lost)
    again = stage.sync(first.joined)
    assert len(stage.writes) == 1, "the first assignments are being saved already"
    stage.save()
    assert again.synced.assignment == b"c-1@1"


def test_the_protocol_is_the_one_most_members_prefer_of_those_all_know() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=100))
    calls = [
        stage.join(protocols={"sticky": b"1", "range": b"2", "robin": b"3"}),
        stage.join(protocols={"robin": b"4", "range": b"5"}),
        stage.join(protocols={"exotic": b"6", "robin": b"7", "range": b"8"}),
    ]
    stage.wait(1_000)
    assert {call.joined.protocol_name for call in calls} == {"robin"}
    assert [m.metadata for m in calls[0].joined.members] == [b"3", b"4", b"7"]


def test_the_oldest_member_decides_a_tie() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=100))
    first = stage.join(protocols={"b": b"", "a": b""})
    stage.join(protocols={"a": b"", "b": b""})
    stage.wait(1_000)
    assert first.joined.protocol_name == "b"


def test_members_without_a_common_protocol_are_refused() -> None:
    stage = Stage()
    stage.stable_pair()
    refused = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert stage.join(protocols={"robin": b""}).error is refused
    assert stage.join(protocol_type="connect").error is refused
    assert stage.join(protocols={}).error is refused
    assert stage.join(protocol_type="").error is refused
    assert stage.state() is GroupState.STABLE, "a refusal disturbs nobody"


def test_a_member_alone_may_turn_to_another_protocol() -> None:
    stage = Stage()
    (alone,) = stage.settle(stage.join())
    turned = stage.join(alone.member_id, protocols={"robin": b""})
    assert turned.joined.protocol_name == "robin"


def test_session_timeouts_have_bounds() -> None:
    stage = Stage()
    invalid = ErrorCode.INVALID_SESSION_TIMEOUT
    config = stage.config
    assert stage.join(session_timeout_ms=config.session_timeout_min_ms - 1).error is invalid
    assert stage.join(session_timeout_ms=config.session_timeout_max_ms + 1).error is invalid
    assert stage.group.is_blank


def test_a_full_group_refuses_newcomers_and_keeps_its_members() -> None:
    stage = Stage(GroupConfig(initial_rebalance_delay_ms=0, member_count_max=2))
    leader, _ = stage.stable_pair()
    assert stage.join().error is ErrorCode.GROUP_MAX_SIZE_REACHED
    full = stage.join(requires_known_member_id=True)
    assert full.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert stage.join(leader.member_id, name="a").is_parked


def test_oversized_members_and_assignments_are_refused() -> None:
    stage = Stage(
        GroupConfig(initial_rebalance_delay_ms=0, member_bytes_max=1_300, assignment_bytes_max=100)
    )
    assert stage.join(topics=b"x" * 200).error is ErrorCode.INVALID_REQUEST
    joined = stage.join().joined
    huge = stage.sync(joined, {joined.member_id: b"x" * 101})
    assert huge.error is ErrorCode.INVALID_REQUEST
    assert stage.sync(joined).error is ErrorCode.NONE


def test_a_sync_that_comes_too_late_is_a_sign_of_life() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    stage.join(follower.member_id, name="b", topics=b"x")
    for _ in range(3):
        stage.wait(SESSION_MS - 1)
        assert stage.sync(leader).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert stage.join(leader.member_id, name="a").joined.generation > leader.generation


def test_the_wait_is_as_long_as_the_most_patient_member_that_takes_part() -> None:
    stage = Stage()
    leader, follower = stage.stable_pair()
    newcomer = stage.join(name="c", rebalance_timeout_ms=2 * REBALANCE_MS)
    again = stage.join(leader.member_id, name="a")
    for _ in range(2 * REBALANCE_MS // 5_000):
        assert again.is_parked
        stage.heartbeat(follower)
        stage.wait(5_000)
    assert {m.member_id for m in again.joined.members} == {leader.member_id, newcomer.member_id}
