"""Nodes, store, network, clients and faults, in simulated time and driven by one seed."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from firnmq.cluster.replication import Controller, Node, ReplicationConfig
from firnmq.cluster.replication.messages import Message
from firnmq.cluster.replication.values import (
    Crc,
    Durability,
    Incarnation,
    LeaderEpoch,
    Member,
    NodeId,
    Placement,
    Point,
    RecordState,
    ReplicatedSegment,
    SegmentId,
    Token,
)
from firnmq.ids import Offset, SegmentSeq, ShardUid
from tests.simulation.cluster.host import Host
from tests.simulation.cluster.judge import Judge
from tests.simulation.cluster.store import Store

STORE = NodeId(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The classes of the core; a mutant replaces some of them."""

    node: type[Node] = Node
    controller: type[Controller] = Controller
    store: type[Store] = Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    replicas: int
    spare_nodes: int
    min_in_sync: int
    durability: Durability
    shards: int = 1


def config_for(size: Size) -> ReplicationConfig:
    """Short times: what takes seconds in a cluster takes hundreds of milliseconds here."""
    return ReplicationConfig(
        min_in_sync=size.min_in_sync,
        durability=size.durability,
        session_ttl_ms=400,
        replica_lag_max_ms=250,
        fetch_interval_ms=60,
        freeze_max_ms=150,
        retry_ms=60,
        copy_timeout_ms=400,
    )


