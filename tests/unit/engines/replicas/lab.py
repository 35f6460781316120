"""Some nodes with a replica each of one shard, and a link between them that moves when told to.

Each node is a whole store. What nodes would learn from common metadata, the lab tells each of them.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from firnmq.config import StorageType, TopicConfig
from firnmq.disk import FileRange, Ticket, run_blocking
from firnmq.engines import Acks, Appended
from firnmq.engines.catalog.segments import SegmentMeta, medium_of_new
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.replicas import (
    Reached,
    ReplicaEnd,
    ReplicaId,
    check_batches,
)
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import FirnError, NotLeader
from tests.conformance.lab import Lab, Shard

SHARD = "shard_0"
WAIT_S_MAX = 30.0


class Heard:
    """A ReplicaListener that keeps what it is told."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.staged_end: dict[ReplicaId, ReplicaEnd] = {}
        self.durable_end: dict[ReplicaId, ReplicaEnd] = {}
        self.turns: list[str] = []
        self.is_asked_to_seal = False
        self.failures: list[tuple[ReplicaId, FirnError]] = []
        self.refused: Callable[[Acks], FirnError | None] = lambda _: None
        self.seals: Callable[[ReplicaId, Seal], Seal] = _not_asked

    def staged(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        with self._changed:
            self.turns.append("staged")
            self.staged_end.update(ends)
            self._changed.notify_all()

    def durable(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        with self._changed:
            self.turns.append("durable")
            self.durable_end.update(ends)
            self._changed.notify_all()

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        with self._changed:
            self.failures.append((replica, error))
            self._changed.notify_all()

    def refusal(self, replica: ReplicaId, acks: Acks) -> FirnError | None:
        return self.refused(acks)

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        with self._changed:
            self.is_asked_to_seal = True
            self._changed.notify_all()
        return self.seals(replica, seal)

    def wait_until(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, WAIT_S_MAX)


def _not_asked(replica: ReplicaId, _: Seal) -> Seal:
    raise AssertionError(f"{replica} is not to be sealed")


class Node:
    """A store with one replica of the shard."""

    def __init__(self, number: int, path: Path, config: TopicConfig) -> None:
        self.number = number
        self.lab = Lab(path, StorageType.SEGMENT.value)
        self.heard = Heard()
        self.lab.store.replicas.begin(self.heard)
        self.lab.engine.create_shard(SHARD, config)
        (self.spec,) = self.lab.store.shards.shards()

    @property
    def shard(self) -> Shard:
        return Shard(self.lab, SHARD)

    @property
    def log(self) -> ShardLog:
        log = self.lab.store.replicas.log_of(self.spec.uid)
        assert log is not None
        return log

    @property
    def id(self) -> ReplicaId:
        assert self.log.replica is not None
        return self.log.replica.id

    @property
    def reached(self) -> Reached:
        reached = self.lab.store.replicas.reached(self.id)
        assert reached is not None
        return reached

    @property
    def end(self) -> ReplicaEnd:
        return self.reached.end

    def bytes_of(
        self, start: int, end: int, max_bytes: int = 2**30, *, seq: int | None = None
    ) -> bytes:
        """What another node would be sent, of the log's tail or of a sealed segment."""
        replica = self.id if seq is None else ReplicaId(self.spec.uid, seq)
        found = self.lab.store.replicas.read(self.spec, replica, start, end, max_bytes)
        parts = [
            bytes(each.mapped()) if isinstance(each, FileRange) else bytes(each)
            for each in found.buffers
        ]
        assert sum(map(len, parts)) == found.size_bytes
        return b"".join(parts)

    def submit(self, batch: bytes, acks: Acks = Acks.ALL) -> Ticket[Appended]:
        """Appends to a leader, and returns when the batch is durable here, or when the segment is
        to be sealed."""
        count = int.from_bytes(batch[57:61], "big")
        end = self.log.tail.next_offset + count
        ticket = run_blocking(self.lab.engine.submit(SHARD, batch, acks))
        mine = self.id
        self.heard.wait_until(
            lambda: (
                self.heard.is_asked_to_seal
                or self.heard.durable_end.get(mine, ReplicaEnd(-1, 0)).offset >= end
            )
        )
        return ticket

    def ask(self, call: Callable[..., None], *arguments: object, **fields: object) -> Reached:
        """The outcome of a call that takes a ticket last."""
        ticket: Ticket[Reached] = run_blocking(_ticket())
        call(*arguments, ticket, **fields)
        return ticket.wait(WAIT_S_MAX)

    def stage(self, data: bytes, high_watermark: int = 0) -> Reached:
        checked = check_batches(data, self.end, self.spec.config, self.log.spec.epoch)
        return self.ask(self.lab.store.replicas.stage, self.id, checked, high_watermark)

    def fence(self, fence: int) -> Reached:
        return self.ask(self.lab.store.replicas.persist_fence, self.spec, self.id, fence, 0)

    def truncate(self, end_offset: int) -> Reached:
        return self.ask(self.lab.store.replicas.truncate, self.id, end_offset)

    def stop_leading(self) -> Reached:
        refusal = NotLeader(SHARD, self.number, None)
        return self.ask(self.lab.store.replicas.stop_leading, self.id, refusal)

    def advance(self, high_watermark: int) -> None:
        self.lab.store.replicas.advance(self.id, high_watermark)

    def open(self, meta: SegmentMeta, *, leads: bool = False) -> Reached:
        return self.lab.store.replicas.open(self.spec, meta, leads=leads)

    def restart(self, *, crashes: bool = False) -> None:
        """The store anew; the replica is not open."""
        (self.lab.crash if crashes else self.lab.reopen)()
        self.heard = Heard()
        self.lab.store.replicas.begin(self.heard)


async def _ticket() -> Ticket[Reached]:
    return Ticket()


def ticket_of(node: Node, data: bytes) -> Ticket[Reached]:
    """Asks a node to stage batches, and does not wait."""
    checked = check_batches(data, node.end, node.spec.config, node.log.spec.epoch)
    ticket: Ticket[Reached] = run_blocking(_ticket())
    node.lab.store.replicas.stage(node.id, checked, 0, ticket)
    return ticket


class Replicas:
    """The nodes, the first of which leads."""

    def __init__(self, path: Path, count: int = 3, **options: object) -> None:
        config = TopicConfig.from_options({"storage.type": StorageType.SEGMENT.value, **options})
        self.nodes = [Node(number, path / f"node-{number}", config) for number in range(count)]
        self.leader = self.nodes[0]
        self.meta = SegmentMeta(
            seq=0,
            base_offset=0,
            created_ms=self.leader.lab.clock.now_ms(),
            medium=medium_of_new(config),
            holders=tuple(range(count)),
        )
        for node in self.nodes:
            node.open(self.meta, leads=node is self.leader)

    @property
    def followers(self) -> list[Node]:
        return [node for node in self.nodes if node is not self.leader]

    def pull(self, *followers: Node, max_bytes: int = 2**30) -> None:
        """Lets followers fetch everything that the leader has staged."""
        end = self.leader.log.tail.next_offset
        for node in followers or self.followers:
            while node.end.offset < end:
                node.stage(self.leader.bytes_of(node.end.offset, end, max_bytes))

    def advance(self, high_watermark: int | None = None) -> None:
        """Moves the high watermark everywhere, by default to where all are."""
        if high_watermark is None:
            high_watermark = min(node.end.offset for node in self.nodes)
        for node in self.nodes:
            node.advance(high_watermark)

    def append(self, batch: bytes) -> Appended:
        """Appends a batch that everyone has when this returns."""
        ticket = self.leader.submit(batch)
        self.pull()
        self.advance()
        return ticket.wait(WAIT_S_MAX)

    def seal_of(self, source: Node) -> Seal:
        """The tail's segment sealed where it ends on a node, and the next one."""
        end, facts, _ = source.reached
        sealed = self.meta.become_sealed(
            end_offset=end.offset,
            length=facts.length,
            crc=end.crc,
            max_timestamp=facts.max_timestamp,
            now_ms=source.lab.clock.now_ms(),
            first_expiry_ms=facts.first_expiry_ms,
            transactions=facts.transactions,
        )
        active = SegmentMeta(
            seq=sealed.seq + 1,
            base_offset=end.offset,
            created_ms=source.lab.clock.now_ms(),
            leader_epoch=self.meta.leader_epoch + 1,
            medium=self.meta.medium,
            holders=self.meta.holders,
        )
        return Seal(sealed, active)

    def fail_over(self, leader: Node, source: Node | None = None) -> Seal:
        """Fences all, seals at the end of `source` or of the longest replica, gives all the tail,
        and lets another node lead."""
        self.leader.stop_leading()
        for node in self.nodes:
            node.fence(1)
        source = source or max(self.nodes, key=lambda node: node.end.offset)
        seal = self.seal_of(source)
        for node in self.nodes:
            self.complete(node, seal, source)
            self.install(node, seal, leads=node is leader)
        self.leader, self.meta = leader, seal.active
        return seal

    def complete(self, node: Node, seal: Seal, source: Node) -> None:
        """Truncates a replica to the sealed end, or gives it what it lacks."""
        end = seal.sealed.end_offset
        node.truncate(end)
        while node.end.offset < end:
            node.stage(source.bytes_of(node.end.offset, end, seq=seal.sealed.seq))
        assert node.end == ReplicaEnd(end, seal.sealed.crc)

    def install(self, node: Node, seal: Seal, *, leads: bool) -> Reached:
        """What a node does once it has seen the records."""
        decide(node, seal)
        spec = dataclasses.replace(node.spec, epoch=seal.active.leader_epoch)
        install = node.lab.store.replicas.install
        return node.ask(
            lambda ticket: install(seal.sealed, seal.active, spec, 0, ticket, leads=leads)
        )

    def close(self) -> None:
        for node in self.nodes:
            node.lab.close()


def decide(node: Node, seal: Seal) -> None:
    """Writes the records of a seal to a node's metadata."""
    node.lab.store.shards.roll(node.spec.uid, seal.sealed, seal.active)


def spec_of(node: Node) -> ShardSpec:
    return node.log.spec
