"""Transactional batches and markers at the leader of their shard, in a cluster.

The leader asks the coordinator of the transactional id whether the shard is part of the open
transaction, once per transaction. A marker waits for batches that are being judged or queued: what
came after it would belong to no transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

import msgspec

from firnmq.adapter.forwarding import ClusterDriver
from firnmq.brokers.kafka.nodes import KafkaNodes
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.transactions import (
    AddPartitionsRequest,
    Appends,
    TransactionCoordinator,
    TransactionPartition,
)
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.peers import Request, RequestHandler, Served
from firnmq.disk.files import Buffer
from firnmq.engines import Acks, Appended
from firnmq.errors import NotLeader
from firnmq.record import parse_header

JUDGE: Final = "txn_judge"
SUBMIT: Final = "txn_submit"
MARKER: Final = "append_marker"

_JUDGE_S = 10.0
_SLACK_S = 1.0
_VERIFIED_MAX = 100_000

_Judge = tuple[str, int, int, str, str]
"""Transactional id, producer id, epoch, shard, and the topic with which the shard becomes part of
the transaction if it is not; empty: it must be."""
_Submit = tuple[str, int, int, str | None, str]
"""Shard, acks, how long the sender waits in ms, transactional id, the same topic."""
_Marker = tuple[str, int, int, bool]
Outcome = Appended | ErrorCode
DriverOf = Callable[[str], ClusterDriver | None]
"""The driver of a shard; None if the shard is not known."""


class TransactionGate:
    """Used from the broker's event loop."""

    def __init__(
        self, cluster: Cluster, nodes: KafkaNodes, transactions: TransactionCoordinator
    ) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._transactions = transactions
        self._appends: dict[tuple[str, int], Appends] = {}
        """By shard and producer: batches that are being judged or queued."""
        self._verified: dict[tuple[str, int], tuple[str, int, int]] = {}
        """By shard and producer: transactional id and epoch of the open transaction, and the epoch
        of the shard's leader. A marker that another leader has written is not known here."""
        self._loop = asyncio.get_running_loop()

    def serve(self, drivers: DriverOf) -> dict[str, RequestHandler]:
        """What other nodes ask, by operation."""
        self._driver_of = drivers
        return {JUDGE: self._begin_judge, SUBMIT: self._begin_submit, MARKER: self._begin_marker}

    # Batches ----------------------------------------------------------------------------------

    async def submit(
        self,
        driver: ClusterDriver,
        shard: str,
        batch: Buffer,
        acks: Acks,
        deadline_s: float,
        transactional_id: str | None,
        adds: str = "",
    ) -> Awaitable[Outcome] | ErrorCode:
        """Queues a transactional batch with its shard's leader; what it returns waits until the
        batch is acknowledged, or was refused there. `adds` names the topic if the shard may become
        part of the transaction by this batch."""
        if not driver.leads(shard):
            left_s = max(deadline_s - monotonic(), 0.0)
            arguments = (shard, int(acks), int(left_s * 1000), transactional_id, adds)
            return self._cluster.network.call(
                driver.leader_for_appends(shard),
                SUBMIT,
                msgspec.msgpack.encode(arguments),
                _outcome,
                raw=(batch,),
                timeout_s=left_s + _SLACK_S,
                lane=shard,
            )
        header = parse_header(batch)
        judged = await self._judge(
            transactional_id,
            header.producer_id,
            header.producer_epoch,
            driver.leader_epoch(shard),
            shard,
            adds,
        )
        if isinstance(judged, ErrorCode):
            return judged
        with judged:
            return await driver.local.submit(shard, batch, acks, deadline_s)

    async def _judge(
        self,
        transactional_id: str | None,
        producer_id: int,
        epoch: int,
        leader_epoch: int,
        shard: str,
        adds: str,
    ) -> ErrorCode | Appends:
        if transactional_id is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        key = (shard, producer_id)
        appends = self._appends.get(key)
        if appends is None:
            appends = self._appends[key] = Appends()
        if self._verified.get(key) == (transactional_id, epoch, leader_epoch):
            return appends
        with appends:  # A marker that comes now waits for the answer.
            code = await self._ask(transactional_id, producer_id, epoch, shard, adds)
            if code is not ErrorCode.NONE:
                return code
            if len(self._verified) >= _VERIFIED_MAX:
                self._verified.clear()
            self._verified[key] = (transactional_id, epoch, leader_epoch)
        return appends

    async def _ask(
        self, transactional_id: str, producer_id: int, epoch: int, shard: str, adds: str
    ) -> ErrorCode:
        node = await self._nodes.other_coordinator(transactional_id)
        if node is None:
            return await self._judge_here(transactional_id, producer_id, epoch, shard, adds)
        return await self._cluster.network.call(
            node,
            JUDGE,
            msgspec.msgpack.encode((transactional_id, producer_id, epoch, shard, adds)),
            _code,
            timeout_s=_JUDGE_S,
        )

    async def _judge_here(
        self, transactional_id: str, producer_id: int, epoch: int, shard: str, adds: str
    ) -> ErrorCode:
        judged = self._transactions.judge_append(transactional_id, producer_id, epoch, shard)
        if not isinstance(judged, ErrorCode):
            return ErrorCode.NONE
        if judged is not ErrorCode.INVALID_TXN_STATE or not adds:
            return judged
        request = AddPartitionsRequest(
            producer_id=producer_id,
            epoch=epoch,
            partitions=(TransactionPartition(topic=adds, shard=shard),),
        )
        added = await self._transactions.add_partitions(transactional_id, request)
        if added is not ErrorCode.NONE:
            return added
        judged = self._transactions.judge_append(transactional_id, producer_id, epoch, shard)
        return judged if isinstance(judged, ErrorCode) else ErrorCode.NONE

    # Markers ----------------------------------------------------------------------------------

    async def write_marker(
        self, driver: ClusterDriver, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended:
        """Ends a transaction in a shard, after every batch that was taken for it."""
        if not driver.leads(shard):
            return await driver.append_marker(shard, producer_id, epoch, is_commit=is_commit)
        key = (shard, producer_id)
        while True:
            # From here on batches are judged again, and refused: the transaction is decided.
            self._verified.pop(key, None)
            appends = self._appends.get(key)
            if appends is None or appends.is_idle:
                break
            await appends.wait_idle()
        self._appends.pop(key, None)
        return await driver.local.append_marker(shard, producer_id, epoch, is_commit=is_commit)

    # Other nodes ------------------------------------------------------------------------------

    async def _begin_judge(self, request: Request) -> Awaitable[Served]:
        asked = msgspec.msgpack.decode(request.arguments, type=_Judge)

        async def judge() -> Served:
            return Served(msgspec.msgpack.encode(int(await self._judge_here(*asked))))

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(judge(), self._loop))

    async def _begin_submit(self, request: Request) -> Awaitable[Served]:
        shard, acks, waits_ms, transactional_id, adds = msgspec.msgpack.decode(
            request.arguments, type=_Submit
        )
        deadline_s = monotonic() + waits_ms / 1000

        async def begin() -> asyncio.Task[Served]:
            driver = self._led_here(shard)
            begun = await self.submit(
                driver, shard, request.raw, Acks(acks), deadline_s, transactional_id, adds
            )
            return self._loop.create_task(finish(begun))

        async def finish(begun: Awaitable[Outcome] | ErrorCode) -> Served:
            outcome = begun if isinstance(begun, ErrorCode) else await begun
            value = int(outcome) if isinstance(outcome, ErrorCode) else outcome
            return Served(msgspec.msgpack.encode(value))

        async def wait(task: asyncio.Task[Served]) -> Served:
            return await task

        task = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(begin(), self._loop))
        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(wait(task), self._loop))

    async def _begin_marker(self, request: Request) -> Awaitable[Served]:
        shard, producer_id, epoch, is_commit = msgspec.msgpack.decode(
            request.arguments, type=_Marker
        )

        async def append() -> Served:
            driver = self._led_here(shard)
            appended = await self.write_marker(
                driver, shard, producer_id, epoch, is_commit=is_commit
            )
            return Served(msgspec.msgpack.encode(appended))

        return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(append(), self._loop))

    def _led_here(self, shard: str) -> ClusterDriver:
        driver = self._driver_of(shard)
        if driver is None or not driver.leads(shard):
            raise NotLeader(shard, self._cluster.node, None)
        return driver


def _outcome(value: memoryview, raw: memoryview) -> Outcome:
    decoded = msgspec.msgpack.decode(value, type=int | list[int])
    return ErrorCode(decoded) if isinstance(decoded, int) else Appended(*decoded)


def _code(value: memoryview, raw: memoryview) -> ErrorCode:
    return ErrorCode(msgspec.msgpack.decode(value, type=int))
