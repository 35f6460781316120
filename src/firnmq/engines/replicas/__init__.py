"""Replicas of segments on this node: what the driver of replication may do with logs."""

from firnmq.engines.replicas.api import ReplicaBytes, Replicas
from firnmq.engines.replicas.checking import check_batches
from firnmq.engines.shardlog.replica import (
    Checked,
    Reached,
    ReplicaEnd,
    ReplicaFailed,
    ReplicaId,
    ReplicaListener,
    SealFacts,
)

__all__ = [
    "Checked",
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
