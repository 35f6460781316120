"""Offsets of groups in transactions, where group and transactional id have different coordinators.

The transaction keeps the offsets until it is decided, and writes those of other nodes' groups into
an outbox in the same write as the decision. They are delivered before the transaction completes,
however often that takes; the group's node applies each delivery once. A group that was ever in a
transaction of another node asks that node what is pending before it answers clients that want
stable offsets.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from firnmq.adapter import CommittedOffset, OffsetRows
from firnmq.brokers.kafka.nodes import KafkaNodes
from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.transactions import (
    AddGroupRequest,
    CommitOffsetsRequest,
    KvTransactionStore,
    TransactionCoordinator,
    TransactionSnapshot,
)
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.peers import Request, RequestHandler, Served
from firnmq.disk import Family
from firnmq.errors import FirnError

_OUTBOX, _AFTER_OUTBOX = b"x", b"y"
_SOURCES = b"y"
_APPLIED = b"t"
_TIMEOUT_S = 10.0

COMMIT: Final = "txn_offsets"
DELIVER: Final = "txn_deliver"
PENDING: Final = "txn_pending"

Offsets = dict[str, CommittedOffset]
"""By shard."""


class Outbox(msgspec.Struct, frozen=True):
    """What a transaction has to deliver to other nodes."""

    token: str
    """Names the delivery: a group applies each once."""
    offsets: dict[str, Offsets]
    """By group."""


class _Commit(msgspec.Struct, frozen=True, array_like=True):
    transactional_id: str
    request: CommitOffsetsRequest
    adds: bool


class _Delivery(msgspec.Struct, frozen=True, array_like=True):
    transactional_id: str
    token: str
    """Empty: the last delivery will not be repeated."""
    group: str
    offsets: Offsets


class SpreadOffsets:
    """A TransactionStore, and the two sides of what it delivers. Used from one event loop."""

    def __init__(self, cluster: Cluster, nodes: KafkaNodes, rows: OffsetRows) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._rows = rows
        self._kv = rows.kv
        self._store = KvTransactionStore(rows)
        self._outboxes: dict[str, Outbox] = {}
        """By transactional id."""
        self._sources: dict[str, frozenset[int]] = {}
        """By group: other nodes with transactions that have committed offsets of it."""
        self._loop = asyncio.get_running_loop()
        self._transactions: TransactionCoordinator

    def serve(self, transactions: TransactionCoordinator) -> dict[str, RequestHandler]:
        """What other nodes ask, by operation."""
        self._transactions = transactions
        return {
            COMMIT: self._on_loop(self._commit_asked),
            DELIVER: self._on_loop(self._deliver_asked),
            PENDING: self._on_loop(self._pending_asked),
        }

    # The transaction's node -------------------------------------------------------------------

    async def save(
        self,
        transactional_id: str,
        snapshot: TransactionSnapshot,
        commits: Mapping[str, Mapping[str, CommittedOffset]],
    ) -> None:
        """Saves the decision with what it has to deliver: both or neither survive a crash."""
        here: dict[str, Mapping[str, CommittedOffset]] = {}
        elsewhere: dict[str, Offsets] = {}
        for group, offsets in commits.items():
            if await self._nodes.other_coordinator(group) is None:
                here[group] = offsets
            else:
                elsewhere[group] = dict(offsets)
        extra = []
        if elsewhere:
            outbox = Outbox(uuid.uuid4().hex, elsewhere)
            extra.append((_OUTBOX + transactional_id.encode(), msgspec.msgpack.encode(outbox)))
            # Pending from before the decision on: the transaction's own list is empty after it.
            self._outboxes[transactional_id] = outbox
        try:
            await self._store.save(transactional_id, snapshot, here, extra)
        except BaseException:
            if elsewhere:
                self._outboxes.pop(transactional_id, None)
            raise

    async def load_all(self) -> Mapping[str, TransactionSnapshot]:
        def read() -> dict[str, Outbox]:
            rows = self._kv.items(Family.STATE, _OUTBOX, _AFTER_OUTBOX)
            return {
                key[len(_OUTBOX) :].decode(): msgspec.msgpack.decode(value, type=Outbox)
                for key, value in rows
            }

        self._outboxes = await self._loop.run_in_executor(None, read)
        return await self._store.load_all()

    async def delete(self, transactional_id: str) -> None:
        await self._store.delete(transactional_id)

    async def deliver(self, transactional_id: str) -> None:
        """Gives the groups of other nodes their offsets. Raises if one cannot be reached; what was
        delivered before is applied once all the same."""
        outbox = self._outboxes.get(transactional_id)
        if outbox is None:
            return
        nodes: dict[str, int] = {}
        for group, offsets in outbox.offsets.items():
            node = await self._nodes.other_coordinator(group)
            assert node is not None, "a group never changes its node"
            nodes[group] = node
            delivery = _Delivery(transactional_id, outbox.token, group, offsets)
            await self._ask(node, DELIVER, delivery, _nothing)

        def forget() -> None:
            with self._kv.batch() as batch:
                batch.delete(Family.STATE, _OUTBOX + transactional_id.encode())
            self._kv.sync()

        await self._loop.run_in_executor(None, forget)
        self._outboxes.pop(transactional_id, None)
        for group, node in nodes.items():
            # The token is not needed any more. One that stays is replaced by the next delivery.
            with suppress(FirnError):
                await self._ask(node, DELIVER, _Delivery(transactional_id, "", group, {}), _nothing)

    async def _commit_asked(self, request: Request) -> bytes:
        asked = msgspec.msgpack.decode(request.arguments, type=_Commit)
        code = await commit_adding(
            self._transactions, asked.transactional_id, asked.request, adds=asked.adds
        )
        return msgspec.msgpack.encode(int(code))

    async def _pending_asked(self, request: Request) -> bytes:
        group = msgspec.msgpack.decode(request.arguments, type=str)
        shards = {shard for each in self._transactions.pending_offsets(group) for shard in each}
        for outbox in self._outboxes.values():
            shards.update(outbox.offsets.get(group, ()))
        return msgspec.msgpack.encode(list(shards))

    # The group's node -------------------------------------------------------------------------

    async def commit_offsets(
        self, transactional_id: str, request: CommitOffsetsRequest, *, adds: bool
    ) -> ErrorCode:
        """Keeps offsets with a transaction, wherever it is coordinated; `adds`: also if its group
        is not part of it yet."""
        node = await self._nodes.other_coordinator(transactional_id)
        if node is None:
            return await commit_adding(self._transactions, transactional_id, request, adds=adds)
        await self._note_source(request.group, node)
        asked = _Commit(transactional_id, request, adds)
        code: ErrorCode = await self._ask(node, COMMIT, asked, _code)
        return code

    async def pending(self, group: str) -> list[list[str]]:
        """Shards whose offset a transaction of another node is about to change. NodeUnavailable if
        such a node cannot be asked: then what becomes of its transactions is unknown."""
        sources = await self._sources_of(group)
        return [await self._ask(node, PENDING, group, _shards) for node in sorted(sources)]

    async def _deliver_asked(self, request: Request) -> bytes:
        delivery = msgspec.msgpack.decode(request.arguments, type=_Delivery)
        key = _APPLIED + f"{delivery.group}\0{delivery.transactional_id}".encode()

        def apply() -> None:
            if not delivery.token:
                with self._kv.batch() as batch:
                    batch.delete(Family.STATE, key)
                return
            with self._kv.row_lock:
                if self._kv.get(Family.STATE, key) == delivery.token.encode():
                    return
                rows = self._rows.put(delivery.group, delivery.offsets, is_decided=True)
                rows.append((key, delivery.token.encode()))
                with self._kv.batch() as batch:
                    batch.put_many(Family.STATE, rows)
            self._kv.sync()

        await self._loop.run_in_executor(None, apply)
        return msgspec.msgpack.encode(None)

    async def _sources_of(self, group: str) -> frozenset[int]:
        known = self._sources.get(group)
        if known is None:
            stored = await self._loop.run_in_executor(
                None, self._kv.get, Family.STATE, _SOURCES + group.encode()
            )
            known = frozenset(msgspec.msgpack.decode(stored) if stored else ())
            if len(self._sources) >= 100_000:
                self._sources.clear()
            self._sources[group] = known
        return known

    async def _note_source(self, group: str, node: int) -> None:
        known = await self._sources_of(group)
        if node in known:
            return
        after = known | {node}

        def write() -> None:
            with self._kv.batch() as batch:
                packed = msgspec.msgpack.encode(sorted(after))
                batch.put(Family.STATE, _SOURCES + group.encode(), packed)
            self._kv.sync()

        await self._loop.run_in_executor(None, write)
        self._sources[group] = after | self._sources.get(group, frozenset())

    # Asking -----------------------------------------------------------------------------------

    async def _ask(
        self, node: int, operation: str, arguments: Any, decode: Callable[[Any, Any], Any]
    ) -> Any:
        packed = msgspec.msgpack.encode(arguments)
        return await self._cluster.network.call(
            node, operation, packed, decode, timeout_s=_TIMEOUT_S
        )

    def _on_loop(self, answer: Callable[[Request], Awaitable[bytes]]) -> RequestHandler:
        """Answers other nodes on the broker's event loop."""

        async def served(request: Request) -> Served:
            return Served(await answer(request))

        async def begin(request: Request) -> Awaitable[Served]:
            return asyncio.wrap_future(
                asyncio.run_coroutine_threadsafe(served(request), self._loop)
            )

        return begin


async def commit_adding(
    transactions: TransactionCoordinator,
    transactional_id: str,
    request: CommitOffsetsRequest,
    *,
    adds: bool,
) -> ErrorCode:
    """Keeps offsets with a transaction; `adds`: its group becomes part of it if it is not, which
    later versions of the request leave to the node."""
    error = await transactions.commit_offsets(transactional_id, request)
    if error is not ErrorCode.INVALID_TXN_STATE or not adds:
        return error
    added = AddGroupRequest(
        producer_id=request.producer_id, epoch=request.epoch, group=request.group
    )
    error = await transactions.add_group(transactional_id, added)
    if error is not ErrorCode.NONE:
        return error
    return await transactions.commit_offsets(transactional_id, request)


def _nothing(value: memoryview, raw: memoryview) -> None:
    return None


def _code(value: memoryview, raw: memoryview) -> ErrorCode:
    return ErrorCode(msgspec.msgpack.decode(value, type=int))


def _shards(value: memoryview, raw: memoryview) -> list[str]:
    return msgspec.msgpack.decode(value, type=list[str])
