"""What must hold of a consumer group after every event, whatever came before."""

from firnmq.brokers.kafka.groups import GroupState
from firnmq.brokers.kafka.groups.consumer.core import ConsumerCore
from firnmq.brokers.kafka.groups.consumer.state import MemberState


def check(core: ConsumerCore) -> None:
    members = core.members.by_id
    assert all(member_id == member.member_id for member_id, member in members.items())
    static = {m.instance_id: m.member_id for m in members.values() if m.instance_id is not None}
    assert static == core.members.static, "an instance id has one member"

    holders = {each: m.member_id for m in members.values() for each in m.holds}
    assert sum(len(m.holds) for m in members.values()) == len(holders), (
        "a partition has two members"
    )
    assert holders == core.members._holders
    targets = [each for m in members.values() for each in m.target]
    assert len(targets) == len(set(targets)), "a partition is meant for two members"

    assert core.target_epoch <= core.epoch
    for member in members.values():
        assert member.epoch <= core.target_epoch or member.epoch <= core.epoch
        assert not member.assigned & member.revoking
        assert bool(member.revoking) <= (member.state is MemberState.REVOKING)
        assert (member.revoke_deadline_ms is not None) == (member.state is MemberState.REVOKING)
        if member.state is MemberState.STABLE and member.epoch == core.target_epoch:
            assert member.assigned == member.target
        assert core.wake_ms is not None
        deadlines = (member.revoke_deadline_ms, member.join_deadline_ms, member.sync_deadline_ms)
        for deadline_ms in (member.session_deadline_ms, *deadlines):
            assert deadline_ms is None or core.wake_ms <= deadline_ms, "a wait would never end"
        assert member.counted_bytes == member.size(), "what is held is counted"

    unsettled = {
        m.member_id
        for m in members.values()
        if m.state is not MemberState.STABLE or m.epoch != core.target_epoch
    }
    match core.state:
        case GroupState.EMPTY | GroupState.DEAD:
            assert not members
        case GroupState.ASSIGNING:
            assert members
            assert core.epoch > core.target_epoch
            assert core._assign_ms is not None, "it would never be assigned"
        case GroupState.RECONCILING:
            assert unsettled
            assert core.epoch == core.target_epoch
        case GroupState.STABLE:
            assert not unsettled
            assert core.epoch == core.target_epoch
        case _:
            raise AssertionError(core.state)
    assert core.saved_version <= core.version
    if core.state is not GroupState.DEAD and core.version > core.saved_version:
        is_waiting = core.write is not None or core._retry_ms is not None
        assert is_waiting or core.erasing is not None, "it would never be saved"
    assert all(parked.version > core.saved_version for parked in core._parked.values())
