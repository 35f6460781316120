"""encode_some: as many records as fit a batch, each checked on the way."""

from dataclasses import replace
from types import ModuleType

import pytest

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import NewRecord, checked

RECORDS = [
    NewRecord(value=b"v" * 100, key=b"k%d" % number, timestamp_ms=1000 - number)
    for number in range(20)
]
FULL = NewRecord(
    value=b"v", key=None, headers=(("h", None), ("g", b"x")), tags=("a", "b"), expire_at_ms=5
)


def test_without_limits_it_is_encode(codec: ModuleType) -> None:
    records = [*RECORDS, FULL, NewRecord(value=None)]
    batch, end, _ = codec.encode_some(records, now_ms=7)
    assert batch == codec.encode(records, now_ms=7)
    assert end == len(records)


@pytest.mark.parametrize(
    ("record", "has_terms"),
    [
        (NewRecord(value=b"v"), False),
        (NewRecord(value=None), False),
        (NewRecord(value=b"v", key=b"k"), True),
        (NewRecord(value=b"v", key=b""), True),
        (NewRecord(value=b"v", tags=("t",)), True),
        (NewRecord(value=b"v", headers=(("tag", b"t"),)), True),
    ],
)
def test_it_tells_whether_an_index_may_want_the_batch(
    codec: ModuleType, record: NewRecord, has_terms: bool
) -> None:
    plain = NewRecord(value=b"plain")
    assert codec.encode_some([plain, record, plain], now_ms=7)[2] is has_terms
    # Only what is in the batch counts.
    assert codec.encode_some([plain, record], now_ms=7, max_records=1)[1:] == (1, False)


def test_runs_follow_each_other_and_keep_their_limits(codec: ModuleType) -> None:
    limits = {"max_batch_bytes": 1000, "max_records": 6}
    ends, start = [], 0
    while start < len(RECORDS):
        batch, end, _ = codec.encode_some(RECORDS, start, now_ms=7, **limits)
        assert batch == codec.encode(RECORDS[start:end], now_ms=7)
        assert len(batch) <= 1000
        assert end - start <= 6
        ends.append(end)
        start = end
    assert ends == [6, 12, 18, 20]


def test_a_record_above_the_batch_limit_is_alone_in_its_batch(codec: ModuleType) -> None:
    large = NewRecord(value=b"x" * 5000)
    records = [RECORDS[0], large, RECORDS[1]]
    ends = [codec.encode_some(records, at, now_ms=7, max_batch_bytes=1000)[1] for at in range(3)]
    assert ends == [1, 2, 3]


@pytest.mark.parametrize("record", [RECORDS[0], FULL])
def test_the_limit_of_a_record_is_that_of_checked(codec: ModuleType, record: NewRecord) -> None:
    limit = next(n for n in range(1000) if _is_good(record, n))
    codec.encode_some([record], now_ms=7, max_record_bytes=limit)
    with pytest.raises(LimitExceeded):
        codec.encode_some([record], now_ms=7, max_record_bytes=limit - 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"value": "text"},
        {"key": 1},
        {"headers": [("h", b"x")]},
        {"headers": ((b"h", b"x"),)},
        {"tags": ["a"]},
        {"timestamp_ms": True},
        {"timestamp_ms": -1},
        {"expire_at_ms": "5"},
    ],
)
def test_what_checked_refuses_is_refused(codec: ModuleType, changes: dict[str, object]) -> None:
    bad = replace(RECORDS[0], **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord):
        checked(bad)
    with pytest.raises(InvalidRecord):
        codec.encode_some([*RECORDS, bad], now_ms=7)


def test_there_must_be_a_record(codec: ModuleType) -> None:
    with pytest.raises(InvalidRecord):
        codec.encode_some([], now_ms=7)
    with pytest.raises(InvalidRecord):
        codec.encode_some(RECORDS, len(RECORDS), now_ms=7)
    with pytest.raises(InvalidRecord):
        codec.encode_some([b"no record"], now_ms=7)


def _is_good(record: NewRecord, limit: int) -> bool:
    try:
        checked(record, max_record_bytes=limit)
    except LimitExceeded:
        return False
    return True
