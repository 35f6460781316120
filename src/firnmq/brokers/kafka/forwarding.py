"""Requests about a group or a transactional id that another node coordinates: forwarded as they
came, and the coordinator's own answer is returned."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import msgspec

from firnmq.brokers.kafka.failures import offset_fetch_code_of
from firnmq.brokers.kafka.nodes import KafkaNodes
from firnmq.brokers.kafka.protocol import (
    ErrorCode,
    Message,
    Part,
    RequestHeader,
    decode_response,
    encode_request,
)
from firnmq.brokers.kafka.protocol.messages import (
    consumer_groups,
    groups,
    offsets,
    tools,
    transactions,
)
from firnmq.brokers.kafka.protocol.refusals import refuse
from firnmq.brokers.kafka.spread_offsets import SpreadOffsets
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.peers import Request, Served
from firnmq.disk import FileRange
from firnmq.errors import FirnError, NodeUnavailable

OPERATION: Final = "kafka"
_LENGTH_BYTES = 4
_ANSWER_S = 60.0
_REBALANCE_S = 660.0
"""For requests that wait for other members of a group."""

_KEYS: Final[dict[type[Message], str]] = {
    groups.JoinGroupRequest: "group_id",
    groups.SyncGroupRequest: "group_id",
    groups.HeartbeatRequest: "group_id",
    groups.LeaveGroupRequest: "group_id",
    consumer_groups.ConsumerGroupHeartbeatRequest: "group_id",
    offsets.OffsetCommitRequest: "group_id",
    offsets.OffsetFetchRequest: "group_id",
    offsets.OffsetDeleteRequest: "group_id",
    transactions.TxnOffsetCommitRequest: "group_id",
    transactions.InitProducerIdRequest: "transactional_id",
    transactions.AddPartitionsToTxnRequest: "transactional_id",
    transactions.AddOffsetsToTxnRequest: "transactional_id",
    transactions.EndTxnRequest: "transactional_id",
}
"""The field with the id that decides which node coordinates."""
_MANY_KEYS: Final[dict[type[Message], Callable[[Any], list[str]]]] = {
    groups.DescribeGroupsRequest: lambda request: list(request.groups),
    consumer_groups.ConsumerGroupDescribeRequest: lambda request: list(request.group_ids),
    groups.DeleteGroupsRequest: lambda request: list(request.groups_names),
    tools.DescribeTransactionsRequest: lambda request: list(request.transactional_ids),
    offsets.OffsetFetchRequest: lambda request: [each.group_id for each in request.groups],
}
"""The ids of requests that may have several."""
_WAITING = (groups.JoinGroupRequest, groups.SyncGroupRequest)


class _Asker(msgspec.Struct, frozen=True, array_like=True):
    """On whose behalf a request is forwarded."""

    peer: str
    owner: str
    principal: str = ""


class ForwardedClient(NamedTuple):
    """What a handler has to know of a client that is connected to another node."""

    peer: str
    owner: str
    principal: str
    """What a regular expression may find is judged where the topics are compared."""


class OtherNodes(NamedTuple):
    """What the broker of a cluster's node works with."""

    nodes: KafkaNodes
    """All nodes that clients are told of."""
    forwarding: CoordinatorForwarding
    """How other coordinators are reached."""
    spread: SpreadOffsets
    """What transactions of other nodes do to groups of this one."""


ServeFrame = Callable[[bytearray, ForwardedClient], Awaitable[list[Part]]]


class CoordinatorForwarding:
    """Used from the broker's event loop."""

    def __init__(self, cluster: Cluster, nodes: KafkaNodes) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._loop = asyncio.get_running_loop()

    async def target(self, request: Message) -> int | None:
        """The other node that must answer a request; None if this one must. NodeUnavailable if
        several nodes would have to."""
        kind = type(request)
        field, many = _KEYS.get(kind), _MANY_KEYS.get(kind)
        name = None if field is None else getattr(request, field)
        names = [name] if name else []
        if not names and many is not None:
            names = many(request)
        targets = {await self._nodes.other_coordinator(each) for each in dict.fromkeys(names)}
        if len(targets) > 1:
            text = "the request names groups of several nodes; ask the coordinator of each"
            raise NodeUnavailable(self._cluster.node, text)
        return targets.pop() if targets else None

    async def forward(
        self, node: int, frame: bytearray, request: Message, client: ForwardedClient
    ) -> list[Part] | None:
        """The coordinator's answer, or one after which the client looks for the coordinator."""
        try:
            return await self._cluster.network.call(
                node,
                OPERATION,
                msgspec.msgpack.encode(_Asker(*client)),
                lambda value, raw: [raw],
                raw=(bytes(frame),),
                timeout_s=_REBALANCE_S if isinstance(request, _WAITING) else _ANSWER_S,
            )
        except FirnError as error:
            return refuse_unreachable(frame, request, error)

    async def ask(
        self,
        node: int,
        frame: bytearray | None,
        header: RequestHeader,
        request: Message,
        client: ForwardedClient,
    ) -> Message:
        """The same as messages. Without a frame, the request is not the one that came."""
        asked = frame if frame is not None else _joined(encode_request(header, request))
        parts = await self.forward(node, asked, request, client)
        return decode_response(header.api_key, header.api_version, _joined(parts or []))[1]

    def served_by(self, serve: ServeFrame) -> Callable[[Request], Awaitable[Awaitable[Served]]]:
        """Serves what other nodes forward, on the broker's event loop."""

        async def begin(request: Request) -> Awaitable[Served]:
            asker = msgspec.msgpack.decode(request.arguments, type=_Asker)
            client = ForwardedClient(*msgspec.structs.astuple(asker))

            async def answer() -> Served:
                parts = await serve(bytearray(request.raw), client)
                return Served(b"", [each for each in parts if not isinstance(each, FileRange)])

            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), self._loop))

        return begin


def refuse_unreachable(frame: bytearray, request: Message, error: FirnError) -> list[Part] | None:
    """The answer if the coordinator cannot be asked: clients ask again."""
    is_fetch = isinstance(request, offsets.OffsetFetchRequest)
    code = offset_fetch_code_of(error) if is_fetch else ErrorCode.NOT_COORDINATOR
    return refuse(frame, str(error), code)


def _joined(parts: list[Part]) -> bytearray:
    """A frame without its length."""
    whole = bytearray()
    for part in parts:
        if not isinstance(part, FileRange):
            whole += part
    return whole[_LENGTH_BYTES:]
