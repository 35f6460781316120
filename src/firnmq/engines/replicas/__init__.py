"""Replicas of segments on this node: what the driver of replication may do with logs."""

from firnmq.engines.replicas.api import (
    Checked,
    Done,
    Reached,
    ReplicaBytes,
    ReplicaEnd,
    ReplicaFailed,
    ReplicaId,
    ReplicaListener,
    Replicas,
    SealFacts,
)
from firnmq.engines.replicas.checking import check_batches

__all__ = [
    "Checked",
    "Done",
    "Reached",
    "ReplicaBytes",
    "ReplicaEnd",
    "ReplicaFailed",
    "ReplicaId",
    "ReplicaListener",
    "Replicas",
    "SealFacts",
    "check_batches",
]
