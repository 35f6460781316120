"""The controller of a cluster's replicated shards, where this node is elected for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from firnmq.clock import Clock
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.nodes.registration import SESSION_TTL_S, monotonic_ms
from firnmq.cluster.replication.actions import Action
from firnmq.cluster.replication.driving.wire import Facts, WithFacts
from firnmq.cluster.replication.events import NodeSeen, Received, RecordSeen, Tick
from firnmq.cluster.replication.messages import SealRequest
from firnmq.cluster.replication.sealing.controller import Controller, ControllerEvent
from firnmq.cluster.replication.values import (
    Incarnation,
    MonotonicMs,
    NodeId,
    Point,
    RecordState,
    ReplicatedSegment,
    ReplicationConfig,
    Revision,
    SegmentId,
)
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger
from firnmq.meta import Compare
from firnmq.meta.records import NodeRecord
from firnmq.meta.service.election import Candidate

REPLICATION_CONTROLLER_KEY = "controllers/replication"
"""Its value is the number of the node."""
_log = EventLogger("replication")


class Control:
    """Owned by the network's thread, where everything but `close` is called."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        config_of: Callable[[SegmentId], ReplicationConfig],
        unsealed: Callable[[], Iterable[ReplicatedSegment]],
        perform: Callable[[list[Action]], None],
        in_pool: Callable[[Callable[[], None]], None],
        *,
        ttl_s: float = SESSION_TTL_S,
    ) -> None:
        """`unsealed`: every segment of the cluster that is not sealed; `perform` carries out what
        the controller asks for; `in_pool` calls something in a thread that may wait."""
        self._cluster = cluster
        self._config_of = config_of
        self._unsealed = unsealed
        self._perform = perform
        self._in_pool = in_pool
        self._is_starting = False
        self.facts: dict[SegmentId, dict[Point, Facts]] = {}
        """How the segments that are being sealed would be sealed at the ends that replicas told."""
        self.controller: Controller | None = None
        self.candidate = Candidate(
            cluster.store,
            str(cluster.node),
            is_taken=lambda: cluster.cache.get(REPLICATION_CONTROLLER_KEY) is not None,
            key=REPLICATION_CONTROLLER_KEY,
            clock=clock,
            ttl_s=ttl_s,
        )

    @property
    def holder(self) -> NodeId | None:
        """The node of the controller, as this node knows."""
        entry = self._cluster.cache.get(REPLICATION_CONTROLLER_KEY)
        return None if entry is None else NodeId(int(entry.value))

    def guard(self, term: Revision) -> Compare | None:
        """What a transaction of this term compares; None if the term is over."""
        guard = self.candidate.guard()
        return guard if guard is not None and guard.revision == term else None

    def give(self, event: ControllerEvent) -> None:
        controller = self.controller
        if controller is None:
            return
        self._perform(controller.handle(event, MonotonicMs(monotonic_ms())))
        for segment in self.facts.keys() - controller.seals.keys():
            del self.facts[segment]
        if controller.is_deposed:
            self._end("another node is elected")

    def received(self, message: WithFacts | SealRequest) -> None:
        """What replicas and leaders tell the controller."""
        if isinstance(message, SealRequest):
            self.give(Received(message=message))
            return
        for segment, at, facts in message.facts:
            if self.controller is not None and segment in self.controller.seals:
                self.facts.setdefault(segment, {})[at] = facts
        self.give(Received(message=message.message))

    def record_seen(self, record: ReplicatedSegment) -> None:
        if self.controller is not None:
            self.give(RecordSeen(record=record))

    def node_seen(self, node: int, record: NodeRecord | None) -> None:
        incarnation = None if record is None else Incarnation(record.incarnation)
        self.give(NodeSeen(node=NodeId(node), incarnation=incarnation))

    def forget(self, segment: SegmentId) -> None:
        if self.controller is not None:
            self.controller.forget(segment)
        self.facts.pop(segment, None)

    def tick(self) -> None:
        guard = self.candidate.guard()
        if guard is None:
            if self.controller is not None:
                self._end("its session is not confirmed")
            return
        if self.controller is not None and self.controller.term != guard.revision:
            self._end("it is elected again")
        if self.controller is None and not self._is_starting:
            self._is_starting = True
            self._in_pool(partial(self._catch_up, Revision(guard.revision)))
        self.give(Tick())

    def _catch_up(self, term: Revision) -> None:
        """In the pool: a node that is registered and not known here would be taken for lost."""
        try:
            self._cluster.catch_up()
        except FirnError as error:
            _log.warning("controller_is_behind", error=str(error))
            self._cluster.network.soon(partial(self._start, None))
        else:
            self._cluster.network.soon(partial(self._start, term))

    def _start(self, term: Revision | None) -> None:
        self._is_starting = False
        if term is None or self.guard(term) is None or self.controller is not None:
            return
        alive = {
            NodeId(node): Incarnation(record.incarnation)
            for node, record in dict(self._cluster.members.registered).items()
        }
        self.controller = Controller(NodeId(self._cluster.node), term, alive, self._config_of)
        _log.info("replication_controller", node=self._cluster.node, term=term, alive=len(alive))
        for record in self._unsealed():
            assert record.state is not RecordState.SEALED
            self.give(RecordSeen(record=record))

    def _end(self, reason: str) -> None:
        if self.controller is not None:
            self.controller.depose()
            self.controller = None
            self.facts.clear()
            _log.info("replication_controller_ends", node=self._cluster.node, reason=reason)

    def close(self) -> None:
        """Any thread: ends the session, so that another node is elected at once."""
        self.candidate.stop()
