"""Replication of segments as synchronous state machines: `handle(event, now)` returns actions.

No I/O, clock or randomness inside. docs/design/0016-replication-core.md describes the parts.
"""

from firnmq.cluster.replication.following.replica import Replica
from firnmq.cluster.replication.leading.leader import Leader
from firnmq.cluster.replication.leading.state import Refusal
from firnmq.cluster.replication.node import Node
from firnmq.cluster.replication.sealing.controller import Controller
from firnmq.cluster.replication.sealing.seal import Seal
from firnmq.cluster.replication.values import (
    Acks,
    Durability,
    Member,
    Placement,
    ReplicatedSegment,
    ReplicationConfig,
    SegmentId,
)

__all__ = [
    "Acks",
    "Controller",
    "Durability",
    "Leader",
    "Member",
    "Node",
    "Placement",
    "Refusal",
    "Replica",
    "ReplicatedSegment",
    "ReplicationConfig",
    "Seal",
    "SegmentId",
]
