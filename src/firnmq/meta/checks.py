"""Checks that all meta stores share, so that a value that one accepts does not fail in another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from firnmq.errors import InvalidArgument
from firnmq.meta.api import KEY_BYTES_MAX, VALUE_BYTES_MAX, Compare


def check_request(
    compares: Sequence[Compare],
    puts: Mapping[str, bytes],
    deletes: Sequence[str],
    ops_max: int,
) -> None:
    ops_count = max(len(compares), len(puts) + len(deletes))
    if ops_count > ops_max:
        text = f"{ops_count:,} operations, at most {ops_max:,} fit"
        raise InvalidArgument("transaction", text)
    for key, value in puts.items():
        check_key(key)
        if len(value) > VALUE_BYTES_MAX:
            raise InvalidArgument(key, f"value of {len(value):,} bytes, above {VALUE_BYTES_MAX:,}")
    if len(set(deletes)) < len(deletes) or any(key in puts for key in deletes):
        raise InvalidArgument("deletes", "a transaction may change a key only once")


def check_key(key: str) -> None:
    """Keys are printable ASCII, so that they sort the same everywhere."""
    if not 0 < len(key) <= KEY_BYTES_MAX or not key.isascii() or not key.isprintable():
        raise InvalidArgument("key", f"{key[:100]!r} is not 1 to {KEY_BYTES_MAX} printable letters")
