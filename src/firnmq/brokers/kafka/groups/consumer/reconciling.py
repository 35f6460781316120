"""How a member gets from the partitions that it has to those that it is to have.

A partition has one member at a time: the next gets it only after the last has said that it gave it
up, or is gone. A member's epoch says for which targets its partitions are; it keeps its old epoch
until it has given up what others are to have.
"""

from __future__ import annotations

from firnmq.brokers.kafka.groups.consumer.core import ConsumerCore
from firnmq.brokers.kafka.groups.consumer.members import NO_EPOCH, ConsumerMember
from firnmq.brokers.kafka.groups.consumer.messages import NO_PARTITIONS, Partitions
from firnmq.brokers.kafka.groups.consumer.state import (
    MemberState,
    MemberStep,
    next_member_state,
)


def reconcile(
    core: ConsumerCore, member: ConsumerMember, owned: Partitions | None, now_ms: int
) -> None:
    """Brings the member one step closer. `owned` is what it says that it has, None if nothing."""
    epoch = member.epoch
    if member.state is MemberState.STABLE and epoch == core.target_epoch:
        # A pattern's new topics and the like are a new epoch; there is nothing to do without one.
        core.note_progress(member)
        return
    if member.state is MemberState.REVOKING:
        if owned is None or owned & member.revoking:
            return  # It is still at it.
        epoch += 1  # What it has is right for the targets that had it give up the rest.
    keeps = member.assigned & member.target
    revoking = member.assigned - member.target
    lacks = member.target - keeps
    free = frozenset(
        each for each in lacks if core.members.holder(each) in (None, member.member_id)
    )
    if revoking and (owned is None or owned & revoking):
        _move(core, member, MemberStep.MUST_REVOKE, epoch, keeps, revoking)
        member.revoke_deadline_ms = core.deadline(member, now_ms)
        return
    step = MemberStep.SETTLED if free == lacks else MemberStep.MUST_WAIT
    _move(core, member, step, core.target_epoch, keeps | free, NO_PARTITIONS)


def _move(
    core: ConsumerCore,
    member: ConsumerMember,
    step: MemberStep,
    epoch: int,
    assigned: Partitions,
    revoking: Partitions,
) -> None:
    before = (member.state, member.epoch, member.assigned, member.revoking)
    member.state = next_member_state(member.state, step)
    if epoch != member.epoch:
        member.previous_epoch, member.epoch = member.epoch, epoch
    core.members.set_held(member, assigned, revoking)
    if member.state is not MemberState.REVOKING:
        member.revoke_deadline_ms = None
    if before != (member.state, member.epoch, member.assigned, member.revoking):
        core.changed()
    core.note_progress(member)


def rejoin(core: ConsumerCore, member: ConsumerMember) -> None:
    """The member has started over: it has nothing, and is told all that it is to have."""
    member.state = next_member_state(member.state, MemberStep.REJOINED)
    member.epoch, member.previous_epoch = 0, NO_EPOCH
    member.revoke_deadline_ms = None
    core.members.set_held(member, member.assigned & member.target, NO_PARTITIONS)
    core.changed()
    core.note_progress(member)


def pause(core: ConsumerCore, member: ConsumerMember) -> None:
    """A static member has left, and what it has is kept for it until its session ends."""
    member.state = next_member_state(member.state, MemberStep.PAUSED)
    member.revoke_deadline_ms = member.join_deadline_ms = member.sync_deadline_ms = None
    core.members.set_held(member, member.assigned, NO_PARTITIONS)
    core.changed()
    core.note_progress(member)
