"""One schedule: a seed decides the size, the faults and their order. Then calm, and all goes on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from firnmq.cluster.replication.events import AcceptLoss, Received
from firnmq.cluster.replication.messages import SealReason, SealRequest
from firnmq.cluster.replication.values import (
    Acks,
    Durability,
    NodeId,
    RecordState,
    ReplicatedSegment,
    SegmentId,
)
from tests.simulation.cluster.clients import Producer, read_sealed
from tests.simulation.cluster.host import Host
from tests.simulation.cluster.judge import Violation
from tests.simulation.cluster.world import STORE, Parts, Size, World

CHAOS_MS = 3_000
CALM_MS_MAX = 12_000
CALM_STEP_MS = 50
OPERATOR_MS = 1_500
"""A seal that waits so long in the calm is given up by its operator."""

FAULTS = (
    "crash",
    "lose_tail",
    "wipe",
    "pause",
    "isolate",
    "cut_link",
    "one_way",
    "cut_store",
    "messages",
    "store_messages",
    "clock",
    "slow_disk",
    "storage_failure",
    "roll",
    "operator_seal",
    "lost_member",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    seed: int
    acknowledged: dict[Acks, int]
    seals: int
    lossy: int
    steps: int


class Simulation:
    def __init__(
        self,
        seed: int,
        parts: Parts | None = None,
        *,
        size: Size | None = None,
        faults: tuple[str, ...] | None = None,
        writer: Callable[[str], None] | None = None,
    ) -> None:
        # The world has a generator of its own; this one decides what kind of world it is.
        choice = random.Random(seed * 7_919 + 1)
        self.seed = seed
        size = size or _random_size(choice)
        self.world = World(seed, size, parts or Parts(), writer=writer)
        self.random = self.world.random
        allowed = [each for each in FAULTS if _fits(each, size)]
        if faults is None:
            faults = tuple(choice.sample(allowed, choice.randint(2, min(6, len(allowed)))))
        self._end_ms = self.world.now_ms + CHAOS_MS
        self._quiet_until_ms = 0
        self.faults = tuple(each for each in faults if each in allowed)
        self.pace_ms = choice.choice([40, 120, 300])
        kinds = [(Acks.ALL, True), (Acks.QUORUM, True), (Acks.LEADER, False), (Acks.ALL, False)]
        count = choice.randint(2, 4)
        self.producers = [
            Producer(self.world, number, acks, is_idempotent=is_idempotent)
            for number, (acks, is_idempotent) in enumerate(choice.sample(kinds, count), 1)
        ]
        self.world.trace(f"seed {seed}: {size}, {self.faults}")

    def run(self) -> Result:
        world = self.world
        world.after(150, self._trouble)
        while world.now_ms < self._end_ms:
            world.run_until(world.now_ms + CALM_STEP_MS)
            read_sealed(world)
        self._calm_down()
        judge = world.judge
        return Result(
            seed=self.seed,
            acknowledged=dict(judge.acknowledged),
            seals=judge.seal_count,
            lossy=judge.lossy_count,
            steps=world.step_count,
        )

    # Faults

    def _trouble(self) -> None:
        world = self.world
        if world.now_ms >= self._end_ms or not self.faults:
            return
        name = self.random.choice(self.faults)
        world.trace(f"fault: {name}")
        getattr(self, f"_{name}")()
        world.after(self.random.randrange(self.pace_ms) + 10, self._trouble)

    def _active(self) -> ReplicatedSegment:
        return self.world.store.active(self.random.choice(self.world.shards))

    def _any_host(self) -> Host:
        """Often the leader, since most happens there."""
        hosts = self.world.hosts
        if self.random.random() < 0.4:
            return hosts[self._active().leader]
        return hosts[self.random.choice(list(hosts))]

    def _duration_ms(self) -> int:
        return self.random.choice([5, 30, 100, 300, 700, 1_500])

    def _restart(self, host: Host, delay_ms: int | None = None) -> None:
        life = host.life
        if delay_ms is None:
            delay_ms = self._duration_ms()
        self.world.after(delay_ms, lambda: host.start() if host.life == life else None)

    def _crash(self) -> None:
        host = self._any_host()
        if host.is_up:
            self.world.trace(f"{host.id} crashes")
            host.crash()
            if self.world.config.durability is Durability.MEMORY:
                host.wipe()
            self._restart(host)

    def _lose_tail(self) -> None:
        self._lose(self._any_host())

    def _lose(self, host: Host, slowness: int = 1) -> None:
        if host.is_up:
            host.crash()
            host.lose_tail()
            host.disk.slowness = slowness
            ends = {str(segment): log.end.end for segment, log in host.disk.logs.items()}
            self.world.trace(f"{host.id} loses power, and is left with {ends}")
            self._restart(host, 5 if slowness > 1 else None)

    def _wipe(self) -> None:
        host = self._any_host()
        if host.is_up and self.random.random() < 0.5:
            self.world.trace(f"{host.id} loses its disk")
            host.crash()
            host.wipe()
            self._restart(host)

    def _lost_member(self) -> None:
        """One follower lags, one loses its tail; once that is let in again, the leader is lost."""
        world, record = self.world, self._active()
        followers = [node for node in record.replicas if node != record.leader]
        if len(followers) < 2 or world.now_ms < self._quiet_until_ms:
            return
        self._quiet_until_ms = world.now_ms + 1_000
        self.random.shuffle(followers)
        lagging, losing = followers[0], world.hosts[followers[1]]
        self._block({(record.leader, lagging), (lagging, record.leader)}, 230)
        leader = world.hosts[record.leader]

        def lose() -> None:
            self._lose(losing, slowness=60)
            self._cut_off_after_admission(record.segment, leader, losing, tries=50)

        self._later(self.random.randrange(60, 160), lose)

    def _cut_off_after_admission(
        self, segment: SegmentId, leader: Host, follower: Host, tries: int
    ) -> None:
        member = (follower.id, follower.disk.incarnation)
        record = self.world.store.records[segment]
        if follower.is_up and any((each.node, each.incarnation) == member for each in record.isr):
            self._cut_off(leader, 1_500)
        elif tries:
            self._later(
                2,
                lambda: self._cut_off_after_admission(segment, leader, follower, tries=tries - 1),
            )

    def _later(self, delay_ms: int, fault: Callable[[], None]) -> None:
        self.world.after(delay_ms, lambda: fault() if self.world.now_ms < self._end_ms else None)

    def _pause(self) -> None:
        host = self._any_host()
        if host.is_up and not host.is_paused:
            host.pause()
            life = host.life
            self.world.after(
                self._duration_ms(), lambda: host.resume() if host.life == life else None
            )

    def _block(self, pairs: set[tuple[NodeId, NodeId]], duration_ms: int | None = None) -> None:
        world = self.world
        if duration_ms is None:
            duration_ms = self._duration_ms()
        for pair in pairs:
            world.blocked[pair] = world.blocked.get(pair, 0) + 1

        def unblock() -> None:
            for pair in pairs:
                count = world.blocked.pop(pair, 0)
                if count > 1:
                    world.blocked[pair] = count - 1

        world.after(duration_ms, unblock)

    def _isolate(self) -> None:
        self._cut_off(self._any_host())

    def _cut_off(self, host: Host, duration_ms: int | None = None) -> None:
        others = [*self.world.hosts]
        if self.random.random() < 0.5:
            others.append(STORE)
        pairs = {(host.id, each) for each in others} | {(each, host.id) for each in others}
        self._block(pairs, duration_ms)

    def _cut_link(self) -> None:
        one, two = self._any_host().id, self._any_host().id
        self._block({(one, two), (two, one)})

    def _one_way(self) -> None:
        one = self._any_host().id
        two = self.random.choice([*self.world.hosts, STORE])
        self._block({self.random.choice([(one, two), (two, one)])})

    def _cut_store(self) -> None:
        host = self._any_host().id
        self._block({(host, STORE), (STORE, host)})

    def _messages(self) -> None:
        self.world.loss = self.random.choice([0.0, 0.05, 0.3])
        self.world.duplication = self.random.choice([0.0, 0.2])

    def _store_messages(self) -> None:
        self.world.store_loss = self.random.choice([0.0, 0.1, 0.4])
        self.world.store_slowness = self.random.choice([0.0, 0.3])

    def _clock(self) -> None:
        """Far ahead, or a little back: a monotonic clock should not, and nothing breaks."""
        host = self._any_host()
        host.clock_offset_ms += self.random.choice([50, 300, 2_000, 100_000, -10, -20])

    def _slow_disk(self) -> None:
        host = self._any_host()
        host.disk.slowness = self.random.choice([1, 10, 60])
        self.world.after(self._duration_ms(), lambda: setattr(host.disk, "slowness", 1))

    def _storage_failure(self) -> None:
        host = self._any_host()
        host.disk.failing.add(self._active().segment)

    def _roll(self) -> None:
        record = self._active()
        host = self.world.leader(record)
        if host is not None:
            placement = self.world.place(record, record.isr)
            if placement is not None:
                host.roll(record.segment, placement)

    def _operator_seal(self) -> None:
        self._tell_controller(
            Received(
                message=SealRequest(segment=self._active().segment, reason=SealReason.OPERATOR)
            )
        )

    def _tell_controller(self, event: Received | AcceptLoss) -> None:
        holder = self.world.store.controller
        if isinstance(event, AcceptLoss):
            self.world.judge.loss_accepted.add(event.segment)
        if holder is not None:
            host = self.world.hosts[holder[0]]
            host.do(lambda: host.give_controller(event))

    # Calm

    def _calm_down(self) -> None:
        """No more faults: a leader is found, appends are acknowledged, replicas are repaired."""
        world = self.world
        world.trace("calm")
        world.loss = world.duplication = world.store_loss = world.store_slowness = 0.0
        world.blocked.clear()
        for host in world.hosts.values():
            host.disk.slowness = 1
            host.disk.failing.clear()
            if host.is_paused:
                host.resume()
            if not host.is_up:
                host.start()
        began = world.now_ms
        counts = [each.acknowledged_count for each in self.producers]
        while True:
            world.run_until(world.now_ms + CALM_STEP_MS)
            read_sealed(world)
            elapsed = world.now_ms - began
            more = [each.acknowledged_count for each in self.producers]
            has_gone_on = all(now >= before + 2 for now, before in zip(more, counts, strict=True))
            if has_gone_on and self._are_repaired():
                return
            if elapsed > CALM_MS_MAX:
                raise Violation(
                    f"{CALM_MS_MAX} ms after the last fault: {world.store.unsealed()}, "
                    f"acknowledged {more} after {counts}"
                )
            if elapsed > OPERATOR_MS:
                for record in world.store.unsealed():
                    if record.state is RecordState.FENCING:
                        self._tell_controller(AcceptLoss(segment=record.segment))

    def _are_repaired(self) -> bool:
        """Every replica of a sealed segment serves it, if any verified one is left."""
        world = self.world
        for segment, record in world.store.records.items():
            if record.state is not RecordState.SEALED:
                continue
            holders = [world.hosts[member.node] for member in record.isr]
            if any(segment in host.serving for host in holders):
                replicas = [world.hosts[node] for node in record.replicas]
                if not all(segment in host.serving for host in replicas):
                    return False
        return True


def _random_size(choice: random.Random) -> Size:
    replicas = choice.choice([1, 2, 2, 3, 3, 3, 5])
    min_in_sync = choice.choice([1, (replicas + 1) // 2, min(2, replicas)])
    return Size(
        replicas=replicas,
        spare_nodes=choice.choice([0, 0, 1]),
        min_in_sync=min_in_sync,
        durability=choice.choice([*Durability, Durability.OS]),
        shards=choice.choice([1, 1, 3]),
    )


def _fits(fault: str, size: Size) -> bool:
    """Only a disk that does not sync loses a durable tail."""
    return fault not in ("lose_tail", "lost_member") or size.durability is not Durability.FSYNC
