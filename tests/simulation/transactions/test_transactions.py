"""Transactions with crashes between any two steps: each is wholly committed or wholly aborted."""

from __future__ import annotations

from collections import Counter

import pytest

from firnmq.brokers.kafka.transactions import TransactionState, decode_snapshot
from tests.simulation.transactions.client import Attempt, Client
from tests.simulation.transactions.world import CONFIG, World

SEED_COUNT = 300
STEP_COUNT = 1_500
CALM_STEP_COUNT = 20_000
NAMES = ("alpha", "beta")


class Simulation:
    """Producers, each replaced now and then by a newer instance, on a node that crashes."""

    def __init__(self, seed: int) -> None:
        self.world = World(seed)
        self.random = self.world.random
        self.attempts: list[Attempt] = []
        self.identities: Counter[tuple[int, int]] = Counter()
        self.clients = [Client(self.world, name, self.attempts) for name in NAMES]
        self.retired: list[Client] = []

    def run(self) -> None:
        for _ in range(STEP_COUNT):
            self._once()
        self._calm_down()

    def _once(self) -> None:
        chance = self.random.random()
        if chance < 0.45:
            self.world.step()
        elif chance < 0.93:
            self.random.choice([*self.clients, *self.retired[-2:]]).act()
        elif chance < 0.95:
            self.world.pass_time(self.random.choice([10, 300, 1_000, 4_000]))
        elif chance < 0.965:
            self.world.crash()
        elif chance < 0.98:
            self._replace(self.random.randrange(len(self.clients)))
        for number, client in enumerate(self.clients):
            if client.is_fenced:
                self._replace(number)

    def _replace(self, number: int) -> None:
        """A newer instance starts; the old one, a zombie, may go on for a while."""
        old = self.clients[number]
        self.retired.append(old)
        self.clients[number] = Client(self.world, old.name, self.attempts)

    def _calm_down(self) -> None:
        """No more trouble: whatever was decided is carried out, the rest times out.

        After one more crash, since a save that seemed to fail may be on disk all the same.
        """
        self.world.trouble = 0
        self.world.crash()
        for _ in range(CALM_STEP_COUNT):
            if self.world.is_quiet:
                self.world.pass_time(6_000)
                if self.world.is_quiet:
                    return
            self.world.step()
        raise AssertionError("it does not come to rest")


def judge(simulation: Simulation) -> Counter[str]:
    world = simulation.world
    seen: Counter[str] = Counter()
    outcomes = {name: shard.outcome() for name, shard in world.shards.items()}
    committed = set().union(*(each[0] for each in outcomes.values()))
    aborted = set().union(*(each[1] for each in outcomes.values()))
    assert not any(each[2] for each in outcomes.values()), "every transaction has ended"
    assert not committed & aborted, "no transaction is committed here and aborted there"
    with_offsets = {number for _, number in world.offset_history}
    for attempt in simulation.attempts:
        is_committed = attempt.number in committed
        if attempt.written:
            assert (attempt.number in committed) is not (attempt.number in aborted)
        if attempt.has_offsets and attempt.written and is_committed:
            assert attempt.number in with_offsets
        if attempt.number in with_offsets:
            assert attempt.asked_for_commit
            assert attempt.number not in aborted
        if is_committed:
            assert attempt.asked_for_commit, "nobody asked for it"
        if attempt.is_confirmed:
            assert is_committed is (attempt.wants_commit and bool(attempt.written))
            if attempt.has_offsets:
                assert (attempt.number in with_offsets) is attempt.wants_commit
        seen["committed" if is_committed else "aborted"] += 1
    for name, data in world.saved.items():
        state = decode_snapshot(data, transactional_id=name).state
        assert state not in (
            TransactionState.ONGOING,
            TransactionState.PREPARE_ABORT,
            TransactionState.PREPARE_COMMIT,
        )
    seen["crashes"] += world.crash_count
    return seen


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_every_transaction_is_whole(seed: int) -> None:
    simulation = Simulation(seed)
    simulation.run()
    judge(simulation)


def test_the_simulation_meets_everything() -> None:
    """Enough of each outcome comes up for the judgement to mean something."""
    seen: Counter[str] = Counter()
    for seed in range(10):
        simulation = Simulation(seed)
        simulation.run()
        seen += judge(simulation)
    assert seen["committed"] > 50, seen
    assert seen["aborted"] > 50, seen
    assert seen["crashes"] > 100, seen


def test_no_two_instances_are_the_same_producer() -> None:
    """Ids and epochs are never handed out twice, whatever is lost on the way."""
    for seed in range(20):
        simulation = Simulation(seed)
        simulation.run()
        clients = [*simulation.clients, *simulation.retired]
        known = [client.identity for client in clients if client.identity is not None]
        assert len(known) == len(set(known)), seed


def test_an_unused_id_is_forgotten_and_begins_anew() -> None:
    simulation = Simulation(1)
    simulation.run()
    world = simulation.world
    ids_before = {decode_snapshot(data).producer_id for data in world.saved.values()}
    world.pass_time(CONFIG.id_expiration_ms + 10_000)
    while not world.is_quiet:
        world.step()
    assert world.saved == {}
    client = Client(world, "alpha", simulation.attempts)
    while client.identity is None:
        client.act()
        world.step()
    assert client.identity[0] not in ids_before
    assert client.identity[1] == 0
