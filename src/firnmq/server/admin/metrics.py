"""The node's metrics in Prometheus's text format.

The counters are plain numbers elsewhere; the code here runs only during a scrape.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.brokers.kafka.statistics import LATENCY_BUCKETS_S
from firnmq.disk import call_blocking
from firnmq.errors import FirnError
from firnmq.health import ProblemKind
from firnmq.server.admin.endpoints.groups import GroupAdmin
from firnmq.server.admin.http.limits import BodyBudget
from firnmq.server.admin.parts import NodeParts
from firnmq.server.admin.replication import replication_metrics, replication_status
from firnmq.tiering.move.status import TierStatus
from firnmq.version import __version__

_PROBLEMS = {
    ProblemKind.SHARD_FAILED: (
        "firn_shards_failed",
        "Shards that refuse appends, or cannot be opened, after a failure of storage.",
    ),
    ProblemKind.SEGMENT_UNREADABLE: (
        "firn_shards_unreadable",
        "Shards with a segment that is missing or corrupt.",
    ),
    ProblemKind.OBJECT_STORE_MISSING: (
        "firn_shards_without_object_store",
        "Shards with segments that are only in an object store, which the node does not have.",
    ),
    ProblemKind.DATABASE_FAILED: (
        "firn_databases_failed",
        "Databases of the node that refuse writes.",
    ),
    ProblemKind.DISK_FULL: ("firn_disk_full", "1 while appends are refused for want of room."),
    ProblemKind.METADATA_AWAY: (
        "firn_metadata_away",
        "1 while the metadata of the cluster cannot be changed.",
    ),
}
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What the node says in one scrape. Of topics it counts the shards that it leads, so that the
    nodes of a cluster add up."""

    def __init__(self, parts: NodeParts, groups: GroupAdmin, bodies: BodyBudget) -> None:
        self._parts = parts
        self._groups = groups
        self._bodies = bodies
        self._process = ProcessCollector(registry=None)
        self._series_max = parts.config.admin.metrics_series_max

    async def families(self) -> list[Metric]:
        found = [*self._process.collect(), self._build(), *self._broker(), *self._storage()]
        found += [*await self._topics(), *await self._lag()]
        tier = self._parts.local.tier
        if tier is not None:
            status = await call_blocking(None, tier.mover.status)
            found += _tiering(status)
        member = self._parts.local.member
        if member is not None:
            driver = member.replication
            found += replication_metrics(
                replication_status(member.cluster, driver, self._parts.local.catalog),
                driver.led_count,
            )
        return found

    def _build(self) -> Metric:
        info = GaugeMetricFamily(
            "firn_build_info", "1; the labels say what runs.", labels=["version", "python"]
        )
        info.add_metric([__version__, platform.python_version()], 1)
        return info

    def _broker(self) -> Iterator[Metric]:
        broker = self._parts.broker
        numbers = broker.statistics
        requests = CounterMetricFamily(
            "firn_requests", "Kafka requests answered.", labels=["api", "error"]
        )
        latency = HistogramMetricFamily(
            "firn_request_seconds", "Time from request to response.", labels=["api"]
        )
        for api in numbers.apis.values():
            if not api.request_count:
                continue
            failed = sum(api.errors.values())
            requests.add_metric([api.api, ErrorCode.NONE.name], api.request_count - failed)
            for code, count in api.errors.items():
                requests.add_metric([api.api, _code_name(code)], count)
            latency.add_metric([api.api], _buckets(api.latency_counts), api.latency_sum_s)
        yield requests
        yield latency
        yield _counter("firn_received_bytes", "Bytes from clients.", numbers.received_bytes)
        yield _counter("firn_sent_bytes", "Bytes to clients.", numbers.sent_bytes)
        yield _counter(
            "firn_fetched_records", "Records sent to Kafka clients.", broker.fetched_record_count
        )
        yield _gauge("firn_connections", "Open connections.", broker.connection_count)
        yield _counter("firn_connections_accepted", "Connections so far.", numbers.accepted_count)
        refused = CounterMetricFamily(
            "firn_connections_limited", "Connections refused or closed.", labels=["limit"]
        )
        for limit, count in numbers.closed_by_limit.items():
            refused.add_metric([limit], count)
        yield refused
        yield _counter(
            "firn_authentication_failures",
            "Clients that did not prove who they are.",
            numbers.authentication_failed_count,
        )
        audit = broker.audit
        yield _counter("firn_audit_changes", "Administrative changes.", audit.change_count)
        denied = CounterMetricFamily(
            "firn_audit_refusals",
            "Requests that were refused to clients without the right.",
            labels=["operation", "resource"],
        )
        for (operation, kind), count in audit.refusals.items():
            denied.add_metric([operation, kind], count)
        yield denied
        yield _counter(
            "firn_audit_suppressed", "Audit lines left out, too many.", audit.suppressed_count
        )
        yield _gauge(
            "firn_bytes_in_flight", "Bytes of unanswered requests.", broker.budget.used_bytes
        )
        yield _gauge(
            "firn_http_body_bytes", "Bytes of unanswered HTTP requests.", self._bodies.used_bytes
        )

    def _of_cluster(self) -> Iterator[Metric]:
        local = self._parts.local
        member = local.member
        if member is None or local.peers is None:
            return
        fetched = local.peers.statistics()
        yield _counter(
            "firn_shards_moved",
            "Shards that this node has given to others.",
            member.mover.moved_count,
        )
        yield _counter(
            "firn_peer_fetched_bytes",
            "Bytes of segments that this node has read from others that hold them.",
            fetched.fetched_bytes,
        )
        yield _counter(
            "firn_peer_served_bytes",
            "Bytes of segments that others have read from this node.",
            member.holder.served_bytes,
        )

    def _storage(self) -> Iterator[Metric]:
        files = self._parts.local.file_statistics()
        pool = self._parts.local.pool_statistics()
        yield _counter("firn_fsyncs", "Syncs of segment files.", files.sync_count)
        yield _counter("firn_written_bytes", "Bytes to segment files.", files.written_bytes)
        yield from self._of_cluster()
        yield _gauge("firn_open_files", "Segment files open.", files.open_files)
        yield _counter("firn_turns", "Turns of the I/O workers.", pool.turn_count)
        yield _counter(
            "firn_turn_requests",
            "Appends served by turns; divided by turns, how many share a sync.",
            pool.request_count,
        )
        yield _gauge("firn_queued_requests", "Appends that wait.", pool.queued_requests)
        yield _gauge("firn_queued_bytes", "Bytes of appends that wait.", pool.queued_bytes)
        yield from self._health()
        yield from self._compaction()
        groups = self._parts.coordinator.statistics()
        yield _gauge("firn_groups", "Groups in memory.", groups.group_count)
        yield _gauge("firn_group_members", "Members of all groups.", groups.member_count)

    def _health(self) -> Iterator[Metric]:
        local = self._parts.local
        for kind, (name, text) in _PROBLEMS.items():
            yield _gauge(name, text, local.health.count(kind))
        yield _gauge(
            "firn_disk_free_bytes", "Free on the data directory's disk.", local.guard.free_bytes
        )
        yield _gauge(
            "firn_disk_reserve_bytes",
            "Kept for a full disk; 0 with much room, and while the disk is full.",
            local.guard.reserve_bytes,
        )

    def _compaction(self) -> Iterator[Metric]:
        passes = CounterMetricFamily(
            "firn_compactions", "Compactions of shards.", labels=["storage_type"]
        )
        records = CounterMetricFamily(
            "firn_compaction_records",
            "Records of segments that were rewritten.",
            labels=["storage_type", "direction"],
        )
        size = CounterMetricFamily(
            "firn_compaction_bytes",
            "Bytes of segments that were rewritten.",
            labels=["storage_type", "direction"],
        )
        for name, counts in self._parts.local.compaction_counts().items():
            passes.add_metric([name], counts.pass_count)
            records.add_metric([name, "in"], counts.records_in)
            records.add_metric([name, "out"], counts.records_out)
            size.add_metric([name, "in"], counts.bytes_in)
            size.add_metric([name, "out"], counts.bytes_out)
        yield passes
        yield records
        yield size

    async def _topics(self) -> list[Metric]:
        shards = GaugeMetricFamily("firn_topic_shards", "Shards.", labels=["topic"])
        stored = GaugeMetricFamily("firn_topic_bytes", "Bytes stored.", labels=["topic"])
        segments = GaugeMetricFamily("firn_topic_segments", "Segments.", labels=["topic"])
        appended = CounterMetricFamily(
            "firn_topic_appended_records",
            "Records appended since the topic was created, over restarts.",
            labels=["topic"],
        )
        starts = GaugeMetricFamily(
            "firn_shard_start_offset", "First readable offset.", labels=["topic", "shard"]
        )
        ends = GaugeMetricFamily(
            "firn_shard_end_offset", "Offset of the next record.", labels=["topic", "shard"]
        )
        manager = self._parts.local.manager
        left = self._series_max
        for topic in self._parts.local.catalog.topics():
            left -= topic.shard_count
            if left < 0:
                break
            logs = manager.driver(topic.config.storage_type).logs
            if logs is None:
                shards.add_metric([topic.name], topic.shard_count)
                continue
            led = [each for each in enumerate(topic.shard_names()) if logs.leads(each[1])]
            shards.add_metric([topic.name], len(led))
            try:
                found = [(seq, await logs.status(shard)) for seq, shard in led]
            except FirnError:
                continue  # Deleted during the scrape, or its storage fails: others are still shown.
            stored.add_metric([topic.name], sum(status.length_bytes for _, status in found))
            segments.add_metric([topic.name], sum(len(status.segments) for _, status in found))
            appended.add_metric([topic.name], sum(status.end_offset for _, status in found))
            for seq, status in found:
                starts.add_metric([topic.name, str(seq)], status.start_offset)
                ends.add_metric([topic.name, str(seq)], status.end_offset)
        return [shards, stored, segments, appended, starts, ends]

    async def _lag(self) -> list[Metric]:
        lag = GaugeMetricFamily(
            "firn_group_lag",
            "Records a group has not read yet.",
            labels=["group", "topic", "shard"],
        )
        left = self._series_max
        for group in await self._groups.names():
            try:
                rows = await self._groups.lag(group)
            except FirnError:
                continue
            left -= len(rows)
            if left < 0:
                break
            for row in rows:
                if row.lag is not None:
                    lag.add_metric([group, row.topic, str(row.shard)], row.lag)
        return [lag]


