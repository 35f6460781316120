"""Nodes ask each other: requests and answers are late, overtake each other, or are lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from firnmq.cluster.peers import Request, Served
from firnmq.disk import Settlement, Ticket, run_blocking
from firnmq.disk.files import Buffer
from firnmq.errors import FirnError, NodeUnavailable, PeerTimedOut
from tests.simulation.nodes.tasks import Tasks

if TYPE_CHECKING:
    from tests.simulation.nodes.node import NodeProcess

_TRAVEL_MS = (0.0, 15.0)
_LATE_MS = (50.0, 3_000.0)

Address = tuple[str, int]


class SimNetwork:
    """All connections."""

    def __init__(self, tasks: Tasks) -> None:
        self.tasks = tasks
        self.listening: dict[Address, NodeProcess] = {}
        self.loss = 0.0
        self.lateness = 0.0
        """Chance that a message takes long."""
        self.cut: set[frozenset[int]] = set()
        """Pairs of nodes that do not reach each other."""
        self._lanes: dict[tuple[str, int, str], deque[Callable[[], None]]] = {}

    def travel_ms(self) -> float | None:
        """None if a message is lost."""
        rng = self.tasks.rng
        if rng.random() < self.loss:
            return None
        return rng.uniform(*(_LATE_MS if rng.random() < self.lateness else _TRAVEL_MS))

    def in_lane(
        self, lane: tuple[str, int, str], target: NodeProcess, call: Callable[[], None]
    ) -> None:
        """Has a request handled once those before it in its lane have begun."""
        if not lane[2]:
            self.tasks.spawn(f"{target.name} serves", target.process, call)
            return
        waiting = self._lanes.get(lane)
        if waiting is not None:
            waiting.append(call)
            return
        waiting = self._lanes[lane] = deque([call])

        def drain() -> None:
            try:
                while waiting:
                    waiting.popleft()()
            finally:
                del self._lanes[lane]

        self.tasks.spawn(f"{target.name} serves {lane[2]}", target.process, drain)


class SimPeerNetwork:
    """What stands in for a node's PeerNetwork."""

    def __init__(self, network: SimNetwork, source: NodeProcess, address_of: Any) -> None:
        self._network = network
        self._source = source
        self._address_of = address_of
        self._waiting: dict[int, set[_Call]] = {}

    def listen(self, host: str, port: int, handler: Any) -> int:
        return port

    def forget(self, node: int) -> None:
        for call in list(self._waiting.pop(node, ())):
            call.fail(PeerTimedOut(node, "it is not registered any more"))

    def close(self) -> None:
        for node in list(self._waiting):
            self.forget(node)

    def call(
        self,
        node: int,
        operation: str,
        arguments: bytes,
        decode: Callable[[memoryview, memoryview], Any],
        *,
        raw: Sequence[Buffer] = (),
        timeout_s: float,
        lane: str = "",
    ) -> Ticket[Any]:
        tasks = self._network.tasks
        tasks.may_switch()
        ticket: Ticket[Any] = Ticket()
        call = _Call(ticket, decode, self._waiting.setdefault(node, set()))
        address = self._address_of(node)
        if address is None:
            call.fail(NodeUnavailable(node, "it is not registered"))
            return ticket
        target = self._network.listening.get(address)
        pair = frozenset((self._source.node, node))
        if target is None or target.process.is_dead or pair in self._network.cut:
            tasks.later(1.0, lambda: call.fail(NodeUnavailable(node, "it cannot be connected to")))
            return ticket
        request = Request(
            self._source.node,
            operation,
            memoryview(arguments),
            memoryview(b"".join(raw)),
            tasks.now_ms / 1000 + timeout_s,
        )
        travel_ms = self._network.travel_ms()
        late = PeerTimedOut(node, "it did not answer in time")
        tasks.later(timeout_s * 1000, lambda: call.fail(late))
        if travel_ms is not None:
            place = self._source.name, node, lane
            self._send(travel_ms, place, target, request, call)
        return ticket

    def _send(
        self,
        travel_ms: float,
        lane: tuple[str, int, str],
        target: NodeProcess,
        request: Request,
        call: _Call,
    ) -> None:
        network, tasks = self._network, self._network.tasks

        def serve() -> None:
            try:
                served = run_blocking(_served(target, request))
            except FirnError as error:
                answer: Served | FirnError = error
            else:
                answer = served
            back_ms = network.travel_ms()
            if back_ms is not None:
                tasks.later(back_ms, lambda: call.answered(answer))

        def arrive() -> None:
            if target.process.is_dead:
                lost = PeerTimedOut(target.node, "the connection was lost")
                tasks.later(1.0, lambda: call.fail(lost))
            else:
                network.in_lane(lane, target, serve)

        if lane[2]:  # What is sent in a lane arrives in its order.
            travel_ms = max(travel_ms, self._source.lane_due_ms.get(lane, 0.0) - tasks.now_ms)
            self._source.lane_due_ms[lane] = tasks.now_ms + travel_ms
        tasks.later(travel_ms, arrive)


class _Call:
    def __init__(self, ticket: Ticket[Any], decode: Callable[..., Any], among: set[_Call]) -> None:
        self._ticket = ticket
        self._decode = decode
        self._among = among
        self._is_done = False
        among.add(self)

    def answered(self, answer: Served | FirnError) -> None:
        if isinstance(answer, FirnError):
            self.fail(answer)
            return
        raw = memoryview(b"".join(answer.raw))
        self._end(
            lambda each: each.resolve(self._ticket, self._decode(memoryview(answer.value), raw))
        )

    def fail(self, error: BaseException) -> None:
        self._end(lambda settlement: settlement.fail(self._ticket, error))

    def _end(self, settle: Callable[[Settlement], None]) -> None:
        if self._is_done:
            return
        self._is_done = True
        self._among.discard(self)
        settlement = Settlement()
        settle(settlement)
        settlement.deliver()


async def _served(target: NodeProcess, request: Request) -> Served:
    return await (await target.service.begin(request))
