"""The nodes that Kafka clients are told of: this one alone, or those of a cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from typing import NamedTuple, Protocol

from firnmq.brokers.net.address import Address
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.nodefile import split_address

NO_LEADER = -1


class BrokerAddress(NamedTuple):
    node_id: int
    host: str
    port: int


class Leader(NamedTuple):
    node_id: int
    """`NO_LEADER` while the leader is away."""
    epoch: int
    replicas: tuple[int, ...] = ()
    """The nodes that have the records, there or not."""
    in_sync: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class KafkaNodes(Protocol):
    @property
    def cluster_id(self) -> str: ...

    def brokers(self) -> list[BrokerAddress]:
        """Those that are there."""

    def members(self) -> list[BrokerAddress]:
        """Those that belong to the cluster, there or not. Metadata has them all: librdkafka forgets
        a broker that is missing there, and may wait forever for requests that it had for it."""

    def controller_id(self) -> int: ...

    def leaders(self, shards: Sequence[str]) -> list[Leader] | None:
        """The leaders of a topic's shards; None if this node leads them all."""

    async def coordinator(self, name: str) -> BrokerAddress | None:
        """The coordinator of a group or transactional id, there or not: nothing else can take its
        place. None if no node can be given to it. librdkafka waits for a node that it cannot
        connect to, but after the third answer that there is none it may wait forever."""

    async def other_coordinator(self, name: str) -> int | None:
        """The other node that coordinates an id; None if this node does."""


class OneNode:
    """KafkaNodes where this node is the only one."""

    def __init__(self, node_id: int, cluster_id: str, address: Address) -> None:
        self._node_id = node_id
        self.cluster_id = cluster_id
        self._address = address

    def _here(self) -> BrokerAddress:
        return BrokerAddress(self._node_id, self._address.host, self._address.port)

    def brokers(self) -> list[BrokerAddress]:
        return [self._here()]

    members = brokers

    def controller_id(self) -> int:
        return self._node_id

    def leaders(self, shards: Sequence[str]) -> list[Leader] | None:
        return None

    async def coordinator(self, name: str) -> BrokerAddress | None:
        return self._here()

    async def other_coordinator(self, name: str) -> int | None:
        return None


class ClusterNodes:
    """KafkaNodes from the records of a cluster."""

    def __init__(self, cluster: Cluster, cluster_id: str, executor: Executor | None = None) -> None:
        self._cluster = cluster
        self.cluster_id = cluster_id
        self._executor = executor

    def brokers(self) -> list[BrokerAddress]:
        nodes = sorted(self._cluster.members.registered.items())
        return [BrokerAddress(node, *split_address(record.kafka)) for node, record in nodes]

    def members(self) -> list[BrokerAddress]:
        members = self._cluster.members
        known = {node: record.kafka for node, record in members.known.items() if record.kafka}
        known |= {node: record.kafka for node, record in members.registered.items()}
        return [BrokerAddress(node, *split_address(known[node])) for node in sorted(known)]

    def controller_id(self) -> int:
        """Any node takes requests for the controller; clients are told of the first one."""
        return min(self._cluster.members.registered, default=self._cluster.node)

    def leaders(self, shards: Sequence[str]) -> list[Leader] | None:
        there = self._cluster.members.registered
        found = []
        for shard in shards:
            led = self._cluster.leaders.get(shard)
            if led is None:
                found.append(Leader(NO_LEADER, -1))
                continue
            placed = self._cluster.replica_sets.get(shard)
            node = led.leader if led.leader in there else NO_LEADER
            replicas: tuple[int, ...] = (led.leader,)
            in_sync = replicas
            if placed is not None:
                replicas, in_sync = placed.replicas, placed.in_sync
                node = NO_LEADER if placed.is_fencing else node
            offline = tuple(each for each in replicas if each not in there)
            in_sync = tuple(each for each in in_sync if each in there)
            found.append(Leader(node, led.epoch, replicas, in_sync, offline))
        return found

    async def coordinator(self, name: str) -> BrokerAddress | None:
        node = await self._find(name)
        return next((each for each in self.members() if each.node_id == node), None)

    async def other_coordinator(self, name: str) -> int | None:
        node = await self._find(name)
        return None if node == self._cluster.node else node

    async def _find(self, name: str) -> int | None:
        node = self._cluster.coordinators.get(name)
        if node is not None:
            return node
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._cluster.coordinators.find, name)