def scrape_text(families: list[Metric]) -> bytes:
    """Families in Prometheus's text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families(families))
    return generate_latest(registry)


class _Families(Collector):
    """Hands out what was gathered."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _tiering(status: TierStatus) -> Iterator[Metric]:
    yield _gauge("firn_tier_up", "Whether the object store can be used.", status.state == "ok")
    yield _gauge("firn_tier_waiting_segments", "Sealed, not uploaded.", status.waiting_segments)
    yield _gauge("firn_tier_waiting_bytes", "Sealed, not uploaded.", status.waiting_bytes)
    yield _gauge(
        "firn_tier_lag_seconds", "How long the oldest upload is overdue.", status.lag_ms / 1000
    )
    yield _gauge("firn_tier_segments", "In the object store.", status.tiered_segments)
    yield _gauge("firn_tier_bytes", "In the object store.", status.tiered_bytes)
    yield _gauge("firn_tier_local_bytes", "In the store and here.", status.local_bytes)
    yield _gauge("firn_tier_dead_segments", "To be removed there.", status.dead_segments)
    yield _gauge("firn_tier_appends_held", "Whether too much waits.", status.is_holding_appends)
    yield _counter("firn_tier_uploads", "Segments uploaded.", status.upload_count)
    yield _counter("firn_tier_uploaded_bytes", "Bytes uploaded.", status.uploaded_bytes)
    yield _counter("firn_tier_dropped_segments", "Dropped here.", status.dropped_count)
    yield _counter("firn_tier_removed_segments", "Removed there.", status.removed_count)
    failures = CounterMetricFamily("firn_tier_failures", "Attempts that failed.", labels=["kind"])
    for kind, count in status.failure_counts.items():
        failures.add_metric([kind], count)
    yield failures
    cache = status.cache
    yield _counter("firn_cold_read_bytes", "Bytes fetched from the store.", cache.fetched_bytes)
    yield _counter("firn_cold_fetches", "Fetches from the store.", cache.fetch_count)
    yield _counter("firn_cold_failed_fetches", "Fetches that failed.", cache.failed_fetch_count)
    yield _counter("firn_cold_cache_hits", "Reads that needed no fetch.", cache.hit_count)
    yield _counter("firn_cold_paced", "Chunks read later beside appends.", cache.paced_count)
    yield _gauge("firn_cold_cache_bytes", "Held on disk.", cache.disk_bytes)


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    """Counts per bucket as counts up to each bound."""
    total = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*LATENCY_BUCKETS_S, "+Inf"), counts, strict=True):
        total += count
        buckets.append((str(bound), total))
    return buckets


def _code_name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)
