"""Pages of lists that are filtered and sorted by the node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from firnmq.errors import InvalidArgument
from firnmq.server.admin.endpoint import Call, Parameter

T = TypeVar("T")

ROWS_MAX: Final = 200
_ROWS: Final = 50
FILTER_CHARS_MAX: Final = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which rows of a list are wanted."""

    filter: str
    """Text that the names of rows have, without regard to case."""
    name: str | None
    """Only the row with this name."""
    sort: str
    descending: bool
    start: int
    count: int

    @classmethod
    def of(cls, call: Call, sorts: Sequence[str], *, descending: Sequence[str] = ()) -> Wish:
        """`sorts`: what there is to sort by, the first being the default. `descending`: what is
        sorted from large to small unless the call says otherwise."""
        sort = call.query.get("sort", sorts[0])
        if sort not in sorts:
            raise InvalidArgument("sort", f"must be one of {', '.join(sorts)}, not {sort!r}")
        falls = call.query.get("descending", "true" if sort in descending else "false")
        if falls not in ("true", "false"):
            raise InvalidArgument("descending", f"must be true or false, not {falls!r}")
        start, count = call.number("start") or 0, call.number("max")
        count = _ROWS if count is None else count
        if start < 0:
            raise InvalidArgument("start", f"must not be below 0, but is {start}")
        if not 1 <= count <= ROWS_MAX:
            raise InvalidArgument("max", f"must be 1 to {ROWS_MAX}, not {count}")
        wanted = call.query.get("filter", "")
        if len(wanted) > FILTER_CHARS_MAX:
            raise InvalidArgument("filter", f"may have {FILTER_CHARS_MAX} characters")
        return cls(
            filter=wanted.lower(),
            name=call.query.get("name"),
            sort=sort,
            descending=falls == "true",
            start=start,
            count=count,
        )

    def chosen(self, rows: Sequence[T], name: Callable[[T], str]) -> list[T]:
        """Those that fit."""
        if self.name is not None:
            return [each for each in rows if name(each) == self.name]
        if not self.filter:
            return list(rows)
        return [each for each in rows if self.filter in name(each).lower()]

    def page(self, rows: list[T], key: Callable[[T], Any]) -> list[T]:
        rows.sort(key=key, reverse=self.descending)
        return rows[self.start : self.start + self.count]


def parameters(sorts: Sequence[str]) -> dict[str, Parameter]:
    """Of the paths that answer with a page."""
    return {
        "filter": Parameter(text="Only names with this text in them.", kind="string"),
        "name": Parameter(text="Only the one with this name.", kind="string"),
        "sort": Parameter(text=f"By what: {', '.join(sorts)}.", kind="string"),
        "descending": Parameter(text="From large to small.", kind="boolean"),
        "start": Parameter(text="How many rows to pass over."),
        "max": Parameter(text=f"Rows of the page: {_ROWS}, at most {ROWS_MAX}."),
    }
