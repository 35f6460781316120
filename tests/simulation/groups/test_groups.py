"""Groups under random delays, crashes, restarts and changes; every step is judged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from firnmq.brokers.kafka.groups import GroupState, Leaver, LeaveRequest
from firnmq.brokers.kafka.groups.messages import DeleteRequest
from tests.simulation.groups.client import Client, Phase
from tests.simulation.groups.world import World

SEED_COUNT = 40
FAULTS_MS = 120_000
CALM_MS = 240_000
"""Enough for a join that gives up after 65 s, twice, and every time-out that follows."""
CLIENT_COUNT_MAX = 8


class Simulation:
    """Clients and the faults that befall them and their node."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.clients: list[Client] = []
        self.done: Counter[str] = Counter()
        self._names = iter(range(1_000_000))
        for _ in range(self.random.randint(1, 5)):
            self.start_client()
        self._next_fault()

    @property
    def alive(self) -> list[Client]:
        return [client for client in self.clients if client.is_alive]

    def start_client(self) -> None:
        if len(self.alive) >= CLIENT_COUNT_MAX:
            return
        number = next(self._names)
        is_static = self.random.random() < 0.4
        self.clients.append(Client(self.world, f"c{number}", f"i{number}" if is_static else None))

    def run(self) -> None:
        self.world.run_until(FAULTS_MS)
        self.world.is_store_broken = False
        if not self.alive:
            self.start_client()
        self.world.run_until(FAULTS_MS + CALM_MS)
        self._judge_rest()

    def _judge_rest(self) -> None:
        group = self.world.group
        assert group.state is GroupState.STABLE
        stuck = {c.name: c.phase for c in self.alive if c.phase is not Phase.STABLE}
        assert not stuck, stuck
        assert {c.generation for c in self.alive} == {group.generation}
        members = {m.member_id for m in group.describe().members}
        assert members == {c.member_id for c in self.alive}
        generation = group.generation
        self.world.run_until(FAULTS_MS + CALM_MS + 60_000)
        assert group.generation == generation, "a group at rest keeps its generation"

    def _next_fault(self) -> None:
        def strike() -> None:
            if self.world.now_ms < FAULTS_MS:
                self._fault()
                self._next_fault()

        self.world.after(int(self.random.expovariate(1 / 2_000)), strike)

    def _fault(self) -> None:
        faults: dict[str, Any] = {
            "start": self.start_client,
            "crash": lambda: self._any(Client.crash),
            "leave": lambda: self._any(Client.leave),
            "resubscribe": lambda: self._any(Client.resubscribe),
            "drop": lambda: self._any(Client.drop_connection),
            "pause": lambda: self._any(lambda c: c.pause(self.random.randint(100, 15_000))),
            "restart static": self._restart_static,
            "evict static": self._evict_static,
            "crash node": self.world.crash_node,
            "break store": lambda: self._set_store(True),
            "mend store": lambda: self._set_store(False),
            "delete": lambda: self.world.send(
                self._operator(), DeleteRequest(), lambda reply: None
            ),
        }
        weights = [6, 3, 3, 3, 5, 3, 5, 1, 1, 1, 3, 1]
        name = self.random.choices(list(faults), weights=weights)[0]
        self.done[name] += 1
        faults[name]()

    def _any(self, act: Any) -> None:
        if self.alive:
            act(self.random.choice(self.alive))

    def _restart_static(self) -> None:
        """A static client starts again; the former run may have crashed, or may not know yet."""
        static = [c for c in self.clients if c.instance_id is not None]
        if not static:
            return
        former = self.random.choice(static)
        if former.is_alive and self.random.random() < 0.7:
            former.crash()
        if any(c.is_alive and c is not former for c in self._same_instance(former)):
            return  # Two fights over one name never end, and are not what is tested here.
        self.clients.append(Client(self.world, former.name, former.instance_id))

    def _same_instance(self, client: Client) -> list[Client]:
        return [c for c in self.clients if c.instance_id == client.instance_id]

    def _evict_static(self) -> None:
        static = [c for c in self.clients if c.instance_id is not None]
        if static:
            leaver = Leaver(instance_id=self.random.choice(static).instance_id)
            request = LeaveRequest(members=(leaver,))
            self.world.send(self._operator(), request, lambda reply: None)

    def _set_store(self, broken: bool) -> None:
        self.world.is_store_broken = broken

    def _operator(self) -> Operator:
        return Operator()


class Operator:
    """Someone with an admin client, who does not wait for the answer."""

    connection = 0

    def disconnected(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_every_group_comes_to_rest(seed: int) -> None:
    try:
        Simulation(seed).run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise


def test_the_same_seed_gives_the_same_run() -> None:
    def outcome() -> tuple[object, ...]:
        simulation = Simulation(7)
        simulation.run()
        return simulation.world.group.describe(), simulation.done, simulation.world.judge.gone

    assert outcome() == outcome()
