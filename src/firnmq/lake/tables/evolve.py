"""A typed table as its newest schema has it: columns that it has not yet, and the schema itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from firnmq.eventlog import EventLogger
from firnmq.lake.tables.table import Advanced, TopicTable, iceberg_schema

if TYPE_CHECKING:
    from pyiceberg.table import Transaction
    from pyiceberg.types import IcebergType

    from firnmq.lake.typed import Addition, KeptSchema

_log = EventLogger("lake.evolve")


def missing_columns(table: TopicTable, wanted: pa.Schema) -> list[Addition]:
    """What the table has not, at the top or within structs. Columns are never removed and keep
    their types: SchemaConflict says which one would not."""
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from firnmq.lake.typed import additions

    existing = schema_to_pyarrow(table.iceberg.schema(), include_field_ids=False)
    return additions(existing, wanted)


def add_columns(table: TopicTable, wanted: pa.Schema, kept: KeptSchema | None = None) -> None:
    """Adds what is missing, in a commit before the first file that has it, which also keeps the
    schema. Rows from before show null there; a sync that still runs with an older schema goes on
    adding files without it."""
    properties = {} if kept is None else kept.properties()

    def attempt(transaction: Transaction, token: str) -> Advanced:
        missing = missing_columns(table, wanted)
        is_kept = properties.items() <= dict(table.properties).items()
        if not missing and is_kept:
            return Advanced()
        if missing:
            with transaction.update_schema() as update:
                for each in missing:
                    update.add_column(each.path, _iceberg_type(each.arrow))
            _log.info("columns_added", table=table.name, columns=[each.name for each in missing])
        if not is_kept:
            transaction.set_properties(properties)
            _log.info("schema_kept", table=table.name)
        return Advanced(snapshot_id=0)

    table.commit(attempt, Advanced())


def _iceberg_type(kind: pa.DataType) -> IcebergType:
    """Its inner ids mean nothing: the table gives new ones."""
    return iceberg_schema(pa.schema([pa.field("column", kind)])).fields[0].field_type
