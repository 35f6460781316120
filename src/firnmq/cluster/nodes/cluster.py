"""What a node knows and does as a member of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firnmq.cluster.nodes.coordinators import Coordinators
from firnmq.cluster.nodes.leaders import Leaders
from firnmq.cluster.nodes.members import Members
from firnmq.cluster.nodes.placement import Candidate, place
from firnmq.cluster.nodes.registration import Registration
from firnmq.cluster.peers import PeerNetwork
from firnmq.errors import Closed, FirnError, InvalidArgument, NodeUnavailable
from firnmq.eventlog import EventLogger
from firnmq.meta import Compare, MetaCache, MetaShards, MetaStore, NodeIdentity, TxnConflict
from firnmq.meta.records import Replica, topic_claim_key

_log = EventLogger("cluster")

CATCH_UP_S = 3.0
"""How long a node waits until its cache has what the store has."""


class Cluster:
    """Safe with threads."""

    def __init__(
        self,
        store: MetaStore,
        cache: MetaCache,
        shards: MetaShards,
        identity: NodeIdentity,
        secret: bytes,
    ) -> None:
        self.store = store
        self.cache = cache
        self.shards = shards
        self.identity = identity
        self.node = identity.node
        self.members = Members(cache, identity.node)
        self.leaders = Leaders(cache)
        self.coordinators = Coordinators(store, cache, self.members)
        self.network = PeerNetwork(identity.node, secret, self.members.address_of)
        self.members.on_gone = self.network.forget
        self.registration: Registration | None = None
        """Once the node serves."""

    def close(self) -> None:
        if self.registration is not None:
            self.registration.close()
        self.network.close()

    def place(self, names: list[str]) -> dict[str, Replica]:
        """A leader for each new shard; NodeUnavailable if no node is registered."""
        candidates = [
            Candidate(
                replica=Replica(record.node, record.incarnation),
                leader_count=self.leaders.count_of(record.node),
            )
            for record in list(self.members.registered.values())
        ]
        chosen = place(len(names), candidates)
        if not chosen:
            raise NodeUnavailable(self.node, "no node is registered that could lead new shards")
        return dict(zip(names, chosen, strict=True))

    def catch_up(self) -> None:
        """Returns once the cache has everything that the store has now; CacheBehind if it does not
        in time."""
        self.cache.wait_for_revision(self.store.range("cluster").revision, CATCH_UP_S)

    @contextmanager
    def claim_topic(self, name: str, refusal: FirnError) -> Iterator[None]:
        """Keeps other nodes from making, deleting or growing a topic of this name until the exit,
        or until this node's session ends. `refusal` if another node does already."""
        registration = self.registration
        if registration is None:
            raise Closed("the node is not registered yet, or not any more; try again")
        key = topic_claim_key(name)
        claim = str(self.identity.replica).encode()
        try:
            revision = self.store.txn(
                [Compare.absent(key)], {key: claim}, session=registration.session
            )
        except TxnConflict:
            raise refusal from None
        try:
            yield
        finally:
            try:
                self.store.txn([Compare(key=key, revision=revision)], {}, [key])
            except TxnConflict:
                _log.warning("topic_claim_lapsed", topic=name)
            except FirnError as error:
                _log.warning("topic_claim_left_behind", topic=name, error=str(error))

    def check_member(self, node: int) -> None:
        """InvalidArgument for a node that does not belong to the cluster."""
        if node not in self.members.known:
            known = ", ".join(map(str, sorted(self.members.known)))
            raise InvalidArgument("node", f"there is no node {node}; there are {known}")
