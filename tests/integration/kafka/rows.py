"""Records as the tests compare them, whichever client wrote or read them."""

from __future__ import annotations

from dataclasses import dataclass

BASE_MS = 1_700_000_000_000

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    timestamp_ms: int = BASE_MS
    partition: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A row as it was read, and where."""

    row: Row
    offset: int


def numbered(count: int, *, prefix: str = "v", partitions: int = 1) -> list[Row]:
    """Rows told apart by value, one millisecond from the next."""
    return [
        Row(
            key=f"k{i % 7}".encode(),
            value=f"{prefix}{i}".encode(),
            timestamp_ms=BASE_MS + i,
            partition=i % partitions,
        )
        for i in range(count)
    ]


def odd_rows() -> list[Row]:
    """Every combination of null, empty, binary and plain parts a record can have."""
    parts = (None, b"", b"plain", bytes(range(256)), "schnee ❄".encode())
    headers: tuple[Headers, ...] = (
        (),
        (("empty", b""),),
        (("null", None), ("empty", b"")),
        (("twice", b"1"), ("twice", b"2"), ("ünïcode", b"\x00\xff")),
    )
    rows = []
    for key in parts:
        for value in parts:
            for each in headers:
                rows.append(
                    Row(key=key, value=value, headers=each, timestamp_ms=BASE_MS + len(rows))
                )
    return rows