class World:
    def __init__(
        self, seed: int, size: Size, parts: Parts, *, writer: Callable[[str], None] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.size = size
        self.parts = parts
        self.config = config_for(size)
        self.shards = [ShardUid(shard) for shard in range(1, size.shards + 1)]
        self.now_ms = 0
        self.judge = Judge(size.min_in_sync)
        self.judge.intact = self._intact
        self.judge.is_loss_accepted = size.durability.accepts_loss
        self.store = parts.store(self.judge, self.config.session_ttl_ms)
        self.loss = 0.0
        self.duplication = 0.0
        self.store_loss = 0.0
        self.store_slowness = 0.0
        """How many requests come after their callers have given up."""
        self.blocked: dict[tuple[NodeId, NodeId], int] = {}
        """How many faults cut each link, in one direction."""
        self.step_count = 0
        self._writer = writer
        self._order = itertools.count()
        self._tokens = itertools.count(1)
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        count = size.replicas + size.spare_nodes
        self.hosts = {NodeId(node): Host(self, NodeId(node)) for node in range(1, count + 1)}
        self.disks = {node: host.disk for node, host in self.hosts.items()}
        self._open_first()

    def _open_first(self) -> None:
        for node in self.hosts:
            self.hosts[node].start()
        while not all(host.node is not None for host in self.hosts.values()):
            self.run_until(self.now_ms + 10)
        nodes = list(self.hosts)
        for shard in self.shards:
            chosen = nodes[: self.size.replicas]
            nodes = [*nodes[1:], nodes[0]]
            members = tuple(Member(node, self.store.incarnations[node]) for node in chosen)
            in_sync = members[: self.random.choice([1, len(members), len(members)])]
            placement = Placement(leader=chosen[0], members=members, in_sync=in_sync)
            first = SegmentId(shard, SegmentSeq(0))
            self.store.create(ReplicatedSegment.open(first, Offset(0), LeaderEpoch(0), placement))

    # Time

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (self.now_ms + delay_ms, next(self._order), act))

    def run_until(self, end_ms: int) -> None:
        while self._agenda and self._agenda[0][0] <= end_ms:
            self.now_ms, _, act = heapq.heappop(self._agenda)
            self.store.expire(self.now_ms)
            act()
            self.step_count += 1
            self._check()
        self.now_ms = end_ms

    def _check(self) -> None:
        store, segments = self.store, []
        for segment in store.pointers.values():
            segments.append(segment)
            if segment.seq:
                segments.append(SegmentId(segment.shard, SegmentSeq(segment.seq - 1)))
        marks = {}
        for each in segments:
            leader = self.hosts[store.records[each].leader]
            if each in leader.marks:
                marks[each] = leader.marks[each]
        self.judge.step(store, segments, self.disks, marks)

    def trace(self, text: str, *what: object) -> None:
        """Formatted only if it is written; with `what` it is a detail."""
        if self._writer is not None:
            detail = " ".join(["   ", text, *map(str, what)]) if what else text
            self._writer(f"{self.now_ms:6} {detail}")

    def next_token(self) -> Token:
        return Token(next(self._tokens))

    # The network: every message may be late, lost, doubled or overtaken

    def _delay_ms(self) -> int:
        if self.random.random() < 0.02:
            return self.random.choice([50, 150, 400])
        return self.random.choice([0, 1, 1, 2, 3, 8])

    def _passes(self, source: NodeId, target: NodeId, loss: float) -> bool:
        return (source, target) not in self.blocked and self.random.random() >= loss

    def send(self, source: NodeId, target: NodeId, message: Message) -> None:
        for _ in range(2 if self.random.random() < self.duplication else 1):
            if self._passes(source, target, self.loss):
                self.after(self._delay_ms(), lambda: self._arrive(source, target, message))

    def _arrive(self, source: NodeId, target: NodeId, message: Message) -> None:
        host = self.hosts[target]
        if (source, target) not in self.blocked:
            host.do(lambda: host.received(message))

    def can_reach_store(self, host: Host) -> bool:
        return (host.id, STORE) not in self.blocked and (STORE, host.id) not in self.blocked

    def ask_store(
        self,
        host: Host,
        act: Callable[[], Any],
        answered: Callable[[Any], None],
        timed_out: Callable[[], None],
    ) -> None:
        """The request may be lost, or applied after the caller has given up."""
        is_done = [False]

        def once(what: Callable[[], None]) -> Callable[[], None]:
            def run() -> None:
                if not is_done[0]:
                    is_done[0] = True
                    what()

            return run

        life = host.life

        def apply() -> None:
            if (host.id, STORE) in self.blocked:
                return
            result = act()
            if self._passes(STORE, host.id, self.store_loss):
                delay = self._delay_ms()
                self.after(
                    delay,
                    lambda: host.do(once(lambda: answered(result))) if host.life == life else None,
                )

        if self._passes(host.id, STORE, self.store_loss):
            is_slow = self.random.random() < self.store_slowness
            self.after(self.random.choice([130, 300]) if is_slow else self._delay_ms(), apply)
        host.after(120, once(timed_out))

    def _intact(self, record: ReplicatedSegment) -> set[NodeId]:
        disks = {node: self.hosts[node].disk.made_in for node in record.replicas}
        return {
            node
            for node, made_in in disks.items()
            if made_in is not None and record.counts(node, made_in)
        }

    # What drivers decide

    def place(self, record: ReplicatedSegment, holders: tuple[Member, ...]) -> Placement | None:
        """Living holders first, then other living nodes, then dead replicas to fill up."""
        alive = {node: each.incarnation for node, each in self.store.nodes.items()}
        first = [member.node for member in holders if member.node in alive]
        if not first:
            return None
        self.random.shuffle(first)
        others = [node for node in sorted(alive) if node not in first]
        if self.random.random() < 0.5:
            others.sort(key=lambda node: node not in record.replicas)
        dead = [node for node in record.replicas if node not in alive]
        chosen = [*first, *others, *dead][: len(record.replicas)]
        incarnations = self.store.incarnations
        return Placement(
            leader=first[0],
            members=tuple(Member(node, incarnations[node]) for node in chosen),
            in_sync=tuple(Member(node, alive[node]) for node in chosen if node in alive),
        )

    def with_crc(self, content: Any, crc: int) -> Any:
        return replace(content, at=Point(content.at.end, Crc(crc)))

    def leader(self, record: ReplicatedSegment) -> Host | None:
        host = self.hosts[record.leader]
        is_led = record.state is RecordState.ACTIVE and host.leads(record)
        return host if is_led else None

    def incarnation(self, node: NodeId) -> Incarnation | None:
        return self.hosts[node].disk.incarnation
