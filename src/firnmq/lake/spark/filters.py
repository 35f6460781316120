"""Spark's filters as what a reader wants. A filter that is taken over is applied exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

from firnmq.lake.plans.plan import OFFSET_END, Wanted

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NEVER_NULL: Final = frozenset({"shard", "offset", "timestamp", "headers", "tags"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What options and filters together leave. `is_empty`: nothing can fulfil all of them."""

    wanted: Wanted
    min_offset: int = 0
    end_offset: int = OFFSET_END
    is_empty: bool = False


def narrow(limits: Limits, filters: Sequence[Filter]) -> tuple[Limits, list[Filter]]:
    """The limits that hold with the filters too, and the filters that Spark must apply itself."""
    left = []
    for each in filters:
        narrowed = _narrowed(limits, each)
        if narrowed is None:
            left.append(each)
        else:
            limits = narrowed
    for each in list(left):
        # Spark adds it to every comparison.
        if isinstance(each, IsNotNull) and _is_implied(limits, each):
            left.remove(each)
    return limits, left


def _is_implied(limits: Limits, given: IsNotNull) -> bool:
    if len(given.attribute) != 1:
        return False
    column = given.attribute[0]
    return column in _NEVER_NULL or (column == "key" and limits.wanted.keys is not None)


def _narrowed(limits: Limits, given: Filter) -> Limits | None:
    attribute: tuple[str, ...] = getattr(given, "attribute", ())
    if len(attribute) != 1:
        return None
    values = _values(given)
    match attribute[0]:
        case "shard" if values is not None:
            return _with_shards(limits, values)
        case "key" if values is not None:
            return _with_keys(limits, values)
        case "offset":
            return _with_offsets(limits, given)
        case "timestamp":
            return _with_times(limits, given)
    return None


def _values(given: Filter) -> list[Any] | None:
    """The values that an equality allows; null equals nothing."""
    if isinstance(given, EqualTo):
        return [] if given.value is None else [given.value]
    if isinstance(given, EqualNullSafe) and given.value is not None:
        return [given.value]
    if isinstance(given, In):
        return [value for value in given.value if value is not None]
    return None


def _with_shards(limits: Limits, values: list[Any]) -> Limits | None:
    if not all(isinstance(value, int) for value in values):
        return None
    known = limits.wanted.shards
    left = {value for value in values if value >= 0 and (known is None or value in known)}
    wanted = msgspec.structs.replace(limits.wanted, shards=tuple(sorted(left)))
    return replace(limits, wanted=wanted, is_empty=limits.is_empty or not left)


def _with_keys(limits: Limits, values: list[Any]) -> Limits | None:
    if not all(isinstance(value, bytes | bytearray) for value in values):
        return None
    known = limits.wanted.keys
    found = dict.fromkeys(map(bytes, values))
    left = tuple(value for value in found if known is None or value in known)
    wanted = msgspec.structs.replace(limits.wanted, keys=left)
    return replace(limits, wanted=wanted, is_empty=limits.is_empty or not left)


def _with_offsets(limits: Limits, given: Filter) -> Limits | None:
    """Offsets from a whole number on, or below one."""
    found = _range(given, 1)
    if found is None:
        return None
    low = max(limits.min_offset, found[0] if found[0] is not None else 0)
    end = min(limits.end_offset, found[1] if found[1] is not None else OFFSET_END)
    return replace(limits, min_offset=low, end_offset=end, is_empty=limits.is_empty or low >= end)


def _with_times(limits: Limits, given: Filter) -> Limits | None:
    """Records have whole milliseconds, Spark compares microseconds."""
    found = _range(given, 1000)
    if found is None:
        return None
    before = limits.wanted
    low = _larger(before.min_timestamp_ms, found[0])
    end = _smaller(before.end_timestamp_ms, found[1])
    wanted = msgspec.structs.replace(before, min_timestamp_ms=low, end_timestamp_ms=end)
    is_empty = low is not None and end is not None and low >= end
    return replace(limits, wanted=wanted, is_empty=limits.is_empty or is_empty)


def _range(given: Filter, unit: int) -> tuple[int | None, int | None] | None:
    """The half-open range that a comparison allows, in units of so many of the value's own."""
    if not isinstance(
        given,
        EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual,
    ):
        return None
    value = _number(given.value)
    if value is None:
        return None
    above, below = -(-value // unit), value // unit + 1
    if isinstance(given, GreaterThan):
        return below, None
    if isinstance(given, GreaterThanOrEqual):
        return above, None
    if isinstance(given, LessThan):
        return None, above
    if isinstance(given, LessThanOrEqual):
        return None, below
    return above, below


def _number(value: Any) -> int | None:
    """An offset as it is, a time as microseconds since 1970."""
    if isinstance(value, datetime):
        moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return (moment - _EPOCH) // timedelta(microseconds=1)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return None


def _larger(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return max(known) if known else None


def _smaller(first: int | None, second: int | None) -> int | None:
    known = [value for value in (first, second) if value is not None]
    return min(known) if known else None
