"""Values as columns: a JSON Schema or an Avro schema, and what of a topic does not fit it."""

from firnmq.lake.typed.columns import RESERVED_NAMES, column_names
from firnmq.lake.typed.deadletter import DEAD_LETTERS, dead_letters
from firnmq.lake.typed.evolution import Addition, additions
from firnmq.lake.typed.failures import SchemaConflict, SchemaRefused
from firnmq.lake.typed.kept import SCHEMA, KeptSchema, SchemaNotKept
from firnmq.lake.typed.parser import Parsed, Parser, SchemaKind
from firnmq.lake.typed.rows import TypedRows, fitting_rows, raw_columns, typed_rows, typed_schema

__all__ = [
    "DEAD_LETTERS",
    "RESERVED_NAMES",
    "SCHEMA",
    "Addition",
    "KeptSchema",
    "Parsed",
    "Parser",
    "SchemaConflict",
    "SchemaKind",
    "SchemaNotKept",
    "SchemaRefused",
    "TypedRows",
    "additions",
    "column_names",
    "dead_letters",
    "fitting_rows",
    "raw_columns",
    "typed_rows",
    "typed_schema",
]
