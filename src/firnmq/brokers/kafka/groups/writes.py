"""Writes to the store that a group waits for before it goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firnmq.brokers.kafka.groups.messages import JoinRequest, Token, WriteSeq
from firnmq.brokers.kafka.groups.roster import rebalance_timeout_of
from firnmq.brokers.kafka.groups.snapshot import GroupSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentWrite:
    """A generation's assignments on their way to the store."""

    seq: WriteSeq
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameWrite:
    """A static member's next id on its way to the store; until then the old one is good."""

    seq: WriteSeq
    token: Token | None
    """None once the requester is gone; the id may be in the store by then, so it still counts."""
    request: JoinRequest
    member_id: str
    new_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EraseWrite:
    """The deletion of the group on its way to the store."""

    seq: WriteSeq
    token: Token


PendingWrite = AssignmentWrite | RenameWrite | EraseWrite
"""The write that something waits for. There is at most one, and it is the newest of the group."""


def renamed_snapshot(
    before: GroupSnapshot, request: JoinRequest, member_id: str, new_id: str
) -> GroupSnapshot:
    """`before` as it will be once the static member `member_id` is called `new_id`."""
    return replace(
        before,
        leader=new_id if before.leader == member_id else before.leader,
        members=tuple(
            replace(
                member,
                member_id=new_id,
                client_id=request.client_id,
                client_host=request.client_host,
                session_timeout_ms=request.session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_of(request),
                protocols=request.protocols,
                owner=request.owner,
            )
            if member.member_id == member_id
            else member
            for member in before.members
        ),
    )
