"""What goes into a transaction's state machine and what comes out.

A request is answered under its token, at once or after a write. Tokens mean nothing to the machine
except that two requests never share one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NewType

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.protocol.errors import ErrorCode
from firnmq.brokers.kafka.transactions.snapshot import (
    NO_EPOCH,
    NO_PRODUCER,
    GroupCommits,
    TransactionPartition,
    TransactionSnapshot,
)

Token = NewType("Token", int)
"""Names one request until it is answered."""


# Requests: what clients ask.


@dataclass(frozen=True, slots=True, kw_only=True)
class InitRequest:
    """InitProducerId: a new instance of the producer, which fences the one before."""

    timeout_ms: int
    producer_id: int = NO_PRODUCER
    """What the producer has so far, if it only wants the next epoch."""
    epoch: int = NO_EPOCH
    spare_producer_id: int = NO_PRODUCER
    """A number never used before, for an id that has none or has run out of epochs."""
    owner: str = ""
    """The client that asks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionsRequest:
    producer_id: int
    epoch: int
    partitions: tuple[TransactionPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AddGroupRequest:
    """AddOffsetsToTxn."""

    producer_id: int
    epoch: int
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitOffsetsRequest:
    """TxnOffsetCommit."""

    producer_id: int
    epoch: int
    group: str
    offsets: dict[str, CommittedOffset]
    """By shard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndRequest:
    producer_id: int
    epoch: int
    is_commit: bool


ProducerRequest = AddPartitionsRequest | AddGroupRequest | CommitOffsetsRequest | EndRequest
TransactionRequest = InitRequest | ProducerRequest


# Events.


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    token: Token
    request: TransactionRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The last Save or Erase is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """Whether the last Save or Erase has happened is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkersWritten:
    """Every marker of the last WriteMarkers is durable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """A deadline may have passed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evicted:
    """Another id needs the place of this one, which has no transaction."""


TransactionEvent = Asked | Saved | SaveFailed | MarkersWritten | Tick | Evicted


# Actions.


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    token: Token
    error: ErrorCode = ErrorCode.NONE
    producer_id: int = NO_PRODUCER
    epoch: int = NO_EPOCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """Make both durable in one write. There is at most one Save or Erase at a time."""

    snapshot: TransactionSnapshot
    commits: GroupCommits = field(default_factory=dict)
    """Offsets that become those of their groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Erase:
    """Forget the transactional id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteMarkers:
    """End the producer's transaction in these partitions; some may have their marker already."""

    partitions: tuple[TransactionPartition, ...]
    producer_id: int
    epoch: int
    is_commit: bool


TransactionAction = Reply | Save | Erase | WriteMarkers
