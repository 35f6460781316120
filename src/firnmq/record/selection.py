"""Which records of a run of batches a reader wants, and which parts of them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Final, Literal

from firnmq.errors import InvalidArgument

ColumnName = Literal["key", "value", "headers", "tags"]

ALL_COLUMNS: Final[frozenset[ColumnName]] = frozenset({"key", "value", "headers", "tags"})
OFFSET_END: Final = 2**63 - 1
"""An end offset beyond every record."""
COLUMN_BYTES_MAX: Final = 2**31 - 1
"""Arrow's 32-bit offsets address this many bytes or items in one column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What to take while decoding. Records that are not taken are never materialised."""

    start_offset: int = 0
    """First offset wanted."""
    end_offset: int = OFFSET_END
    """First offset no longer wanted."""
    max_records: int = COLUMN_BYTES_MAX
    max_bytes: int = COLUMN_BYTES_MAX
    """Limit of the sum of the encoded sizes; the first matching record is taken regardless, so
    that a reader with a small limit still advances. Whatever is asked for, no more than the
    default is taken, since no column's data is larger than that sum."""
    tag_headers: tuple[bytes, ...] = (b"tag",)
    """Names of the headers whose values are tags."""
    expire_header: bytes = b"expire-at"
    """Name of the header that holds the expiry in decimal milliseconds; the last one counts."""
    ttl_ms: int | None = None
    """Time to live of every record that has a timestamp; the earlier of this and the expiry
    header counts."""
    now_ms: int | None = None
    """Records that expire at or before this time are dropped; None keeps them."""
    holes: Set[int] | None = None
    """Deleted offsets."""
    dead_keys: Mapping[bytes, int] | None = None
    """Records with one of these keys are dropped if their offset is below the key's number."""
    key: bytes | None = None
    """Only records with this key."""
    tag: bytes | None = None
    """Only records that have this tag."""
    min_timestamp: int | None = None
    """Only records with this timestamp or a later one."""
    columns: frozenset[ColumnName] = ALL_COLUMNS
    """What to materialise besides offset, timestamp and expiry, which are always there."""
    include_control: bool = False
    """Whether the records of control batches are wanted too."""

    def __post_init__(self) -> None:
        for name in ("start_offset", "end_offset", "max_records", "max_bytes"):
            _check_number(name, getattr(self, name))
        for name in ("ttl_ms", "now_ms", "min_timestamp"):
            value = getattr(self, name)
            if value is not None:
                lowest = 0 if name == "ttl_ms" else -(2**63)
                _check_number(name, value, lowest=lowest)
        unknown = self.columns - ALL_COLUMNS
        if unknown:
            raise InvalidArgument("columns", f"there is no column {sorted(unknown)[0]!r}")


def _check_number(name: str, value: int, *, lowest: int = 0) -> None:
    if not lowest <= value <= OFFSET_END:
        raise InvalidArgument(name, f"{value} is outside {lowest}..{OFFSET_END}")


EVERYTHING: Final = Selection()
