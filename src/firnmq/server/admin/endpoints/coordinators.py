"""Groups that other nodes of the cluster coordinate, for the HTTP listener."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from firnmq.cluster.peers import Request, Served
from firnmq.server.admin.errors import GroupElsewhere
from firnmq.server.documents import GroupSummary
from firnmq.server.member import ClusterMember

_GROUPS: Final = "groups"
_TIMEOUT_S = 10.0


class OtherCoordinators:
    """Used from the node's event loop."""

    def __init__(self, member: ClusterMember) -> None:
        self._member = member
        self._cluster = member.cluster
        self._loop = asyncio.get_running_loop()

    def serve(self, own: Callable[[], Awaitable[list[GroupSummary]]]) -> None:
        """Tells other nodes of this one's groups."""

        async def answer() -> Served:
            return Served(msgspec.msgpack.encode(await own()))

        async def begin(request: Request) -> Awaitable[Served]:
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer(), self._loop))

        self._member.service.others[_GROUPS] = begin

    async def groups(self) -> list[GroupSummary]:
        """Those of the other nodes that are there."""
        nodes = [node for node in self._cluster.members.registered if node != self._cluster.node]
        tickets = [
            self._cluster.network.call(node, _GROUPS, b"", _summaries, timeout_s=_TIMEOUT_S)
            for node in nodes
        ]
        return [summary for ticket in tickets for summary in await ticket]

    async def check_here(self, group: str) -> None:
        coordinators = self._cluster.coordinators
        node = coordinators.get(group)
        if node is None:
            node = await self._loop.run_in_executor(None, coordinators.find, group)
        if node is not None and node != self._cluster.node:
            record = self._cluster.members.registered.get(node)
            raise GroupElsewhere(group, node, "" if record is None else record.http)


def _summaries(value: memoryview, raw: memoryview) -> list[GroupSummary]:
    return msgspec.msgpack.decode(value, type=list[GroupSummary])
