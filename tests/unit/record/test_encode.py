from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

from firnmq.errors import InvalidArgument, InvalidRecord, LimitExceeded
from firnmq.record import Compression, NewRecord, Selection, parse_header
from tests.unit.record.batches import made, record

GOOD = NewRecord(value=b"v")


def test_the_bytes_are_those_made_by_hand(codec: ModuleType) -> None:
    records = [
        NewRecord(value=b"v", key=b"k", headers=(("a", None), ("b", b"c")), timestamp_ms=1_000),
        NewRecord(value=None, tags=("x", "ü"), timestamp_ms=1_005),
        NewRecord(value=b"", expire_at_ms=77, timestamp_ms=900),
        NewRecord(value=b"y" * 300),
    ]
    by_hand = made(
        record(0, key=b"k", headers=[(b"a", None), (b"b", b"c")]),
        record(1, value=None, headers=[(b"T", b"x"), (b"T", "ü".encode())], timestamp_delta=5),
        record(2, value=b"", headers=[(b"E", b"77")], timestamp_delta=-100),
        record(3, value=b"y" * 300, timestamp_delta=3),
        base_offset=9,
        max_timestamp=1_005,
    )
    batch = codec.encode(records, now_ms=1_003, base_offset=9, tag_header=b"T", expire_header=b"E")
    assert isinstance(batch, bytearray)
    assert batch == by_hand


@pytest.mark.parametrize("compression", list(Compression))
def test_what_is_encoded_is_valid(codec: ModuleType, compression: Compression) -> None:
    batch = codec.encode(
        [GOOD] * 3,
        now_ms=1,
        compression=compression,
        leader_epoch=4,
        producer_id=5,
        producer_epoch=6,
        base_sequence=7,
    )
    header = codec.validate(batch)
    assert header.compression is compression
    assert (header.leader_epoch, header.producer_id) == (4, 5)
    assert (header.producer_epoch, header.base_sequence) == (6, 7)
    assert (header.record_count, header.last_offset_delta) == (3, 2)


def test_any_sequence_of_records(codec: ModuleType) -> None:
    assert codec.encode((GOOD, GOOD), now_ms=1) == codec.encode([GOOD, GOOD], now_ms=1)


def test_tags_that_are_not_text_survive(codec: ModuleType) -> None:
    batch = codec.encode([NewRecord(value=None, tags=("\udcff",))], now_ms=1)
    assert codec.decode([batch]).record(0).tags == ("\udcff",)


def test_no_records_make_no_batch(codec: ModuleType) -> None:
    with pytest.raises(InvalidRecord):
        codec.encode([], now_ms=1)


@pytest.mark.parametrize(
    "changes",
    [
        {"value": "text"},
        {"key": 7},
        {"key": bytearray(b"k")},
        {"headers": ((b"a", b"1"),)},
        {"headers": (("a", "1"),)},
        {"headers": (("a",),)},
        {"headers": (("\ud800", b"1"),)},
        {"headers": 7},
        {"tags": (b"t",)},
        {"tags": ("\ud800",)},
        {"timestamp_ms": -1},
        {"timestamp_ms": 2**62},
        {"timestamp_ms": 10**30},
        {"timestamp_ms": "now"},
        {"expire_at_ms": -1},
        {"expire_at_ms": 10**18},
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused(codec: ModuleType, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        codec.encode([GOOD, replace(GOOD, **changes)], now_ms=1)


def test_something_else_than_a_record_is_refused(codec: ModuleType) -> None:
    with pytest.raises(InvalidRecord):
        codec.encode([b"v"], now_ms=1)


def test_wrong_numbers_are_the_callers_mistake(codec: ModuleType) -> None:
    with pytest.raises(InvalidRecord):
        codec.encode([GOOD], now_ms=-1)
    with pytest.raises(InvalidArgument):
        codec.encode([GOOD], now_ms=1, base_offset=-1)
    with pytest.raises(InvalidArgument):
        codec.encode([GOOD], now_ms=1, base_offset=2**63)


def test_a_batch_has_a_limit(codec: ModuleType) -> None:
    half = NewRecord(value=bytes(51 * 1024 * 1024))
    with pytest.raises(LimitExceeded):
        codec.encode([half, half], now_ms=1)


@pytest.mark.parametrize("compression", list(Compression))
def test_columns_become_the_batch_they_came_from(
    codec: ModuleType, compression: Compression
) -> None:
    batch = codec.encode(
        [
            NewRecord(
                value=None if i == 3 else b"v%d" % i,
                key=b"k%d" % i if i % 2 else None,
                headers=(("h", b"%d" % i),) if i % 3 else (),
                tags=("t",) if i == 5 else (),
                timestamp_ms=1_000 - i,
            )
            for i in range(20)
        ],
        now_ms=1,
        base_offset=400,
        compression=compression,
    )
    columns = codec.decode([batch])
    assert codec.encode_columns(columns, compression=compression) == batch


def test_columns_keep_their_gaps_or_are_renumbered(codec: ModuleType) -> None:
    batch = codec.encode([GOOD] * 10, now_ms=1, base_offset=50)
    some = codec.decode([batch], Selection(holes={51, 52, 59}))
    kept = codec.encode_columns(some)
    assert codec.decode([kept]).offsets.tolist() == [50, 53, 54, 55, 56, 57, 58]
    assert parse_header(kept).next_offset == 59
    renumbered = codec.encode_columns(some, base_offset=7)
    assert codec.decode([renumbered]).offsets.tolist() == list(range(7, 14))
    assert codec.validate(renumbered).record_count == 7


def test_columns_that_cannot_be_one_batch(codec: ModuleType) -> None:
    far = [made(record(0)), made(record(0), base_offset=2**31)]
    with pytest.raises(InvalidRecord, match="does not follow"):
        codec.encode_columns(codec.decode(far))
    assert codec.encode_columns(codec.decode(far), base_offset=0)
    apart = [
        made(record(0), base_timestamp=-(2**63)),
        made(record(0), base_offset=1, base_timestamp=2**63 - 1),
    ]
    with pytest.raises(InvalidRecord, match="too far"):
        codec.encode_columns(codec.decode(apart))
    with pytest.raises(InvalidRecord):
        codec.encode_columns(codec.decode([]))
    partly = codec.decode([made(record(0))], Selection(columns=frozenset({"key"})))
    with pytest.raises(InvalidArgument):
        codec.encode_columns(partly)
