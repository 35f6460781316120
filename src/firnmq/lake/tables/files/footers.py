"""Parquet files as Iceberg's metadata describes them, from their footers alone.

Records may carry any timestamp, also one that Python's calendar does not have, for which PyIceberg
cannot compute the bounds of the column. Such files are committed without them; their partition
value is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata as statistics
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import TimestampType, TimestamptzType

from firnmq.lake.tables.files.parquet import DataFile

if TYPE_CHECKING:
    from pyiceberg.table import Table


def iceberg_files(table: Table, files: Sequence[DataFile]) -> Iterator[IcebergFile]:
    """The files with their statistics, ready to be committed to the table."""
    schema = table.schema()
    plan = compute_statistics_plan(schema, table.properties)
    columns = parquet_path_to_id_mapping(schema)
    for file in files:
        metadata = pq.read_metadata(pa.BufferReader(file.footer))
        yield IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{table.location()}/{file.path}",
            file_format=FileFormat.PARQUET,
            partition=Record(file.partition_value),
            file_size_in_bytes=file.size,
            sort_order_id=table.sort_order().order_id,
            spec_id=table.spec().spec_id,
            equality_ids=None,
            key_metadata=None,
            **_statistics(metadata, plan, columns),
        )


def _statistics(metadata: pq.FileMetaData, plan: dict[int, Any], columns: dict[str, int]) -> Any:
    try:
        return statistics(metadata, plan, columns).to_serialized_dict()
    except (OverflowError, ValueError):
        # A timestamp that Python's calendar does not have. The partition value still prunes.
        return statistics(metadata, _without_times(plan), columns).to_serialized_dict()


def _without_times(plan: dict[int, Any]) -> dict[int, Any]:
    counts = MetricsMode(MetricModeTypes.COUNTS)
    return {
        field_id: replace(collector, mode=counts)
        if isinstance(collector.iceberg_type, TimestampType | TimestamptzType)
        else collector
        for field_id, collector in plan.items()
    }
