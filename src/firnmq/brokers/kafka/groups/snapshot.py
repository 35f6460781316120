"""What of a classic group survives a restart.

No deadlines are in it: after a restart every member has its whole session time-out to be heard
from.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupProtocol:
    """A protocol a member supports, with what the member says about itself under it.

    For consumers the name is an assignor's and the metadata a subscription; the coordinator
    passes both on unread.
    """

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    """All of them, not only the chosen one: a member that joins again unchanged after a restart
    must be recognised as unchanged."""
    assignment: bytes
    owner: str = ""
    """The client that the member counts for in limits per client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group that is Stable, or Empty where it has no members."""

    generation: int
    protocol_type: str | None
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...]
    empty_since_ms: int = 0
    """Wall time at which the last member went; 0 with members, and where it was not noted."""
