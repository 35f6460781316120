"""What logs that lead tell the driver, and ask it. All of it comes from other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from firnmq.cluster.nodes.registration import monotonic_ms
from firnmq.cluster.replication.driving.shards import replica_id
from firnmq.cluster.replication.leading.leader import Leader
from firnmq.cluster.replication.leading.state import Refusal
from firnmq.cluster.replication.values import Acks, MonotonicMs, SegmentId
from firnmq.engines import Acks as LogAcks
from firnmq.engines.replicas import ReplicaEnd, ReplicaId
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import Closed, FirnError, NotEnoughReplicas, NotLeader

_ACKS = {
    LogAcks.ALL: Acks.ALL,
    LogAcks.QUORUM: Acks.QUORUM,
    LogAcks.LEADER: Acks.LEADER,
    LogAcks.NONE: Acks.LEADER,
}

Ends = Sequence[tuple[ReplicaId, ReplicaEnd]]


class Listener:
    """A ReplicaListener."""

    def __init__(
        self,
        node: int,
        soon: Callable[[Callable[[], object]], None],
        on_staged: Callable[[Ends], None],
        on_durable: Callable[[Ends], None],
        on_failed: Callable[[ReplicaId, FirnError], None],
        on_seal: Callable[[ReplicaId, Seal, Future[Seal]], None],
        name_of: Callable[[int], str],
    ) -> None:
        """`soon` calls something in the network's thread, where the others are called."""
        self._node = node
        self._soon = soon
        self._on_staged = on_staged
        self._on_durable = on_durable
        self._on_failed = on_failed
        self._on_seal = on_seal
        self._name_of = name_of
        self._led = threading.Condition()
        """Notified when the segments that are led change."""
        self._leaders: dict[ReplicaId, Leader] = {}
        """Replaced whole by the network's thread."""
        self._sealing: set[Future[Seal]] = set()
        self._is_closed = False

    def follow(self, leaders: Mapping[SegmentId, Leader]) -> None:
        """Takes the segments that are led now."""
        if len(leaders) != len(self._leaders) or any(
            self._leaders.get(replica_id(segment)) is not leader
            for segment, leader in leaders.items()
        ):
            found = {replica_id(each): leader for each, leader in leaders.items()}
            with self._led:
                self._leaders = found
                self._led.notify_all()

    def wait_led(self, wanted: Callable[[], list[ReplicaId]], timeout_s: float) -> bool:
        """Returns once all of these are led here; False if they are not in time."""
        with self._led:
            return self._led.wait_for(
                lambda: self._is_closed or all(each in self._leaders for each in wanted()),
                timeout_s,
            )

    def staged(self, ends: Ends) -> None:
        self._soon(partial(self._on_staged, ends))

    def durable(self, ends: Ends) -> None:
        self._soon(partial(self._on_durable, ends))

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        self._soon(partial(self._on_failed, replica, error))

    def refusal(self, replica: ReplicaId, acks: LogAcks) -> FirnError | None:
        leader = self._leaders.get(replica)
        if leader is None:
            return NotLeader(self._name_of(replica.uid), self._node, None)
        refusal = leader.refusal(_ACKS[acks], MonotonicMs(monotonic_ms()))
        if refusal is None or refusal is Refusal.FROZEN:
            return None  # The log parks it.
        name = self._name_of(replica.uid)
        if refusal is Refusal.NOT_ENOUGH_IN_SYNC:
            record = leader.record
            return NotEnoughReplicas(name, len(record.isr), leader.needed_in_sync)
        return NotLeader(name, self._node, None)

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        outcome: Future[Seal] = Future()
        self._sealing.add(outcome)
        try:
            if self._is_closed:
                raise Closed("the node is stopping")
            self._soon(partial(self._on_seal, replica, seal, outcome))
            return outcome.result()
        finally:
            self._sealing.discard(outcome)

    def close(self) -> None:
        """Ends the waiting for seals, whose outcome the metadata have."""
        self._is_closed = True
        for outcome in list(self._sealing):
            if not outcome.done():
                outcome.set_exception(Closed("the node is stopping"))
