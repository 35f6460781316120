"""The schema that a table is filled by, kept in the table for readers of what is not in it yet.

It is a property, not a file beside the data: engines that clean up tables remove files that no
snapshot has, and a property changes in the same commit as the columns. Properties are in every
version of a table's metadata, hence the limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from firnmq.errors import FirnError
from firnmq.lake.typed.failures import SchemaRefused
from firnmq.lake.typed.parser import Parser

SCHEMA: Final = "firn.schema"
"""The property."""
KEPT_BYTES_MAX: Final = 256 * 1024
"""A hundred versions of a table's metadata, as many as are kept, are 25 MB then."""


class SchemaNotKept(FirnError):
    """A typed table does not say by which schema its values were parsed."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table} was filled before tables kept their schema, so records that are not in "
            "it yet cannot be shown as columns; run firn lake sync with the schema once, or read "
            "the log's bytes with the option values=raw"
        )
        self.table = table


class KeptSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A schema's document, what kind it is, and for avro-confluent the writers' by number."""

    kind: str
    document: str
    writers: dict[int, str] = {}

    @classmethod
    def of(cls, document: str, kind: str, writers: Mapping[int, str]) -> KeptSchema:
        """Raises SchemaRefused where it is not a schema, or larger than a table can keep."""
        Parser.from_document(document, kind, writers=writers)
        kept = cls(
            kind=kind,
            document=_dense(document),
            writers={number: _dense(writers[number]) for number in sorted(writers)},
        )
        size = len(kept.text().encode())
        if size > KEPT_BYTES_MAX:
            raise SchemaRefused(
                "#",
                f"has {size:,} bytes, with those of its writers; the table keeps it for readers, "
                f"and up to {KEPT_BYTES_MAX:,}. Leave out descriptions and examples, or writers "
                "whose values are no longer in the log",
            )
        return kept

    @classmethod
    def found(cls, properties: Mapping[str, str]) -> KeptSchema | None:
        """What a table's properties say; None for a table from before they said anything."""
        text = properties.get(SCHEMA)
        return None if text is None else msgspec.json.decode(text, type=cls)

    def text(self) -> str:
        """The property's value."""
        return msgspec.json.encode(self).decode()

    def properties(self) -> dict[str, str]:
        """What a table has to have set."""
        return {SCHEMA: self.text()}

    def settings(self) -> dict[str, Any]:
        """The same as a sync is given it."""
        return {
            "schema_document": self.document,
            "schema_kind": self.kind,
            "schema_writers": self.writers,
        }

    def parser(self) -> Parser:
        return Parser.from_document(self.document, self.kind, writers=self.writers)


def _dense(document: str) -> str:
    """Without the spaces between its words; nothing else of it changes."""
    return msgspec.json.format(document, indent=-1)
