"""Producers that retry, and readers that look at what is sealed."""

from __future__ import annotations

import itertools

from firnmq.cluster.replication.values import Acks
from tests.simulation.cluster.disk import Batch
from tests.simulation.cluster.world import World

_PATIENCE_MS = 150


class Producer:
    """One append at a time. An idempotent one repeats it until it is acknowledged."""

    numbers = itertools.count(1)

    def __init__(self, world: World, number: int, acks: Acks, *, is_idempotent: bool) -> None:
        self.world = world
        self.acks = acks
        self.acknowledged_count = 0
        self._number = number
        self._shard = world.random.choice(world.shards)
        self._sequence = 0 if is_idempotent else -1
        self._attempt = 0
        self._batches = 0
        self._batch: Batch | None = None
        world.after(world.random.randrange(100), self._produce)

    def _produce(self) -> None:
        world = self.world
        if self._batch is None:
            self._batches += 1
            number = self._number * 1_000_000 + self._batches
            count = world.random.randint(1, 3)
            self._batch = Batch(number, count, self._number, self._sequence)
            if self._sequence >= 0:
                self._sequence += 1
        self._attempt += 1
        attempt, batch = self._attempt, self._batch
        record = world.store.active(self._shard)
        hosts = world.hosts
        host = hosts[record.leader]
        if world.random.random() < 0.05:
            host = hosts[world.random.choice(list(hosts))]
        segment = record.segment

        def arrive() -> None:
            refusal = host.append(segment, batch, self.acks, lambda is_done: answer(is_done))
            if refusal is not None:
                self._again(attempt)

        def answer(is_done: bool) -> None:
            if attempt != self._attempt:
                return
            if is_done:
                self.acknowledged_count += 1
            if is_done or batch.sequence < 0:
                self._batch = None
            self._again(attempt)

        world.after(world.random.choice([0, 1, 2]), lambda: host.do(arrive))
        world.after(_PATIENCE_MS, lambda: answer(False))

    def _again(self, attempt: int) -> None:
        if attempt == self._attempt:
            self._attempt += 1
            self.world.after(self.world.random.choice([1, 5, 20, 60]), self._produce)


def read_sealed(world: World) -> None:
    """Every replica that serves a sealed segment has exactly what was sealed."""
    for host in world.hosts.values():
        for segment in host.serving:
            record, log = world.store.records[segment], host.disk.logs.get(segment)
            world.judge.check(
                log is not None and log.durable == log.end == record.sealed_at,
                f"node {host.id} serves {segment} with {log and log.end}, sealed is "
                f"{record.end}, crc {record.crc}",
            )
