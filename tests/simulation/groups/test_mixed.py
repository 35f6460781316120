"""Groups of consumers of both protocols under faults: a partition never has two readers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from firnmq.brokers.kafka.groups import GroupState
from firnmq.brokers.kafka.groups.messages import DeleteRequest
from tests.simulation.groups.mixed_clients import (
    SUBSCRIPTIONS,
    ClassicClient,
    Client,
    ConsumerClient,
)
from tests.simulation.groups.mixed_world import MixedWorld

SEED_COUNT = 60
FAULTS_MS = 120_000
CALM_MS = 180_000
CLIENT_COUNT_MAX = 8


class Operator:
    """Someone with an admin client, who does not wait for the answer."""

    connection = 0

    def disconnected(self) -> None:
        pass


class Simulation:
    """Clients and the faults that befall them and their node."""

    def __init__(self, seed: int) -> None:
        self.world = MixedWorld(seed)
        self.random = self.world.random
        self.clients: list[Client] = []
        self.done: Counter[str] = Counter()
        self._names = iter(range(1_000_000))
        # All of the one, all of the other, or a fleet that goes over.
        self.classic_share = self.random.choice([0.0, 0.0, 0.5, 0.9])
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
        instance_id = f"i{number}" if self.random.random() < 0.4 else None
        self._start(f"c{number}", instance_id)

    def _start(self, name: str, instance_id: str | None) -> None:
        kind = ClassicClient if self.random.random() < self.classic_share else ConsumerClient
        self.clients.append(kind(self.world, f"{name}r{len(self.clients)}", instance_id))

    def run(self) -> None:
        self.world.run_until(FAULTS_MS)
        self.world.is_store_broken = False
        if not self.alive:
            self.start_client()
        self.world.run_until(FAULTS_MS + CALM_MS)
        self._judge_rest()

    def _judge_rest(self) -> None:
        group, alive = self.world.group, self.alive
        assert group.state is GroupState.STABLE
        described = {member.member_id for member in group.describe().members}
        assert described == {client.member_id for client in alive}
        wanted = {name for client in alive for name in client.topics}
        read = [each for client in alive for each in client.reading]
        assert sorted(read) == sorted(self.world.topics.partitions(*wanted))
        if not all(client.is_classic for client in alive):
            assert self.world.is_consumer
            for topics in SUBSCRIPTIONS:
                loads = [len(each.reading) for each in alive if each.topics == topics]
                assert not loads or max(loads) - min(loads) <= 1
        elif any(not each.is_classic for each in alive):
            assert not self.world.is_consumer
        generation = group.generation
        self.world.run_until(FAULTS_MS + CALM_MS + 60_000)
        assert group.generation == generation, "a group at rest keeps its epoch"

    def _next_fault(self) -> None:
        def strike() -> None:
            if self.world.now_ms < FAULTS_MS:
                self._fault()
                self._next_fault()

        self.world.after(int(self.random.expovariate(1 / 2_000)), strike)

    def _fault(self) -> None:
        faults: dict[str, tuple[int, Any]] = {
            "start": (6, self.start_client),
            "crash": (3, lambda: self._any(Client.crash)),
            "leave": (3, lambda: self._any(lambda client: client.leave())),
            "resubscribe": (3, lambda: self._any(lambda client: client.resubscribe())),
            "drop": (5, lambda: self._any(Client.drop_connection)),
            "pause": (3, lambda: self._any(lambda c: c.pause(self.random.randint(100, 15_000)))),
            "restart static": (5, self._restart_static),
            "crash node": (1, self.world.crash_node),
            "break store": (1, lambda: self._set_store(True)),
            "mend store": (3, lambda: self._set_store(False)),
            "delete": (1, self._delete),
            "grow topic": (2, self._grow),
            "migrate": (2, self._migrate),
        }
        weights = [weight for weight, _ in faults.values()]
        name = self.random.choices(list(faults), weights=weights)[0]
        self.done[name] += 1
        faults[name][1]()

    def _any(self, act: Any) -> None:
        if self.alive:
            act(self.random.choice(self.alive))

    def _restart_static(self) -> None:
        """A static client starts again, perhaps with the other protocol."""
        static = [c for c in self.clients if c.instance_id is not None]
        if not static:
            return
        former = self.random.choice(static)
        if former.is_alive:
            self.random.choice([former.crash, former.leave])()  # type: ignore[attr-defined]
        if any(c.is_alive for c in self.clients if c.instance_id == former.instance_id):
            return  # Two fights over one name never end, and are not what is tested here.
        self._start(former.name, former.instance_id)

    def _migrate(self) -> None:
        self.classic_share = self.random.choice([0.0, 0.5, 1.0]) if self.classic_share else 0.0

    def _grow(self) -> None:
        name = self.random.choice(["a", "b"])
        size = self.world.topics.find(name)
        assert size is not None
        self.world.topics.set(name, min(size.partition_count + 1, 9))

    def _set_store(self, broken: bool) -> None:
        self.world.is_store_broken = broken

    def _delete(self) -> None:
        self.world.send(Operator(), DeleteRequest(), lambda reply: None)


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_every_group_comes_to_rest_and_no_partition_has_two_readers(seed: int) -> None:
    try:
        Simulation(seed).run()
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def test_the_same_seed_gives_the_same_run() -> None:
    def outcome() -> tuple[object, ...]:
        simulation = Simulation(7)
        simulation.run()
        return simulation.world.group.describe(), simulation.done

    assert outcome() == outcome()


def test_groups_go_over_and_back_in_the_simulation() -> None:
    counts = []
    for seed in range(20):
        simulation = Simulation(seed)
        simulation.world.run_until(FAULTS_MS)
        counts.append(simulation.world.conversion_count)
    assert sum(count > 2 for count in counts) >= 3, counts
