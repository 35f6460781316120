"""Parquet files as Iceberg's metadata describes them, from their footers alone.

Records may carry any timestamp, also one that Python's calendar does not have, on which PyIceberg
stumbles in two places: the bounds of the column, and the counts per partition of a summary. Such
files are committed without these; their partition value is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    _read_all_delete_files,
    compute_statistics_plan,
    parquet_path_to_id_mapping,
)
from pyiceberg.io.pyarrow import data_file_statistics_from_parquet_metadata as statistics
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table.snapshots import (
    Operation,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update.snapshot import (
    _MergeAppendFiles,
    _OverwriteFiles,
    _SnapshotProducer,
)
from pyiceberg.typedef import EMPTY_DICT, Record
from pyiceberg.types import TimestampType, TimestamptzType

from firnmq.lake.tables.parquet import DataFile

if TYPE_CHECKING:
    from pyiceberg.table import FileScanTask, Table, Transaction


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


def deleted_positions(table: Table, tasks: Sequence[FileScanTask]) -> dict[str, tuple[int, ...]]:
    """Rows that other engines have deleted without writing the files anew: path → positions."""
    found = _read_all_delete_files(table.io, tasks)
    return {
        path: tuple(sorted({position for part in parts for position in part.to_pylist()}))
        for path, parts in found.items()
    }


def appending(transaction: Transaction, summary: Mapping[str, str]) -> _Appended:
    """An update of the table that adds files, and merges manifests when there are many."""
    return _Appended(
        operation=Operation.APPEND,
        transaction=transaction,
        io=transaction._table.io,
        snapshot_properties=dict(summary),
    )


def replacing(transaction: Transaction, summary: Mapping[str, str]) -> _Replaced:
    """An update of the table that removes files and adds others in their place."""
    return _Replaced(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=transaction._table.io,
        snapshot_properties=dict(summary),
    )


class _AnyTime(_SnapshotProducer):  # type: ignore[type-arg]
    def _clean_all_uncommitted(self) -> None:
        """Nothing: whatever the catalog said, the snapshot may be in the table. Somebody between us
        may have repeated the request, and told of the second one only. Expiry removes the files of
        a commit that was refused."""

    def _summary(self, snapshot_properties: dict[str, str] = EMPTY_DICT) -> Summary:
        try:
            return super()._summary(snapshot_properties)
        except OverflowError:
            return self._summary_without_partitions(snapshot_properties)

    def _summary_without_partitions(self, snapshot_properties: dict[str, str]) -> Summary:
        metadata = self._transaction.table_metadata
        collector = SnapshotSummaryCollector()
        changes = (
            (collector.add_file, self._added_data_files),
            (collector.remove_file, self._deleted_data_files),
        )
        for note, files in changes:
            for file in files:
                note(file, metadata.schema(), UNPARTITIONED_PARTITION_SPEC)
        parent = self._parent_snapshot_id
        previous = None if parent is None else metadata.snapshot_by_id(parent)
        return update_snapshot_summaries(
            summary=Summary(operation=self._operation, **collector.build(), **snapshot_properties),
            previous_summary=None if previous is None else previous.summary,
        )


class _Appended(_AnyTime, _MergeAppendFiles):
    pass


class _Replaced(_AnyTime, _OverwriteFiles):
    pass


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
