"""Everything that we use of PyIceberg's private parts, and nothing else.

Its public interface commits no files that were written elsewhere with their statistics, and reads
no deletions of other engines. `tests/unit/lake/test_internals.py` says what is missing if a newer
version has changed one of the names below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyiceberg.io.pyarrow import _read_all_delete_files
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
from pyiceberg.typedef import EMPTY_DICT

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import FileScanTask, Table, Transaction

PRODUCER_METHODS: Final = ("_clean_all_uncommitted", "_summary")
"""Of a snapshot's producer, that are replaced here."""
PRODUCER_FIELDS: Final = (
    *("_added_data_files", "_deleted_data_files"),
    *("_operation", "_parent_snapshot_id", "_transaction"),
)


def file_io(transaction: Transaction) -> FileIO:
    """What a transaction's table reads and writes its metadata with."""
    return transaction._table.io


def deleted_positions(table: Table, tasks: Sequence[FileScanTask]) -> dict[str, tuple[int, ...]]:
    """Rows that other engines have deleted without rewriting the files: path → positions."""
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
        io=file_io(transaction),
        snapshot_properties=dict(summary),
    )


def replacing(transaction: Transaction, summary: Mapping[str, str]) -> _Replaced:
    """An update of the table that removes files and adds others in their place."""
    return _Replaced(
        operation=Operation.OVERWRITE,
        transaction=transaction,
        io=file_io(transaction),
        snapshot_properties=dict(summary),
    )


class _AnyTime(_SnapshotProducer):  # type: ignore[type-arg]
    """PyIceberg's own, but for timestamps that Python's calendar does not have: their partitions
    are not counted in the summary."""

    def _clean_all_uncommitted(self) -> None:
        """Nothing: whatever the catalog said, the snapshot may be in the table. A proxy may
        have repeated the request, and reported the second one only. Expiry removes the files of a
        commit that was refused."""

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
