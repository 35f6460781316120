"""At a shard's leader no batch of a transaction comes after the transaction's marker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from firnmq.adapter.forwarding import ClusterDriver
from firnmq.brokers.kafka.nodes import OneNode
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.transaction_gate import TransactionGate
from firnmq.brokers.net.address import Address
from firnmq.engines import Acks, Appended
from firnmq.record import NewRecord, encode

_ID, _PRODUCER, _EPOCH = "id", 7, 0
_SHARD = "t_0"


class _Nodes(OneNode):
    """Every id is coordinated by node 2."""

    def __init__(self) -> None:
        super().__init__(1, "c", Address("h", 1))

    async def other_coordinator(self, name: str) -> int | None:
        return 2


class _Coordinator:
    """Node 2: its answers come when the test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[ErrorCode]] = []

    @property
    def network(self) -> _Coordinator:
        return self

    def call(self, *arguments: Any, **options: Any) -> asyncio.Future[ErrorCode]:
        self.asked.append(asyncio.get_running_loop().create_future())
        return self.asked[-1]


class _Driver:
    """A log that notes what is appended, in order."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.epoch = 0

    @property
    def local(self) -> _Driver:
        return self

    def leads(self, shard: str) -> bool:
        return True

    def leader_epoch(self, shard: str) -> int:
        return self.epoch

    async def submit(self, *arguments: Any) -> Awaitable[Appended]:
        self.log.append("batch")
        done: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        done.set_result(Appended(0, 1))
        return done

    async def append_marker(self, *arguments: Any, **options: Any) -> Appended:
        self.log.append("marker")
        return Appended(1, 2)


class _Scene:
    def __init__(self) -> None:
        self.coordinator, self.driver = _Coordinator(), _Driver()
        self.gate = TransactionGate(cast(Any, self.coordinator), _Nodes(), cast(Any, None))
        self.batch = encode([NewRecord(value=b"v")], now_ms=0, producer_id=_PRODUCER)

    async def submit(self) -> Any:
        return await self.gate.submit(
            cast(ClusterDriver, self.driver), _SHARD, self.batch, Acks.ALL, 1e9, _ID
        )

    async def end(self) -> Appended:
        return await self.gate.write_marker(
            cast(ClusterDriver, self.driver), _SHARD, _PRODUCER, _EPOCH, is_commit=True
        )


async def _turns() -> None:
    """Lets every task go on as far as it can."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        turn: asyncio.Future[None] = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


@pytest.fixture
async def scene() -> _Scene:
    return _Scene()


async def test_a_marker_waits_for_a_batch_that_is_being_judged(scene: _Scene) -> None:
    submitting = asyncio.create_task(scene.submit())
    await _turns()
    ending = asyncio.create_task(scene.end())
    await _turns()
    assert scene.driver.log == []
    scene.coordinator.asked[0].set_result(ErrorCode.NONE)
    await asyncio.gather(submitting, ending)
    assert scene.driver.log == ["batch", "marker"]


async def test_the_coordinator_is_asked_once_per_transaction(scene: _Scene) -> None:
    first = asyncio.create_task(scene.submit())
    await _turns()
    scene.coordinator.asked[0].set_result(ErrorCode.NONE)
    await first
    await scene.submit()
    assert len(scene.coordinator.asked) == 1
    await scene.end()
    again = asyncio.create_task(scene.submit())
    await _turns()
    assert len(scene.coordinator.asked) == 2
    scene.coordinator.asked[1].set_result(ErrorCode.INVALID_TXN_STATE)
    assert await again is ErrorCode.INVALID_TXN_STATE
    assert scene.driver.log == ["batch", "batch", "marker"]


async def test_an_answer_from_before_the_marker_does_not_count_after_it(scene: _Scene) -> None:
    submitting = asyncio.create_task(scene.submit())
    await _turns()
    ending = asyncio.create_task(scene.end())
    await _turns()
    scene.coordinator.asked[0].set_result(ErrorCode.NONE)
    await asyncio.gather(submitting, ending)
    again = asyncio.create_task(scene.submit())
    await _turns()
    assert len(scene.coordinator.asked) == 2  # Not taken on the answer from before.
    scene.coordinator.asked[1].set_result(ErrorCode.NONE)
    await again


async def test_a_batch_without_a_transactional_id_is_refused(scene: _Scene) -> None:
    begun = await scene.gate.submit(
        cast(ClusterDriver, scene.driver), _SHARD, scene.batch, Acks.ALL, 1e9, None
    )
    assert begun is ErrorCode.INVALID_PRODUCER_ID_MAPPING
