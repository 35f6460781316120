"""Who is in a group: members, promised ids, instance ids, the leader, the protocol they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from firnmq.brokers.kafka.groups.messages import JoinRequest, Token
from firnmq.brokers.kafka.groups.shares import GroupShares
from firnmq.brokers.kafka.groups.snapshot import GroupProtocol, MemberSnapshot
from firnmq.brokers.kafka.protocol.errors import ErrorCode


@dataclass(slots=True, kw_only=True, eq=False)
class Member:
    """One member. Owned and changed by its group's state machine only."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    owner: str = ""

    has_synced: bool = False
    """It was given an assignment once. Until then it has little time, whatever it asked for."""

    assignment: bytes = b""
    """Of the current generation while the group is Stable, else empty."""

    held: bytes = b""
    """The last assignment it was given, which it may go by until it has joined again."""

    join_token: Token | None = None
    """Its parked join. Set only while the group is Preparing."""

    sync_token: Token | None = None
    """Its parked sync. Set only while the group is Completing."""

    session_deadline_ms: int = 0
    """When it counts as crashed unless heard from; of no meaning while a request is parked,
    because a client that waits for us does not send heartbeats."""

    sync_deadline_ms: int | None = None
    """When it must have synced, from being told of a generation until it does."""

    @property
    def is_parked(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata(self, protocol_name: str | None) -> bytes:
        """What it says about itself under one protocol; empty where it does not know it."""
        for protocol in self.protocols:
            if protocol.name == protocol_name:
                return protocol.metadata
        return b""

    def snapshot(self, assignment: bytes) -> MemberSnapshot:
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=assignment,
            owner=self.owner,
        )


def new_member(member_id: str, request: JoinRequest) -> Member:
    return Member(
        member_id=member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        client_host=request.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout_of(request),
        protocols=request.protocols,
        owner=request.owner,
    )


def restored_member(snapshot: MemberSnapshot) -> Member:
    return Member(
        member_id=snapshot.member_id,
        instance_id=snapshot.instance_id,
        client_id=snapshot.client_id,
        client_host=snapshot.client_host,
        session_timeout_ms=snapshot.session_timeout_ms,
        rebalance_timeout_ms=snapshot.rebalance_timeout_ms,
        protocols=snapshot.protocols,
        assignment=snapshot.assignment,
        held=snapshot.assignment,
        owner=snapshot.owner,
        has_synced=True,
    )


MEMBER_BYTES = 1_024
"""Memory of a member with its ids, without the texts that its client chooses."""
PROTOCOL_BYTES = 128
"""Memory of a protocol without its name and metadata."""


def size_of(member: Member | JoinRequest) -> int:
    """Bytes of memory that a member takes, or will take."""
    texts = len(member.client_id) + len(member.instance_id or "")
    protocols = member.protocols
    content = sum(len(each.name) + len(each.metadata) for each in protocols)
    return MEMBER_BYTES + texts + PROTOCOL_BYTES * len(protocols) + content


class Promise(NamedTuple):
    """An id given out with MEMBER_ID_REQUIRED."""

    due_ms: int
    """When it lapses."""
    owner: str
    size: int
    """Bytes that it is counted with."""


def rebalance_timeout_of(request: JoinRequest) -> int:
    if request.rebalance_timeout_ms < 0:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms


