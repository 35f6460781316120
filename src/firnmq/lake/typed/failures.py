"""Errors of a schema, or between a schema and its table."""

from __future__ import annotations

from firnmq.errors import FirnError, InvalidArgument


class SchemaRefused(InvalidArgument):
    """The schema cannot be made into columns. `where` is the place in its document."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"schema at {where}", reason)
        self.where = where


class SchemaConflict(FirnError):
    """The table has a column that the schema no longer has, or has with another type."""

    def __init__(self, column: str, *, existing: str, wanted: str | None) -> None:
        if wanted is None:
            problem = (
                f"the table has column {column} ({existing}), which the schema does not have any "
                "more; columns are only ever added: keep the field in the schema and leave it out "
                "of `required`, and new rows have null there"
            )
        else:
            problem = (
                f"column {column} is {existing} in the table and {wanted} in the schema; a "
                "column keeps its type: give the new field another name, or sync to another table"
            )
        super().__init__(problem)
        self.column = column
        self.existing = existing
        self.wanted = wanted


class DoesNotFit(Exception):
    """A decoded value is out of its column's range. It never leaves the package."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{reason} - at `{where}`")
