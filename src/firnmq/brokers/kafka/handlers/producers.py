"""InitProducerId: numbers for idempotent producers, and epochs for transactional ones."""

from __future__ import annotations

from collections.abc import Hashable

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.handlers.transactions import fenced_code
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from firnmq.brokers.kafka.transactions import InitRequest, TransactionCoordinator
from firnmq.errors import FirnError

_FENCED_FIRST_VERSION = 4
"""Clients that speak less know only INVALID_PRODUCER_EPOCH."""


class ProducerHandler:
    def __init__(self, ids: ProducerIds, transactions: TransactionCoordinator) -> None:
        self._ids = ids
        self._transactions = transactions

    async def init_producer_id(
        self,
        request: InitProducerIdRequest,
        version: int,
        owner: str,
        connection: Hashable | None,
    ) -> InitProducerIdResponse:
        """A new id; only a transactional producer can show that an id is its own and keep it."""
        try:
            if request.transactional_id is not None:
                return await self._init_transactional(request, version, owner, connection)
            return InitProducerIdResponse(producer_id=await self._ids.take(), producer_epoch=0)
        except FirnError as error:
            return InitProducerIdResponse(error_code=code_of(error), producer_epoch=-1)

    async def _init_transactional(
        self,
        request: InitProducerIdRequest,
        version: int,
        owner: str,
        connection: Hashable | None,
    ) -> InitProducerIdResponse:
        if (request.producer_id < 0) is not (request.producer_epoch < 0):
            return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_epoch=-1)
        assert request.transactional_id is not None
        reply = await self._transactions.init(
            request.transactional_id,
            InitRequest(
                timeout_ms=request.transaction_timeout_ms,
                producer_id=request.producer_id,
                epoch=request.producer_epoch,
            ),
            owner,
            connection,
        )
        return InitProducerIdResponse(
            error_code=fenced_code(reply.error, version, _FENCED_FIRST_VERSION),
            producer_id=reply.producer_id,
            producer_epoch=reply.epoch,
        )
