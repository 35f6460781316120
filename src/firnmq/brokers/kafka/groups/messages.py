"""What goes into the group state machine and what comes out: requests, replies, events, actions.

A request is answered under its token, at once or much later. Tokens mean nothing to the machine
except that two requests never share one.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import NewType

from firnmq.brokers.kafka.groups.consumer.messages import (
    ConsumerHeartbeat,
    ConsumerHeartbeatReply,
    FetchCheck,
)
from firnmq.brokers.kafka.groups.consumer.snapshot import ConsumerGroupSnapshot
from firnmq.brokers.kafka.groups.snapshot import GroupProtocol, GroupSnapshot
from firnmq.brokers.kafka.groups.state import GroupState
from firnmq.brokers.kafka.protocol.errors import ErrorCode

Token = NewType("Token", int)
"""Names one request until it is answered."""

WriteSeq = NewType("WriteSeq", int)
"""Number of a write to the store, growing with every write of the same group object."""

GENERATION_NONE = -1
"""What a client sends, or reads in an error reply, instead of a generation."""


# Requests: what clients ask.


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """JoinGroup."""

    protocol_type: str
    protocols: tuple[GroupProtocol, ...]
    session_timeout_ms: int
    rebalance_timeout_ms: int = -1
    """Below zero, as JoinGroup v0 has no such field: the session time-out counts."""
    member_id: str = ""
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    owner: str = ""
    """Whom the member's bytes are counted for: the authenticated user, or the address."""
    requires_known_member_id: bool = False
    """True from v4 on: a member without an id is given one and must come back with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """SyncGroup. Only the leader's assignments count."""

    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """Heartbeat."""

    member_id: str
    generation: int
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaver:
    """One member of a LeaveGroup request; a static one may be named by its instance id alone."""

    member_id: str = ""
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """LeaveGroup; before v3 with exactly one member."""

    members: tuple[Leaver, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitRequest:
    """May this OffsetCommit, or TxnOffsetCommit, be carried out?"""

    member_id: str = ""
    generation: int = GENERATION_NONE
    instance_id: str | None = None
    is_transactional: bool = False
    knows_epochs: bool = True
    """Whether the client can be told that its epoch is stale: from OffsetCommit v9 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRequest:
    """DeleteGroups, for one group."""


GroupRequest = (
    JoinRequest
    | SyncRequest
    | HeartbeatRequest
    | LeaveRequest
    | CommitRequest
    | DeleteRequest
    | ConsumerHeartbeat
    | FetchCheck
)


# Replies: what clients are told.


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """What the leader is told about one member."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinReply:
    error: ErrorCode
    member_id: str
    generation: int = GENERATION_NONE
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    """Filled for the leader only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReply:
    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaverReply:
    member_id: str
    instance_id: str | None
    error: ErrorCode


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveReply:
    error: ErrorCode
    members: tuple[LeaverReply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReply:
    """The answer to a heartbeat, a check of a commit or fetch, or a deletion."""

    error: ErrorCode


GroupReply = JoinReply | SyncReply | LeaveReply | CodeReply | ConsumerHeartbeatReply


# Events: what happens to a group.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A client sent a request."""

    token: Token
    request: GroupRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Abandoned:
    """The client does not wait for the answer under this token; its connection is gone."""

    token: Token


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """Time has passed; due at `Group.wake_ms` at the latest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDone:
    """A Persist or Erase has been carried out."""

    seq: WriteSeq


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteFailed:
    """A Persist or Erase may or may not have been carried out."""

    seq: WriteSeq


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """This node stops coordinating the group; what is stored stays."""


GroupEvent = Asked | Abandoned | Tick | WriteDone | WriteFailed | Unloaded


# Actions: what the driver must do, in this order.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    token: Token
    body: GroupReply


@dataclass(frozen=True, slots=True, kw_only=True)
class Persist:
    """Save the snapshot, then report WriteDone or WriteFailed.

    Only the newest write of a group matters: one that has not begun may be left out, without a
    report, when a newer one is asked for.
    """

    seq: WriteSeq
    snapshot: GroupSnapshot | ConsumerGroupSnapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Remove the group from the store; as for Persist otherwise."""

    seq: WriteSeq
    empty_since_ms: int | None = None
    """Wall time since which the group is empty, where it is forgotten only to make room: how long
    its offsets are kept counts from then."""


GroupAction = Reply | Persist | Erase


# Descriptions: what operators see, and what becomes of offsets.


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRetention:
    """Which of a group's offsets can be forgotten once they are old, and since when they age.

    By default those of a group without members, such as that of a consumer that assigns partitions
    by hand: each from its commit on.
    """

    is_kept: bool = False
    """The group is in use in a way that does not tell which topics it reads: all offsets stay."""
    empty_since_ms: int = 0
    """Wall time before which no offset ages: the group had members until then."""
    topics: frozenset[str] = frozenset()
    """Topics that members subscribe to, whose offsets stay."""
    is_empty_group: bool = False
    """There is a group, and no member is in it or on the way into it."""


class GroupType(enum.Enum):
    """The values are the names that ListGroups shows."""

    CLASSIC = "classic"
    """The members agree among themselves who reads what."""
    CONSUMER = "consumer"
    """The coordinator says who reads what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberDescription:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    group_id: str
    group_type: GroupType = GroupType.CLASSIC
    state: GroupState
    generation: int
    protocol_type: str
    protocol_name: str
    leader: str
    members: tuple[MemberDescription, ...]
