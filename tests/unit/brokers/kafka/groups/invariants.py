"""What must hold of a group after every event, whatever came before."""

from firnmq.brokers.kafka.groups import Group, GroupState
from firnmq.brokers.kafka.groups.roster import size_of
from firnmq.brokers.kafka.groups.writes import AssignmentWrite, EraseWrite, RenameWrite


def check(group: Group) -> None:
    core = group._core
    roster = core.roster
    members = roster.members
    state = core.state

    assert all(member_id == member.member_id for member_id, member in members.items())
    assert not members.keys() & roster.promised.keys(), "an id is either promised or taken"
    static = {m.instance_id: m.member_id for m in members.values() if m.instance_id is not None}
    assert static == roster._static, "an instance id has one member"

    for member in members.values():
        assert member.join_token is None or state is GroupState.PREPARING
        assert member.sync_token is None or state is GroupState.COMPLETING
        assert not member.assignment or state is GroupState.STABLE
        if not member.is_parked:
            assert core.wake_ms is not None
            assert core.wake_ms <= member.session_deadline_ms, "a session would never expire"

    _, assigned_bytes = core._assigned
    protocol_bytes = sum(size_of(member) for member in members.values())
    promised_bytes = sum(promise.size for promise in roster.promised.values())
    held_bytes = protocol_bytes + promised_bytes + assigned_bytes
    assert core.shares.total_bytes == held_bytes, "what is held is counted"
    if state is GroupState.STABLE:
        assert assigned_bytes == sum(len(member.assignment) for member in members.values())
    elif state is not GroupState.COMPLETING:
        assert assigned_bytes == 0

    match state:
        case GroupState.EMPTY | GroupState.DEAD:
            assert not members
        case GroupState.COMPLETING | GroupState.STABLE:
            assert roster.leader in members
            assert core.protocol_name is not None
            assert all(
                core.protocol_name in {p.name for p in m.protocols} for m in members.values()
            )
        case GroupState.PREPARING:
            assert members
            assert core._hold is not None or not roster.has_all_joined(), "nobody to wait for"

    match core.write:
        case AssignmentWrite():
            assert state is GroupState.COMPLETING
            assert core.write.assignments.keys() == members.keys()
        case RenameWrite():
            assert state is GroupState.STABLE
            assert core.write.member_id in members
        case EraseWrite():
            assert state is GroupState.EMPTY
    if core.deferred:
        assert isinstance(core.write, RenameWrite), "a join is put off only behind another"
