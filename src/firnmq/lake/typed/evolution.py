"""The columns that a table lacks for a schema, at the top or within others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from firnmq.lake.typed.failures import SchemaConflict


@dataclass(frozen=True, slots=True, kw_only=True)
class Addition:
    """A column to add. The path leads through structs, elements of lists and values of maps."""

    path: tuple[str, ...]
    arrow: pa.DataType

    @property
    def name(self) -> str:
        return ".".join(self.path)


def additions(existing: Iterable[pa.Field], wanted: Iterable[pa.Field]) -> list[Addition]:
    """What `wanted` has and `existing` has not, in its order. Raises SchemaConflict where a column
    is gone or has become something else; whether it may be null says nothing here."""
    return _added(list(existing), list(wanted), ())


def _added(
    existing: list[pa.Field], wanted: list[pa.Field], path: tuple[str, ...]
) -> list[Addition]:
    had = {field.name: field.type for field in existing}
    has = {field.name: field.type for field in wanted}
    for name in had.keys() - has.keys():
        raise SchemaConflict(".".join((*path, name)), existing=type_name(had[name]), wanted=None)
    found: list[Addition] = []
    for name, kind in has.items():
        if name in had:
            found += _within(had[name], kind, (*path, name))
        else:
            found.append(Addition(path=(*path, name), arrow=kind))
    return found


def _within(had: pa.DataType, has: pa.DataType, path: tuple[str, ...]) -> list[Addition]:
    if pa.types.is_struct(had) and pa.types.is_struct(has):
        return _added(list(had), list(has), path)
    if _is_list(had) and _is_list(has):
        return _within(had.value_type, has.value_type, (*path, "element"))
    if pa.types.is_map(had) and pa.types.is_map(has):
        return _within(had.item_type, has.item_type, (*path, "value"))
    if _plain(had) != _plain(has):
        raise SchemaConflict(".".join(path), existing=type_name(had), wanted=type_name(has))
    return []


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    """Tables give texts and bytes back in types for large ones, which are the same columns."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    return kind


def type_name(kind: pa.DataType) -> str:
    """As people write it."""
    if pa.types.is_struct(kind):
        return "struct"
    if _is_list(kind):
        return f"list of {type_name(kind.value_type)}"
    if pa.types.is_map(kind):
        return f"map to {type_name(kind.item_type)}"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp without zone"
    return str(_plain(kind))
