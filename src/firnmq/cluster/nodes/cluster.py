"""What a node knows and does as a member of a cluster."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from firnmq.clock import Clock, SystemClock
from firnmq.cluster.nodes.balance import NodeLoad
from firnmq.cluster.nodes.claims import TopicClaims
from firnmq.cluster.nodes.coordinators import Coordinators
from firnmq.cluster.nodes.cordons import Cordons, Loads
from firnmq.cluster.nodes.leaders import Leaders
from firnmq.cluster.nodes.members import Members
from firnmq.cluster.nodes.placement import Candidate, place
from firnmq.cluster.nodes.registration import Registration
from firnmq.cluster.nodes.replica_sets import ReplicaSets
from firnmq.cluster.peers import Certificates, PeerNetwork
from firnmq.config import TopicConfig
from firnmq.disk import Ticket, run_blocking
from firnmq.errors import FirnError, InvalidArgument, NodeUnavailable, TooFewNodes
from firnmq.eventlog import EventLogger
from firnmq.meta import MetaCache, MetaShards, MetaStore, NodeIdentity
from firnmq.meta.records import NodeRecord, Replica

_log = EventLogger("cluster")

CATCH_UP_S = 3.0
"""How long a node waits until its cache has what the store has."""
PING = "ping"
"""The operation that every node answers at once."""
_PING_S = 1.0


class Cluster:
    """Safe with threads."""

    def __init__(
        self,
        store: MetaStore,
        cache: MetaCache,
        shards: MetaShards,
        identity: NodeIdentity,
        secret: bytes,
        certificates: Certificates | None = None,
        clock: Clock | None = None,
        *,
        replication_factor: int = 1,
    ) -> None:
        """`replication_factor`: of new topics that do not say it, where there are so many nodes."""
        self._replication_factor = replication_factor
        self.store = store
        self.cache = cache
        self.shards = shards
        self.identity = identity
        self.node = identity.node
        self.members = Members(cache, identity.node)
        clock = clock or SystemClock()
        self.leaders = Leaders(cache, clock)
        self.replica_sets = ReplicaSets(cache)
        self.network = PeerNetwork(identity.node, secret, self.members.address_of, certificates)
        self.coordinators = Coordinators(store, cache, self.answering)
        self.members.on_gone = self.network.forget
        self.registration: Registration | None = None
        """Once the node serves."""
        self.on_session: Callable[[int], None] = lambda asked_ms: None
        """Told when the store has prolonged the node's session, with when it was asked to."""
        holder = str(identity.replica)
        self._claims = TopicClaims(store, holder, lambda: self.registration, clock)
        self.cordons = Cordons(store, cache, clock)
        self.loads = Loads(store, cache, clock, identity.node)

    def close(self) -> None:
        if self.registration is not None:
            self.registration.close()
        self.network.close()

    def answering(self) -> list[NodeRecord]:
        """The registered nodes that answer now: one that was killed or stands still stays
        registered until its session ends. Waits for them."""
        records = list(self.members.registered.values())
        silent = run_blocking(self._silent({record.node for record in records} - {self.node}))
        if silent:
            _log.warning("nodes_do_not_answer", nodes=",".join(map(str, sorted(silent))))
        return [record for record in records if record.node not in silent]

    async def _silent(self, nodes: set[int]) -> set[int]:
        """Those that do not answer. All are asked at the same time."""
        tickets: dict[int, Ticket[None]] = {
            node: self.network.call(node, PING, b"", _nothing, timeout_s=_PING_S) for node in nodes
        }
        silent = set()
        for node, ticket in tickets.items():
            try:
                await ticket
            except FirnError:
                silent.add(node)
        return silent

    def node_loads(self, movable: Mapping[int, Sequence[str]] | None = None) -> list[NodeLoad]:
        """The nodes that are registered, with what they lead, as this node's cache knows it.
        `movable`: which of their shards could be on other nodes."""
        found = []
        for node in sorted(self.members.registered):
            told = self.loads.by_node.get(node)
            found.append(
                NodeLoad(
                    node=node,
                    leader_count=self.leaders.count_of(node),
                    movable=() if movable is None else movable.get(node, ()),
                    stored_bytes=0 if told is None else told.stored_bytes,
                    free_bytes=None if told is None else told.free_bytes,
                    is_cordoned=node in self.cordons.nodes,
                )
            )
        return found

    def _not_cordoned(self, records: list[NodeRecord]) -> list[NodeRecord]:
        """Those that may get shards; all of them, if all are cordoned."""
        free = [record for record in records if record.node not in self.cordons.nodes]
        return free or records

    def place(self, names: list[str], factor: int = 1) -> dict[str, tuple[Replica, ...]]:
        """The replicas of each new shard, the first of which leads; NodeUnavailable if there is no
        node for them, TooFewNodes if there are fewer than `factor`. Waits for nodes that do not
        answer."""
        candidates = [
            Candidate(
                replica=Replica(record.node, record.incarnation),
                leader_count=self.leaders.count_of(record.node),
                rack=record.peers.rpartition(":")[0],
            )
            for record in self._not_cordoned(self.answering())
        ]
        if not candidates:
            raise NodeUnavailable(self.node, "no node is registered that could lead new shards")
        if factor > len(candidates):
            raise TooFewNodes(factor, len(candidates))
        return dict(zip(names, place(len(names), candidates, factor), strict=True))

    def with_replicas(self, config: TopicConfig) -> TopicConfig:
        """The options of a new topic, with the number of its replicas decided; TooFewNodes if there
        are fewer nodes."""
        count = len(self.members.registered)
        factor = config.replication_factor
        if factor is None:
            is_single = config.not_replicable is not None or count < self._replication_factor
            factor = 1 if is_single else self._replication_factor
        if factor > 1 and factor > count:
            raise TooFewNodes(factor, count)
        return dataclasses.replace(config, replication_factor=factor)

    def catch_up(self) -> None:
        """Returns once the cache has everything that the store has now; CacheBehind if it does not
        in time."""
        self.cache.wait_for_revision(self.store.range("cluster").revision, CATCH_UP_S)

    def claim_topic(self, name: str, refusal: FirnError) -> AbstractContextManager[None]:
        """Keeps other nodes from making, deleting or growing a topic of this name until the exit,
        or until this node's session ends. `refusal` if another node does already."""
        return self._claims.claim(name, refusal)

    def renewed(self, error: FirnError | None) -> None:
        """The registration has tried to renew its session, and failed with the error, if any."""
        if error is None:
            if self.registration is not None:
                self.on_session(self.registration.renewed_ms)
            try:
                self._claims.release_left()
            except FirnError as failure:
                _log.warning("topic_claims_left_behind", error=str(failure))

    def check_member(self, node: int) -> None:
        """InvalidArgument for a node that does not belong to the cluster."""
        if node not in self.members.known:
            known = ", ".join(map(str, sorted(self.members.known)))
            raise InvalidArgument("node", f"there is no node {node}; there are {known}")


def _nothing(value: memoryview, raw: memoryview) -> None:
    return None
