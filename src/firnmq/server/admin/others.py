"""Questions that the HTTP listeners of a cluster's nodes ask each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.peers import Request, Served
from firnmq.disk import Ticket
from firnmq.errors import FirnError
from firnmq.server.member import ClusterMember

T = TypeVar("T")
Decode = Callable[[memoryview, memoryview], T]
Answer = Callable[[bytes], Awaitable[Served]]

_TIMEOUT_S = 10.0


class OtherNodes:
    """Used from the node's event loop, where the answers are made as well."""

    def __init__(self, member: ClusterMember) -> None:
        self.cluster: Cluster = member.cluster
        self._operations = member.service.others
        self._loop = asyncio.get_running_loop()

    @property
    def node(self) -> int:
        """This one."""
        return self.cluster.node

    def registered(self) -> list[int]:
        """The others that are there."""
        return [node for node in list(self.cluster.members.registered) if node != self.node]

    async def coordinator_of(self, group: str) -> int | None:
        """The node of a group, which gets one if it has none; None if no node is there."""
        coordinators = self.cluster.coordinators
        node = coordinators.get(group)
        if node is None:
            node = await self._loop.run_in_executor(None, coordinators.find, group)
        return node

    def serve(self, operation: str, answer: Answer) -> None:
        """Answers a question of other nodes; `answer` gets its arguments."""

        async def run(arguments: bytes) -> Served:
            return await answer(arguments)

        async def begin(request: Request) -> Awaitable[Served]:
            work = run(bytes(request.arguments))
            return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

        self._operations[operation] = begin

    async def ask(
        self,
        node: int,
        operation: str,
        decode: Decode[T],
        arguments: bytes = b"",
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> T:
        ticket: Ticket[T] = self.cluster.network.call(
            node, operation, arguments, decode, timeout_s=timeout_s
        )
        return await ticket

    async def ask_all(
        self,
        nodes: Iterable[int],
        operation: str,
        decode: Decode[T],
        arguments: bytes = b"",
        *,
        timeout_s: float = _TIMEOUT_S,
    ) -> dict[int, T | FirnError]:
        """Asks all at the same time; by node its answer, or why there is none."""
        asked = list(nodes)

        async def one(node: int) -> T | FirnError:
            try:
                return await self.ask(node, operation, decode, arguments, timeout_s=timeout_s)
            except FirnError as error:
                return error

        answers = await asyncio.gather(*map(one, asked))
        return dict(zip(asked, answers, strict=True))
