"""Rows as a split gives them, small tables to put them into, and what is in those."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from firnmq.lake.plans.plan import TablePlace
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.catalogs.catalog import OpenCatalog, warehouse_store
from firnmq.lake.tables.files.names import converted_path
from firnmq.lake.tables.files.parquet import DataFile, Made, PartitionedWriter
from firnmq.lake.tables.table import TopicTable, make_table

NOON_US = 1_767_268_800_000_000
"""2026-01-01 12:00 UTC."""
HOUR_US = 3_600_000_000


def raw_rows(
    shard: int, offsets: Sequence[int], *, first_us: int = NOON_US, step_us: int = 1_000_000
) -> pa.RecordBatch:
    """A row per offset, with everything a record may have."""
    return pa.RecordBatch.from_pydict(
        {
            "shard": [shard] * len(offsets),
            "offset": list(offsets),
            "timestamp": [first_us + step_us * offset for offset in offsets],
            "key": [None if offset % 3 == 0 else b"key-%d" % offset for offset in offsets],
            "value": [None if offset % 5 == 0 else b"value %d" % offset for offset in offsets],
            "headers": [
                [{"key": "h", "value": b"x"}, {"key": "h", "value": None}] * (offset % 2)
                for offset in offsets
            ],
            "tags": [["red"] * (offset % 2) for offset in offsets],
        },
        schema=RAW,
    )


def open_catalog(path: Path) -> OpenCatalog:
    place = TablePlace(
        catalog=f"sqlite:///{path}/lake/catalog.db",
        warehouse=f"file://{path}/lake/warehouse",
        name="topics.clicks",
    )
    return OpenCatalog(place, {})


def clicks(catalog: OpenCatalog, partition: str = "hour", topic_id: str = "a1") -> TopicTable:
    return make_table(
        catalog,
        topic="clicks",
        topic_id=topic_id,
        cluster="c1",
        schema=RAW,
        partition=partition,
    )


def written(table: TopicTable, rows: pa.RecordBatch) -> list[DataFile]:
    """Files in the table's store, named as a conversion of these rows would name them."""
    store = warehouse_store(table.location, {})
    files: list[DataFile] = []
    shard = rows.column("shard")[0].as_py()
    start, end = rows.column("offset")[0].as_py(), rows.column("offset")[-1].as_py() + 1

    def place(made: Made) -> None:
        path = converted_path(
            partition=made.partition,
            shard=shard,
            start_offset=start,
            end_offset=end,
            number=len(files),
            digest=made.digest,
        )
        store.upload(path, [made.content], size=len(made.content))
        files.append(
            DataFile(
                path=path,
                size=len(made.content),
                row_count=made.row_count,
                shard=shard,
                partition_value=made.partition_value,
                footer=made.footer,
            )
        )

    writer = PartitionedWriter(table.numbered(rows.schema), table.partition, place)
    writer.write(rows)
    writer.close()
    return files


def content(table: TopicTable) -> list[dict[str, Any]]:
    """Every row, by shard and offset."""
    rows: list[dict[str, Any]] = table.reload().iceberg.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["shard"], row["offset"]))
