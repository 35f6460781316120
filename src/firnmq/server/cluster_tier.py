"""Tiering by several nodes: which part this one does, and the offsets of all groups.

The directory that has claimed the objects is the whole cluster's: its nodes share one claim.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

import msgspec

from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.peers import Request, Served
from firnmq.disk import Ticket, call_blocking, run_blocking
from firnmq.errors import FirnError
from firnmq.meta import MetaStore
from firnmq.meta.records import CLUSTER, ClusterRecord, ShardRecord, decode
from firnmq.server.identity import SINGLE_KEY
from firnmq.tiering.archive.group_offsets import Committed, GroupOffsets
from firnmq.tiering.format.manifest import StoredOffset

OPERATION: Final = "tier_groups"
_ANSWER_S = 10.0
_CLAIMED_BY = "tier_directory"
"""Key in the metadata: the directory that had the objects before it became a cluster's."""


def claiming_directory(meta: MetaStore) -> str:
    """The id under which the objects in the store are claimed."""
    for key in (SINGLE_KEY, _CLAIMED_BY):
        entry = meta.get(key)
        if entry is not None:
            return entry.value.decode()
    entry = meta.get(CLUSTER)
    assert entry is not None, "metadata without a directory are a cluster's"
    return decode(entry, ClusterRecord).cluster_id


def kept_claim(directory_id: str) -> dict[str, bytes]:
    """What the metadata of a directory that becomes a cluster's has to hold, so that its claim to
    its objects is the cluster's."""
    return {_CLAIMED_BY: directory_id.encode()}


class ClusterShare:
    """A Share: what is about a shard is its leader's, and all else the lowest node's that is
    there."""

    is_whole = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    @property
    def is_keeper(self) -> bool:
        registered = self._cluster.members.registered
        return self._cluster.node == min(list(registered), default=None)

    def has(self, shard: ShardRecord) -> bool:
        return shard.leader == self._cluster.node


class OwnGroups:
    """A GroupSource of a node that is alone."""

    def __init__(self, own: Callable[[], GroupOffsets]) -> None:
        self._own = own

    def __call__(self) -> Committed:
        return Committed(self._own())


class ClusterGroups:
    """A GroupSource: asks all nodes what their groups have committed."""

    def __init__(self, cluster: Cluster, own: Callable[[], GroupOffsets]) -> None:
        """`own` gives what the groups of this node have committed."""
        self._cluster = cluster
        self._own = own

    def __call__(self) -> Committed:
        found, answered = run_blocking(self._of_others())
        return Committed(
            {**found, **self._own()}, partial(self._is_away, answered | {self._cluster.node})
        )

    async def _of_others(self) -> tuple[dict[str, Mapping[str, StoredOffset]], set[int]]:
        """What the groups of other nodes have committed, and which nodes have told."""
        cluster = self._cluster
        asked: dict[int, Ticket[GroupOffsets]] = {
            node: cluster.network.call(node, OPERATION, b"", _groups, timeout_s=_ANSWER_S)
            for node in list(cluster.members.registered)
            if node != cluster.node
        }
        found: dict[str, Mapping[str, StoredOffset]] = {}
        answered = set()
        for node, ticket in asked.items():
            try:
                found.update(await ticket)
            except FirnError:
                continue  # Its groups stay as they are in the store.
            answered.add(node)
        return found, answered

    async def serve(self, request: Request) -> Awaitable[Served]:
        """Answers another node's question; runs in the network's event loop."""

        async def answer() -> Served:
            groups = await call_blocking(None, self._own)
            return Served(msgspec.msgpack.encode(groups))

        return answer()

    def _is_away(self, answered: set[int], group: str) -> bool:
        node = self._cluster.coordinators.get(group)
        return node is not None and node not in answered


def _groups(value: memoryview, raw: memoryview) -> GroupOffsets:
    return msgspec.msgpack.decode(value, type=dict[str, dict[str, StoredOffset]])