class Roster:
    """The members in the order they came. Knows nothing of states and time."""

    def __init__(self, shares: GroupShares) -> None:
        self._shares = shares
        self.members: dict[str, Member] = {}
        self.promised: dict[str, Promise] = {}
        """By member id."""
        self.leader: str | None = None
        self._static: dict[str, str] = {}
        self._support: Counter[str] = Counter()
        """How many members know each protocol; counted once, not again for every join."""

    def __len__(self) -> int:
        return len(self.members)

    def add(self, member: Member) -> None:
        assert member.member_id not in self.members
        self.end_promise(member.member_id)
        self.members[member.member_id] = member
        self._support.update(_names(member.protocols))
        self._shares.add(member.owner, size_of(member))
        if member.instance_id is not None:
            assert member.instance_id not in self._static
            self._static[member.instance_id] = member.member_id

    def remove(self, member_id: str) -> Member:
        member = self.members.pop(member_id)
        self._withdraw(member)
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member_id:
            self.leader = None
        return member

    def update(self, member: Member, request: JoinRequest) -> None:
        """Takes over what a member's new join says."""
        self._withdraw(member)
        self._support.update(_names(request.protocols))
        self._shares.add(request.owner, size_of(request))
        member.owner = request.owner
        member.client_id = request.client_id
        member.client_host = request.client_host
        member.session_timeout_ms = request.session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_of(request)
        member.protocols = request.protocols

    def clear(self) -> None:
        for member_id in list(self.members):
            self.remove(member_id)
        for member_id in list(self.promised):
            self.end_promise(member_id)

    def promise(self, member_id: str, owner: str, due_ms: int) -> None:
        promise = Promise(due_ms, owner, MEMBER_BYTES + len(member_id))
        self.promised[member_id] = promise
        self._shares.add(owner, promise.size)

    def end_promise(self, member_id: str) -> None:
        """Forgets a promised id, if it is one."""
        promise = self.promised.pop(member_id, None)
        if promise is not None:
            self._shares.add(promise.owner, -promise.size)

    def counted_bytes(self, member_id: str | None) -> int:
        """Bytes that a member, or the promise of its id, is counted with."""
        if member_id in self.promised:
            return self.promised[member_id].size
        return size_of(self.members[member_id]) if member_id in self.members else 0

    def _withdraw(self, member: Member) -> None:
        self._shares.add(member.owner, -size_of(member))
        for name in _names(member.protocols):
            self._support[name] -= 1
            if not self._support[name]:
                del self._support[name]

    def rename(self, member_id: str, new_id: str) -> None:
        """Gives a static member the id of its next run; it keeps its place and its office."""
        member = self.members[member_id]
        assert member.instance_id is not None
        assert new_id not in self.members
        self.members = {
            (new_id if key == member_id else key): value for key, value in self.members.items()
        }
        member.member_id = new_id
        self._static[member.instance_id] = new_id
        if self.leader == member_id:
            self.leader = new_id

    def static_id(self, instance_id: str | None) -> str | None:
        return None if instance_id is None else self._static.get(instance_id)

    def identify(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request that names these ids comes from a member of today."""
        if instance_id is not None:
            holder = self._static.get(instance_id)
            if holder is not None and holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def has_others(self, member_id: str | None) -> bool:
        return len(self.members) > (1 if member_id in self.members else 0)

    def suits_others(self, protocols: Iterable[GroupProtocol], *, sender: str | None) -> bool:
        """Whether one of the protocols is known to every member, `sender` left out of account."""
        known = self.members.get(sender) if sender is not None else None
        own = _names(known.protocols) if known is not None else frozenset()
        others = len(self.members) - (known is not None)
        return any(self._support[name] - (name in own) == others for name in _names(protocols))

    def choose_protocol(self) -> str:
        """The shared protocol that most members prefer; on a tie the oldest member decides."""
        shared = {name for name, count in self._support.items() if count == len(self.members)}
        assert shared, "a member without a shared protocol is never let in"
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(p.name for p in member.protocols if p.name in shared)] += 1
        # Counter keeps the order of first votes and max takes the first of equals.
        return max(votes, key=votes.__getitem__)

    def elect_leader(self) -> bool:
        """Keeps the leader if it has joined, else takes the first that has; False if none has."""
        leader = self.members.get(self.leader) if self.leader is not None else None
        if leader is not None and leader.join_token is not None:
            return True
        for member in self.members.values():
            if member.join_token is not None:
                self.leader = member.member_id
                return True
        return False

    def has_all_joined(self) -> bool:
        return not self.promised and all(
            member.join_token is not None for member in self.members.values()
        )

    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def parked_with(self, token: Token) -> Member | None:
        for member in self.members.values():
            if token in (member.join_token, member.sync_token):
                return member
        return None


def _names(protocols: Iterable[GroupProtocol]) -> frozenset[str]:
    return frozenset(protocol.name for protocol in protocols)


def is_unchanged(member: Member, protocols: Iterable[GroupProtocol]) -> bool:
    """Whether the member says about itself what it said when the generation was made."""
    return member.protocols == tuple(protocols)
