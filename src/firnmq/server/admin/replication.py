"""How shards with several replicas are: what the status and the metrics of a node say of them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily, Metric

from firnmq.adapter import TopicCatalog
from firnmq.cluster.nodes.cluster import Cluster
from firnmq.cluster.nodes.replica_sets import ReplicaSet
from firnmq.cluster.replication.driving.driver import ReplicationDriver
from firnmq.server.replication_documents import ReplicatedShard, ReplicationStatus

_SHOWN_MAX = 100


def replication_status(
    cluster: Cluster, driver: ReplicationDriver, catalog: TopicCatalog
) -> ReplicationStatus:
    """From the node's cache: nothing is waited for."""
    there = frozenset(cluster.members.registered)
    shards = list(cluster.replica_sets.items())
    poor = [each for each in shards if _in_sync(each[1], there) < len(each[1].replicas)]
    offline = [each for each in shards if _leader(each[1], there) is None]
    shown = sorted(dict([*offline, *poor]).items())[:_SHOWN_MAX]
    return ReplicationStatus(
        controller=driver.control.holder,
        shard_count=len(shards),
        under_replicated=len(poor),
        offline=len(offline),
        lossy_segments=cluster.replica_sets.lossy_count,
        lag_records=driver.lag_records(),
        shards=[_shard(name, placed, there, catalog) for name, placed in shown],
    )


def replication_metrics(status: ReplicationStatus, leads_count: int) -> Iterator[Metric]:
    yield _gauge("firn_replicated_shards", "Shards with several replicas.", status.shard_count)
    yield _gauge("firn_replicated_shards_led", "Those of them led here.", leads_count)
    yield _gauge(
        "firn_under_replicated_shards",
        "Shards with fewer replicas in sync than they have.",
        status.under_replicated,
    )
    yield _gauge("firn_offline_shards", "Replicated shards without a leader.", status.offline)
    yield _gauge(
        "firn_lossy_segments",
        "Segments that were sealed though records may be lost.",
        status.lossy_segments,
    )
    yield _gauge(
        "firn_replica_lag_records",
        "By how much the last replica is behind, of shards that are led here.",
        status.lag_records,
    )


def _gauge(name: str, text: str, value: int) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value)


def _in_sync(placed: ReplicaSet, there: frozenset[int]) -> int:
    return sum(node in there for node in placed.in_sync)


def _leader(placed: ReplicaSet, there: frozenset[int]) -> int | None:
    return placed.leader if placed.leader in there and not placed.is_fencing else None


def _shard(
    name: str, placed: ReplicaSet, there: frozenset[int], catalog: TopicCatalog
) -> ReplicatedShard:
    topic_id, _, seq = name.rpartition("_")
    topic = catalog.registered(topic_id)
    return ReplicatedShard(
        topic=topic_id if topic is None else topic.name,
        shard=int(seq),
        leader=_leader(placed, there),
        replicas=list(placed.replicas),
        in_sync=[node for node in placed.in_sync if node in there],
    )
