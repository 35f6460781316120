"""A cluster in one thread at a time: three or four nodes, their store, clients, and faults."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from firnmq.adapter import manager as manager_module
from firnmq.adapter import under_way
from firnmq.adapter.forwarding import driver as driver_module
from firnmq.adapter.forwarding import following, serving
from firnmq.brokers.kafka import producer_ids
from firnmq.cluster.nodes import claims, registration
from firnmq.cluster.nodes import cluster as cluster_module
from firnmq.disk import waiting
from firnmq.meta import cache as cache_module
from firnmq.meta import shards as shards_module
from tests.simulation.nodes.clients import Changer, IdempotentProducer, Writer
from tests.simulation.nodes.engine import SimLog
from tests.simulation.nodes.judge import Judge, Violation, require
from tests.simulation.nodes.network import SimNetwork, SimPeerNetwork
from tests.simulation.nodes.node import NodeProcess
from tests.simulation.nodes.store import Reach, StoredState
from tests.simulation.nodes.tasks import Primitives, Tasks

_FAULTS_MS = 8_000.0
_QUIET_MS = 90_000.0
"""How long everything may take to be in order once the faults have ended."""


@dataclass(frozen=True, slots=True)
class Result:
    turns: int
    changes: int
    appends: int
    made: int
    deleted: int
    acknowledged: int


class World:
    """One schedule."""

    def __init__(self, seed: int, *, say: Callable[[str], None] | None = None) -> None:
        self.rng = random.Random(seed)
        self._writer = say
        self.tasks = Tasks(self.rng, self._step)
        self.judge = Judge(self.deletes)
        self.state = StoredState(self.tasks, self._changed)
        self.judge.state = self.state
        self.network = SimNetwork(self.tasks)
        self.node_count = self.rng.choice((2, 3, 3, 4))
        self.numbers = range(1, self.node_count + 1)
        self.reach = {node: Reach() for node in self.numbers}
        self.skews_ms = {
            node: self.rng.choice((0, 0, -3_600_000, 3_600_000)) for node in self.numbers
        }
        self.disks: dict[int, dict[str, SimLog]] = {node: {} for node in self.numbers}
        self.running: dict[int, NodeProcess] = {}
        self.starting: NodeProcess
        self._starts = 0
        self.is_calm = False
        self.topic_ids: dict[object, str] = {}
        """The last topic id that a task has made."""

    def say(self, text: str) -> None:
        if self._writer is not None:
            self._writer(f"{self.tasks.now_ms:9.1f}  {text}")

    # A schedule ---------------------------------------------------------------------------------

    def run(self) -> Result:
        with self._simulated():
            self.tasks.run(self._live)
        counts = self.judge.counts
        return Result(
            self.tasks.turns,
            counts["changes"],
            counts["appends"],
            sum(each.made for each in self.changers),
            sum(each.deleted for each in self.changers),
            sum(len(each.acknowledged) for each in (*self.producers, *self.writers)),
        )

    def _live(self) -> None:
        for node in self.numbers:
            self.start(node)
        self.tasks.spawn("keeper", None, self._keep_running)
        self.changers = [Changer(self, number) for number in range(2)]
        self.changers[0].make_kept()
        self.producers = [IdempotentProducer(self, number) for number in range(2)]
        self.writers = [Writer(self, number) for number in range(2)]
        clients = [*self.changers, *self.producers, *self.writers]
        for client in clients:
            self.tasks.spawn(client.name, None, client.run)
        self.tasks.spawn("faults", None, self._make_faults)
        self.tasks.sleep(_FAULTS_MS)
        self._end_faults()
        end_ms = self.tasks.now_ms + _QUIET_MS
        while not (all(each.is_done for each in clients) and self._is_in_order()):
            if self.tasks.now_ms > end_ms:
                waiting_for = [each.name for each in clients if not each.is_done]
                require(not waiting_for, f"{waiting_for} do not end")
                self._check()
                raise Violation("it stays out of order")
            self.tasks.sleep(500.0)
        self._check()

    def _is_in_order(self) -> bool:
        try:
            self._check()
        except Violation:
            return False
        return True

    def _check(self) -> None:
        nodes = [self.running[node] for node in self.numbers]
        for node in nodes:
            require(node.is_serving and not node.process.is_dead, f"{node.name} does not serve")
        self.judge.check_topics()
        self.judge.check_nodes(nodes, self.disks)
        for changer in self.changers:
            changer.check()
        for client in (*self.producers, *self.writers):
            client.check()

    def _step(self) -> None:
        self.state.lapse()

    def _changed(self, events: list[Any]) -> None:
        if self._writer is not None:
            for event in events:
                what = "deleted" if event.entry is None else event.entry.value
                self.say(f"revision {event.revision}: {event.key} {what!r}")
        self.judge.changed(events)

    def deletes(self, name: str) -> bool:
        """Whether a client has asked for a deletion of the topic that may not have ended."""
        return any(
            change.kind == "delete" and change.name == name and change.outcome == "unknown"
            for changer in self.changers
            for change in changer.changes
        )

    # Nodes --------------------------------------------------------------------------------------

    def start(self, node: int) -> None:
        self._starts += 1
        process = NodeProcess(self, node, self._starts)
        self.running[node] = process
        self.tasks.spawn(process.name, process.process, process.run)

    def kill(self, process: NodeProcess) -> None:
        self.say(f"{process.name} ends")
        process.process.is_dead = True
        process.is_serving = False

    def serving(self) -> list[NodeProcess]:
        """In the order of nodes."""
        found = [self.running[node] for node in self.numbers]
        return [each for each in found if each.is_serving]

    def _keep_running(self) -> None:
        while True:
            self.tasks.sleep(300.0 if self.is_calm else self.rng.uniform(200.0, 2_000.0))
            for node in self.numbers:
                if self.running[node].process.is_dead:
                    self.start(node)

    # Faults -------------------------------------------------------------------------------------

    def _make_faults(self) -> None:
        kinds = [
            self._kill_one,
            self._pause_one,
            self._cut_store,
            self._slow_store,
            self._cut_pair,
            self.state.compact,
            self._lose_sessions,
        ]
        while not self.is_calm:
            self.tasks.sleep(self.rng.expovariate(1 / 700.0))
            if self.is_calm:
                return
            self._noise()
            fault = self.rng.choice(kinds)
            self.say(f"fault: {fault.__name__}")
            fault()

    def _noise(self) -> None:
        """How much is lost and late from now on."""
        self.network.loss = self.rng.choice((0.0, 0.0, 0.05, 0.2))
        self.network.lateness = self.rng.choice((0.0, 0.05, 0.3))
        for reach in self.reach.values():
            reach.loss = self.rng.choice((0.0, 0.0, 0.02, 0.1))

    def _one(self) -> NodeProcess:
        return self.running[self.rng.choice(self.numbers)]

    def _span_ms(self) -> float:
        return self.tasks.now_ms + self.rng.choice((300.0, 1_500.0, 6_000.0))

    def _kill_one(self) -> None:
        self.kill(self._one())

    def _pause_one(self) -> None:
        self._one().process.paused_until_ms = self._span_ms()

    def _cut_store(self) -> None:
        self.reach[self._one().node].cut_until_ms = self._span_ms()

    def _slow_store(self) -> None:
        self.reach[self._one().node].slow_until_ms = self._span_ms()

    def _cut_pair(self) -> None:
        pair = frozenset(self.rng.sample(self.numbers, 2))
        self.network.cut.add(pair)
        self.tasks.later(self.rng.uniform(100.0, 5_000.0), lambda: self.network.cut.discard(pair))

    def _lose_sessions(self) -> None:
        for session_id in list(self.state.lives):
            if self.rng.random() < 0.4:
                self.state.end_session(session_id)

    def _end_faults(self) -> None:
        self.say("the faults end")
        self.is_calm = True
        self.network.loss = self.network.lateness = 0.0
        self.network.cut.clear()
        for reach in self.reach.values():
            reach.loss = reach.cut_until_ms = reach.slow_until_ms = 0.0
        for process in self.running.values():
            process.process.paused_until_ms = 0.0

    # What stands in for the machine -------------------------------------------------------------

    def new_topic_id(self) -> Any:
        hexadecimal = f"{self.rng.getrandbits(128):032x}"
        self.topic_ids[self.tasks.current] = hexadecimal
        return SimpleNamespace(hex=hexadecimal)

    @contextmanager
    def _simulated(self) -> Iterator[None]:
        primitives = Primitives(self.tasks, lambda: self.tasks.current.process)
        modules: list[Any] = [cache_module, registration, under_way, manager_module, shards_module]
        modules += [claims, following, waiting, producer_ids]

        def network(node: int, secret: bytes, address_of: Any, certificates: object) -> Any:
            return SimPeerNetwork(self.network, self.starting, address_of)

        patches = [patch.object(module, "threading", primitives) for module in modules]
        patches += [
            patch.object(following, "queue", primitives),
            patch.object(cluster_module, "PeerNetwork", network),
            patch.object(driver_module, "monotonic", primitives.monotonic),
            patch.object(serving, "monotonic", primitives.monotonic),
            patch.object(manager_module, "uuid", SimpleNamespace(uuid4=self.new_topic_id)),
        ]
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                with suppress(RuntimeError):
                    each.stop()
