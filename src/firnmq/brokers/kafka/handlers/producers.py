"""InitProducerId for idempotent producers."""

from __future__ import annotations

import asyncio

from firnmq.brokers.kafka.failures import code_of
from firnmq.brokers.kafka.producer_ids import ProducerIds
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.protocol.messages.transactions import (
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from firnmq.errors import FirnError

_EPOCH_MAX = 2**15 - 1


class ProducerHandler:
    def __init__(self, ids: ProducerIds) -> None:
        self._ids = ids

    async def init_producer_id(self, request: InitProducerIdRequest) -> InitProducerIdResponse:
        """A new id, or the next epoch for a producer that has one and lost track."""
        if request.transactional_id is not None:
            return InitProducerIdResponse(
                error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=-1
            )
        if request.producer_id >= 0 and 0 <= request.producer_epoch < _EPOCH_MAX:
            return InitProducerIdResponse(
                producer_id=request.producer_id, producer_epoch=request.producer_epoch + 1
            )
        try:
            loop = asyncio.get_running_loop()
            producer_id = await loop.run_in_executor(None, self._ids.new)
        except FirnError as error:
            return InitProducerIdResponse(error_code=code_of(error), producer_epoch=-1)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
