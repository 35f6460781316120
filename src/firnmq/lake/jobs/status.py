"""How far a topic's table is behind its log, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from firnmq.lake.jobs.sync import waiting_bytes
from firnmq.lake.plans.plan import Plan
from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.deletions import Deleter
from firnmq.lake.tables.table import TopicTable, find_table


class ShardStatus(msgspec.Struct, frozen=True, kw_only=True):
    shard: int
    log_start: int
    log_end: int
    """End of what is committed."""
    table_end: int
    lag: int
    """Offsets that are in the log and not in the table."""


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    table: str
    exists: bool
    mode: str | None = None
    partition: str | None = None
    location: str | None = None
    catalog: str
    rows: int = 0
    files: int = 0
    file_bytes: int = 0
    snapshots: int = 0
    committed_ms: int | None = None
    """When the newest snapshot was made."""
    lag: int = 0
    waiting_bytes: int = 0
    waiting_deletions: int = 0
    """Deletions by key or offset of records that may still be rows."""
    shards: tuple[ShardStatus, ...] = ()


def table_status(plan: Plan, options: Mapping[str, str]) -> TableStatus:
    """By a plan of the whole topic."""
    assert plan.table is not None
    with OpenCatalog(plan.table, options) as catalog:
        table = find_table(catalog, plan.topic, plan.topic_id)
        ends = {} if table is None else table.ends()
        shards = tuple(
            ShardStatus(
                shard=shard.shard,
                log_start=shard.start_offset,
                log_end=shard.end_offset,
                table_end=ends.get(shard.shard, 0),
                lag=max(0, shard.end_offset - max(shard.start_offset, ends.get(shard.shard, 0))),
            )
            for shard in plan.shards
        )
        status = TableStatus(
            topic=plan.topic,
            table=plan.table.name,
            exists=table is not None,
            catalog=plan.table.catalog,
            lag=sum(shard.lag for shard in shards),
            waiting_bytes=waiting_bytes(plan, ends),
            shards=shards,
        )
        return status if table is None else _sized(status, table, plan)


def _sized(status: TableStatus, table: TopicTable, plan: Plan) -> TableStatus:
    metadata = table.iceberg.metadata
    newest = metadata.current_snapshot()
    totals = (
        {} if newest is None or newest.summary is None else newest.summary.additional_properties
    )
    return msgspec.structs.replace(
        status,
        mode=table.mode,
        partition=table.partition,
        location=table.location,
        rows=int(totals.get("total-records", 0)),
        files=int(totals.get("total-data-files", 0)),
        file_bytes=int(totals.get("total-files-size", 0)),
        snapshots=len(metadata.snapshots),
        committed_ms=None if newest is None else newest.timestamp_ms,
        waiting_deletions=Deleter(table).outstanding_count(plan.shards),
    )
