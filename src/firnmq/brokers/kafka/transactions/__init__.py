"""Transactions: a state machine per transactional id, and the coordinator that drives them."""

from firnmq.brokers.kafka.transactions.config import TransactionConfig
from firnmq.brokers.kafka.transactions.coordinator import (
    Appends,
    MarkerWriter,
    TransactionCoordinator,
    TransactionStatistics,
)
from firnmq.brokers.kafka.transactions.machine import Transaction
from firnmq.brokers.kafka.transactions.messages import (
    AddGroupRequest,
    AddPartitionsRequest,
    CommitOffsetsRequest,
    EndRequest,
    InitRequest,
)
from firnmq.brokers.kafka.transactions.snapshot import (
    GroupCommits,
    TransactionPartition,
    TransactionSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.transactions.state import IllegalTransition, TransactionState
from firnmq.brokers.kafka.transactions.store import (
    KvTransactionStore,
    TransactionStore,
    saved_transactional_ids,
)

__all__ = [
    "AddGroupRequest",
    "AddPartitionsRequest",
    "Appends",
    "CommitOffsetsRequest",
    "EndRequest",
    "GroupCommits",
    "IllegalTransition",
    "InitRequest",
    "KvTransactionStore",
    "MarkerWriter",
    "Transaction",
    "TransactionConfig",
    "TransactionCoordinator",
    "TransactionPartition",
    "TransactionSnapshot",
    "TransactionState",
    "TransactionStatistics",
    "TransactionStore",
    "decode_snapshot",
    "encode_snapshot",
    "saved_transactional_ids",
]
