from types import ModuleType
from typing import Any

import pytest

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record import Compression, parse_header
from tests.unit.record.batches import made, record
from tests.unit.record.test_decode import BAD

GOOD = made(
    record(0, key=b"k"),
    record(1, timestamp_delta=5, headers=[("ü".encode(), b"\xff"), (b"a", None)]),
    record(2, timestamp_delta=-5),
    max_timestamp=1_005,
)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_good_batch_gives_its_header(codec: ModuleType, compression: Compression) -> None:
    batch = made(record(0), record(1), compression=compression)
    assert codec.validate(batch) == parse_header(batch)
    assert codec.validate_header(batch) == parse_header(batch)
    assert codec.validate(GOOD) == parse_header(GOOD)
    assert codec.validate(memoryview(GOOD)).record_count == 3


def test_the_clients_base_offset_means_nothing(codec: ModuleType) -> None:
    assert codec.validate(made(record(0), base_offset=-1)).base_offset == -1


SHALLOW: dict[str, bytes] = {
    "needs 61 bytes": GOOD[:60],
    "says in its header": GOOD[:-1],
    "says in its header that": GOOD + GOOD,
    "magic 1": made(record(0), magic=1),
    "codec 5": made(record(0), attributes=5),
    "crc": GOOD[:-1] + bytes([GOOD[-1] ^ 1]),
    "cannot have 0 records": made(record_count=0, last_offset_delta=0),
    "cannot have -1": made(record(0), record_count=-1, last_offset_delta=0),
    "cannot have": made(record(0), record_count=2, last_offset_delta=1),
    "last offset delta": made(record(0), record(1), last_offset_delta=5),
    "2,147,483,647 records": made(
        record(0), record_count=2**31 - 1, last_offset_delta=2**31 - 2, compression=Compression.GZIP
    ),
}


@pytest.mark.parametrize("what", SHALLOW)
def test_what_the_header_gives_away(codec: ModuleType, what: str) -> None:
    for judge in (codec.validate, codec.validate_header):
        with pytest.raises(InvalidRecord, match=what):
            judge(SHALLOW[what])


DEEP: dict[str, bytes] = {
    "record 1 has offset delta 0": made(record(0), record(0)),
    "record 1 has offset delta 2": made(record(0), record(2)),
    "timestamp out of range": made(record(0, timestamp_delta=2**63 - 1)),
    "not UTF-8": made(record(0, headers=[(b"a", b"1"), (b"\xff", b"1")])),
    "left over after the last record": made(
        record(0), record(1), record_count=1, last_offset_delta=0
    ),
    "cannot hold": made(
        record(0), record_count=5, last_offset_delta=4, compression=Compression.SNAPPY
    ),
}


@pytest.mark.parametrize("what", DEEP)
def test_what_only_the_records_give_away(codec: ModuleType, what: str) -> None:
    with pytest.raises(InvalidRecord, match=what):
        codec.validate(DEEP[what])
    codec.validate_header(DEEP[what])


@pytest.mark.parametrize("what", [what for what in BAD if what != "bad offset"])
def test_whatever_cannot_be_decoded_is_not_accepted(codec: ModuleType, what: str) -> None:
    with pytest.raises(InvalidRecord):
        codec.validate(BAD[what])


@pytest.mark.parametrize(
    "limits",
    [
        {"max_batch_bytes": len(GOOD) - 1},
        {"max_record_bytes": 9},
    ],
    ids=str,
)
def test_limits(codec: ModuleType, limits: dict[str, Any]) -> None:
    with pytest.raises(LimitExceeded):
        codec.validate(GOOD, **limits)
    exact = {name: limit + 100 for name, limit in limits.items()}
    assert codec.validate(GOOD, **exact)


def test_limit_of_the_decompressed_size(codec: ModuleType) -> None:
    batch = made(record(0, value=bytes(100_000)), compression=Compression.ZSTD)
    with pytest.raises(LimitExceeded):
        codec.validate(batch, max_decompressed=99_999)
    with pytest.raises(LimitExceeded):
        codec.validate(batch, max_record_bytes=100_000)
    assert codec.validate(batch)


@pytest.mark.parametrize("compression", list(Compression))
def test_a_wrong_max_timestamp_is_corrected_in_the_header(
    codec: ModuleType, compression: Compression
) -> None:
    records = record(0), record(1, timestamp_delta=5), record(2, timestamp_delta=-5)
    right = codec.judge(made(*records, max_timestamp=1_005, compression=compression))
    assert (right.header.max_timestamp, right.is_corrected) == (1_005, False)
    for wrong in (-1, 0, 1_004, 2**62):
        judged = codec.judge(made(*records, max_timestamp=wrong, compression=compression))
        assert (judged.header.max_timestamp, judged.is_corrected) == (1_005, True)


def test_log_append_time_batches_need_no_matching_timestamp(codec: ModuleType) -> None:
    assert codec.validate(made(record(0), attributes=8, max_timestamp=7)).max_timestamp == 7
