from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import NewRecord, checked

GOOD = NewRecord(
    value=b"v",
    key=b"k",
    headers=(("a", b"1"), ("b", None)),
    tags=("t", "ü", "\udcff"),
    timestamp_ms=5,
    expire_at_ms=7,
)


def test_a_good_record_is_returned_as_it_is() -> None:
    assert checked(GOOD) is GOOD
    assert checked(NewRecord(value=None)).key is None


def test_records_do_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        GOOD.value = b"other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "changes",
    [
        {"value": "text"},
        {"key": bytearray(b"k")},
        {"key": 7},
        {"headers": [("a", b"1")]},
        {"headers": (("a",),)},
        {"headers": ((b"a", b"1"),)},
        {"headers": (("a", "1"),)},
        {"headers": (("\udcff", b"1"),)},
        {"headers": (7,)},
        {"tags": "tag"},
        {"tags": (b"t",)},
        {"tags": ("\ud800",)},
        {"timestamp_ms": -1},
        {"timestamp_ms": 2**62},
        {"timestamp_ms": 1.5},
        {"timestamp_ms": True},
        {"expire_at_ms": "7"},
        {"expire_at_ms": 10**18},
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        checked(replace(GOOD, **changes))


def test_something_else_than_a_record_is_refused() -> None:
    with pytest.raises(InvalidRecord):
        checked({"value": b"v"})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "large",
    [
        NewRecord(value=bytes(1000)),
        NewRecord(value=None, key=bytes(1000)),
        NewRecord(value=None, headers=(("h" * 500, bytes(500)),)),
        NewRecord(value=None, tags=("t" * 1000,)),
    ],
    ids=["value", "key", "headers", "tags"],
)
def test_the_size_counts_everything(large: NewRecord) -> None:
    with pytest.raises(LimitExceeded) as refusal:
        checked(large, max_record_bytes=1000)
    assert refusal.value.size > 1000
    assert refusal.value.limit == 1000
    assert checked(large, max_record_bytes=1100) is large
