"""ListTransactions and DescribeTransactions: what tools that look for hanging ones ask."""

from __future__ import annotations

from typing import Final

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.tools import (
    DescribedTransactionState,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListedTransactionState,
    ListTransactionsRequest,
    ListTransactionsResponse,
    TransactionTopicData,
)
from firnmq.brokers.kafka.transactions import (
    TransactionCoordinator,
    TransactionSnapshot,
    TransactionState,
)
from firnmq.brokers.net.loop_turns import Turns
from firnmq.clock import Clock

_STATES: Final = frozenset(state.value for state in TransactionState)
_OPEN: Final = frozenset(
    {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    }
)


class TransactionLookup:
    def __init__(self, transactions: TransactionCoordinator, clock: Clock, turns: Turns) -> None:
        self._transactions = transactions
        self._clock = clock
        self._turns = turns

    async def list(self, request: ListTransactionsRequest) -> ListTransactionsResponse:
        states, producers = set(request.state_filters), set(request.producer_id_filters)
        found = []
        async for transactional_id, snapshot in self._turns.over(self._transactions.snapshots()):
            is_old = snapshot.state in _OPEN and (
                self._clock.age_ms(snapshot.started_ms) >= request.duration_filter
            )
            if (
                (not states or snapshot.state.value in states)
                and (not producers or snapshot.producer_id in producers)
                and (request.duration_filter < 0 or is_old)
            ):
                found.append(
                    ListedTransactionState(
                        transactional_id=transactional_id,
                        producer_id=snapshot.producer_id,
                        transaction_state=snapshot.state.value,
                    )
                )
        return ListTransactionsResponse(
            unknown_state_filters=sorted(states - _STATES), transaction_states=found
        )

    async def describe(self, request: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        described = []
        async for transactional_id in self._turns.distinct(request.transactional_ids):
            snapshot = self._transactions.snapshot_of(transactional_id)
            if snapshot is None:
                described.append(
                    DescribedTransactionState(
                        error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
                        transactional_id=transactional_id,
                    )
                )
            else:
                described.append(await self._describe(transactional_id, snapshot))
        return DescribeTransactionsResponse(transaction_states=described)

    async def _describe(
        self, transactional_id: str, snapshot: TransactionSnapshot
    ) -> DescribedTransactionState:
        is_open = snapshot.state in _OPEN
        topics: dict[str, list[int]] = {}
        async for each in self._turns.over(snapshot.partitions if is_open else ()):
            topics.setdefault(each.topic, []).append(int(each.shard.rpartition("_")[2]))
        return DescribedTransactionState(
            transactional_id=transactional_id,
            transaction_state=snapshot.state.value,
            transaction_timeout_ms=snapshot.timeout_ms,
            transaction_start_time_ms=snapshot.started_ms if is_open else -1,
            producer_id=snapshot.producer_id,
            producer_epoch=snapshot.epoch,
            topics=[
                TransactionTopicData(topic=name, partitions=sorted(indexes))
                for name, indexes in topics.items()
            ],
        )
