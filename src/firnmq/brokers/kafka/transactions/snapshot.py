"""What of a transactional id survives a restart, and its bytes. docs/formats/state.md has both."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import msgspec

from firnmq.adapter import CommittedOffset
from firnmq.brokers.kafka.transactions.state import TransactionState
from firnmq.errors import Corruption

NO_EPOCH = -1
NO_PRODUCER = -1
EPOCH_MAX = 2**15 - 1

ShardOffsets = dict[str, CommittedOffset]
"""Shard → offset. Never changed: a transaction that gets more offsets has a new one."""
GroupCommits = dict[str, ShardOffsets]
"""Group → shard → offset."""


class TransactionPartition(NamedTuple):
    """A partition in a transaction. The shard's name is never used again, the topic's may be."""

    topic: str
    shard: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSnapshot:
    """A transactional id with its producer and its transaction."""

    producer_id: int
    epoch: int
    last_producer_id: int = NO_PRODUCER
    """The id before its epochs ran out."""
    last_epoch: int = NO_EPOCH
    """The epoch a producer named when it asked for this one: it may ask again."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: tuple[TransactionPartition, ...] = ()
    groups: tuple[str, ...] = ()
    """Groups whose offsets may be committed with the transaction."""
    offsets: GroupCommits = field(default_factory=dict)
    """Offsets that become the groups' own in the same write as the decision to commit."""
    started_ms: int = 0
    updated_ms: int = 0
    owner: str = ""
    """The client that began the id, for limits per client."""
    has_begun: bool = True
    """Whether the id has ever had a transaction. Ids of earlier versions count as if they had."""

    def seen_at(self, now_ms: int) -> TransactionSnapshot:
        """The same, with times in the future counting as now: the clock was set back since."""
        started_ms, updated_ms = min(self.started_ms, now_ms), min(self.updated_ms, now_ms)
        return replace(self, started_ms=started_ms, updated_ms=updated_ms)


_decoder = msgspec.msgpack.Decoder(TransactionSnapshot)


def encode_snapshot(snapshot: TransactionSnapshot) -> bytes:
    """The snapshot as MessagePack."""
    return msgspec.msgpack.encode(snapshot)


def decode_snapshot(data: bytes, *, transactional_id: str = "") -> TransactionSnapshot:
    """The snapshot in `data`; raises Corruption where there is none."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        where = f"transactional id {transactional_id!r}"
        raise Corruption(f"not a transaction: {error}", where=where) from error
