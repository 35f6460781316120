"""What members of a consumer group send, what they are told, and what they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from firnmq.brokers.kafka.protocol.errors import ErrorCode

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
PAUSE_EPOCH: Final = -2
"""A static member leaves and will come back: its partitions stay its own until its session ends."""

Partition: TypeAlias = tuple[str, int]
"""Topic id and index."""
Partitions: TypeAlias = frozenset[Partition]
NO_PARTITIONS: Final[Partitions] = frozenset()


def sees_all(name: str) -> bool:
    return True


class InvalidPattern(Exception):
    """A regular expression that is refused; the text says why."""


class TopicSize(NamedTuple):
    topic_id: str
    partition_count: int


class Topics(Protocol):
    """The topics there are, as they are whenever one looks."""

    @property
    def revision(self) -> int:
        """Another number after each change of a topic."""

    def find(self, name: str) -> TopicSize | None: ...

    def name_of(self, topic_id: str) -> str | None: ...

    def matching(self, pattern: str) -> frozenset[str]:
        """Names that a regular expression matches as a whole; InvalidPattern if it is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeat:
    """ConsumerGroupHeartbeat: to join, to tell what has changed, to stay and to leave.

    None stands for what is as it was in the member's last heartbeat.
    """

    member_id: str
    epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topic_names: frozenset[str] | None = None
    pattern: str | None = None
    """A regular expression; empty is none."""
    assignor: str | None = None
    owned: Partitions | None = None
    client_id: str = ""
    client_host: str = ""
    owner: str = ""
    """Whom the member's bytes are counted for: the authenticated user, or the address."""
    sees: Callable[[str], bool] = sees_all
    """Which topics the pattern may find: those that the client may describe."""

    @property
    def is_full(self) -> bool:
        """It tells everything, so that its sender may not know what it was told last."""
        has_topics = self.topic_names is not None or self.pattern is not None
        return self.rebalance_timeout_ms is not None and has_topics and self.owned is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerHeartbeatReply:
    error: ErrorCode
    message: str | None = None
    member_id: str | None = None
    epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Partitions | None = None
    """What the member may read; None if that is what it was told last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchCheck:
    """May the member be told the committed offsets?"""

    member_id: str
    epoch: int


# Descriptions.


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberDescription:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    pattern: str
    assigned: Partitions
    target: Partitions
    is_classic: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupDescription:
    group_id: str
    state: str
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[ConsumerMemberDescription, ...]
