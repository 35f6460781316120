"""What of a consumer group survives a restart. No deadlines are in it, as with classic groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from firnmq.brokers.kafka.groups.consumer.messages import Partitions
from firnmq.brokers.kafka.groups.consumer.state import MemberState
from firnmq.brokers.kafka.groups.snapshot import GroupProtocol

CONSUMER: Final = "consumer"

Packed = dict[str, list[int]]
"""Topic id to indexes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassicSideSnapshot:
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerMemberSnapshot:
    member_id: str
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    owner: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    pattern: str
    matched: tuple[str, ...]
    assignor: str | None
    classic: ClassicSideSnapshot | None
    state: MemberState
    epoch: int
    previous_epoch: int
    assigned: Packed
    revoking: Packed
    target: Packed


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerGroupSnapshot:
    """`type` tells it from a classic group's, which has no such field."""

    type: str = CONSUMER
    epoch: int
    target_epoch: int
    members: tuple[ConsumerMemberSnapshot, ...]
    empty_since_ms: int = 0
    """Wall time at which the last member went; 0 with members, and where it was not noted."""


def pack(partitions: Partitions) -> Packed:
    """Sorted, so that equal sets are equal bytes."""
    packed: Packed = {}
    for topic_id, index in sorted(partitions):
        packed.setdefault(topic_id, []).append(index)
    return packed


def unpack(packed: Packed) -> Partitions:
    return frozenset(_places(packed))


def _places(packed: Packed) -> Iterable[tuple[str, int]]:
    return ((topic_id, index) for topic_id, indexes in packed.items() for index in indexes)
