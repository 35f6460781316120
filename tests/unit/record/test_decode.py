from types import ModuleType
from typing import Any

import pytest

from firnmq.errors import Corruption, InvalidArgument, InvalidRecord, LimitExceeded
from firnmq.record import Columns, Compression, NewRecord, Record, Selection
from tests.unit.record.batches import Made, made, record, varint

TEN = made(
    *(
        record(
            i,
            key=b"k%d" % (i % 3),
            value=b"value %d" % i,
            timestamp_delta=10 * i,
            headers=[(b"tag", b"even" if i % 2 == 0 else b"odd")],
        )
        for i in range(10)
    ),
    base_offset=100,
    max_timestamp=1_090,
)


def chosen(codec: ModuleType, *batches: bytes, **selection: Any) -> Columns:
    columns = codec.decode(batches, Selection(**selection))
    assert isinstance(columns, Columns)
    return columns


def offsets(codec: ModuleType, *batches: bytes, **selection: Any) -> list[int]:
    return chosen(codec, *batches, **selection).offsets.tolist()


@pytest.mark.parametrize("compression", list(Compression))
def test_everything_a_record_can_have(codec: ModuleType, compression: Compression) -> None:
    batch = made(
        record(0, key=None, value=None),
        record(1, key=b"", value=b"", timestamp_delta=-7),
        record(4, key=b"k", headers=[(b"a", None), (b"", b""), (b"tag", b"t"), (b"tag", None)]),
        record(5, headers=[(b"expire-at", b"1234"), (b"tag", b"\xff")]),
        base_offset=50,
        last_offset_delta=6,
        compression=compression,
    )
    columns = codec.decode([batch])
    assert columns.records() == [
        Record(
            offset=50,
            timestamp_ms=1_000,
            key=None,
            value=None,
            headers=(),
            tags=(),
            expire_at_ms=None,
        ),
        Record(
            offset=51,
            timestamp_ms=993,
            key=b"",
            value=b"",
            headers=(),
            tags=(),
            expire_at_ms=None,
        ),
        Record(
            offset=54,
            timestamp_ms=1_000,
            key=b"k",
            value=b"v",
            headers=(("a", None), ("", b""), ("tag", b"t"), ("tag", None)),
            tags=("t",),
            expire_at_ms=None,
        ),
        Record(
            offset=55,
            timestamp_ms=1_000,
            key=None,
            value=b"v",
            headers=(("expire-at", b"1234"), ("tag", b"\xff")),
            tags=("\udcff",),
            expire_at_ms=1234,
        ),
    ]
    assert columns.next_offset == 57
    assert not columns.is_limited


def test_nothing_in_nothing_out(codec: ModuleType) -> None:
    columns = codec.decode([], Selection(start_offset=7))
    assert (len(columns), columns.next_offset, columns.is_limited) == (0, 7, False)
    assert columns.records() == []
    assert codec.decode([b""]).records() == []


def test_many_batches_in_one_and_in_many_buffers(codec: ModuleType) -> None:
    more = made(record(0), record(1), base_offset=110)
    last = made(record(0), base_offset=112, compression=Compression.ZSTD)
    expected = list(range(100, 113))
    assert offsets(codec, TEN, more, last) == expected
    assert offsets(codec, TEN + more + last) == expected
    assert codec.decode([bytearray(TEN), memoryview(more)]).next_offset == 112


def test_a_range_of_offsets(codec: ModuleType) -> None:
    assert offsets(codec, TEN, start_offset=103, end_offset=106) == [103, 104, 105]
    assert chosen(codec, TEN, end_offset=106).next_offset == 106
    assert chosen(codec, TEN, start_offset=200).next_offset == 200
    below = chosen(codec, TEN, end_offset=50)
    assert (len(below), below.next_offset, below.is_limited) == (0, 50, False)
    inside_a_gap = made(record(0), record(5), base_offset=10, last_offset_delta=9)
    assert chosen(codec, inside_a_gap, end_offset=13).next_offset == 13
    assert chosen(codec, inside_a_gap).next_offset == 20


def test_batches_before_the_start_are_not_looked_at(codec: ModuleType) -> None:
    damaged = bytearray(TEN)
    damaged[-1] ^= 1
    after = made(record(0), base_offset=110)
    assert offsets(codec, bytes(damaged), after, start_offset=110) == [110]


def test_the_number_of_records_is_limited(codec: ModuleType) -> None:
    more = made(record(0), base_offset=110)
    some = chosen(codec, TEN, more, max_records=4)
    assert (some.offsets.tolist(), some.next_offset) == ([100, 101, 102, 103], 104)
    assert some.is_limited
    border = chosen(codec, TEN, more, max_records=10)
    assert (len(border), border.next_offset, border.is_limited) == (10, 110, True)
    exact = chosen(codec, TEN, more, max_records=11)
    assert (len(exact), exact.next_offset, exact.is_limited) == (11, 111, False)
    none = chosen(codec, TEN, max_records=0)
    assert (len(none), none.next_offset, none.is_limited) == (0, 0, True)


def test_the_number_of_bytes_is_limited_but_one_record_always_comes(codec: ModuleType) -> None:
    one = chosen(codec, TEN, max_records=1).encoded_bytes
    assert one == len(record(0, key=b"k0", value=b"value 0", headers=[(b"tag", b"even")]))
    assert offsets(codec, TEN, max_bytes=0) == [100]
    assert offsets(codec, TEN, max_bytes=0, start_offset=105) == [105]
    some = chosen(codec, TEN, max_bytes=3 * one)
    assert some.encoded_bytes <= 3 * one
    assert some.is_limited
    assert some.next_offset == 100 + len(some)
    rest = chosen(codec, TEN, start_offset=some.next_offset)
    assert len(some) + len(rest) == 10


def test_reading_page_by_page_gives_every_record_once(codec: ModuleType) -> None:
    more = made(record(0), record(1), base_offset=110)
    for limits in ({"max_records": 3}, {"max_bytes": 50}, {"max_records": 1, "tag": b"odd"}):
        found: list[int] = []
        start = 0
        while True:
            page = chosen(codec, TEN, more, start_offset=start, **limits)
            found += page.offsets.tolist()
            start = page.next_offset
            if not page.is_limited:
                break
        everything = {key: value for key, value in limits.items() if not key.startswith("max")}
        assert found == offsets(codec, TEN, more, **everything)


def test_by_key_and_by_tag(codec: ModuleType) -> None:
    assert offsets(codec, TEN, key=b"k1") == [101, 104, 107]
    assert offsets(codec, TEN, key=b"k") == []
    assert offsets(codec, TEN, tag=b"odd") == [101, 103, 105, 107, 109]
    assert offsets(codec, TEN, tag=b"odd", key=b"k1") == [101, 107]
    assert offsets(codec, TEN, tag=b"odd", tag_headers=(b"other",)) == []
    assert offsets(codec, TEN, tag=b"odd", tag_headers=(b"other", b"tag"))[0] == 101
    assert chosen(codec, TEN, tag=b"none").next_offset == 110
    assert offsets(codec, made(record(0, key=None), record(1, key=b"")), key=b"") == [1]


def test_holes_and_dead_keys(codec: ModuleType) -> None:
    assert offsets(codec, TEN, holes={100, 105, 7}, max_records=3) == [101, 102, 103]
    assert offsets(codec, TEN, holes=frozenset(range(100, 110))) == []
    # Records of k1 are dead below 107, those of k2 altogether.
    dead = {b"k1": 107, b"k2": 1_000}
    assert offsets(codec, TEN, dead_keys=dead) == [100, 103, 106, 107, 109]
    assert offsets(codec, made(record(0, key=None)), dead_keys={b"": 99}) == [0]


def test_by_time(codec: ModuleType) -> None:
    assert offsets(codec, TEN, min_timestamp=1_085) == [109]
    assert offsets(codec, TEN, min_timestamp=1_080, max_records=1) == [108]
    assert offsets(codec, TEN, min_timestamp=2_000) == []


def test_log_append_time_overrides_the_records_own(codec: ModuleType) -> None:
    batch = made(record(0, timestamp_delta=5), attributes=8, max_timestamp=7_777)
    assert codec.decode([batch]).timestamps.tolist() == [7_777]


@pytest.mark.parametrize(
    ("content", "expiry"),
    [
        (b"0", 0),
        (b"1500", 1500),
        (b"0001500", 1500),
        (b"9" * 18, 10**18 - 1),
        (b"1" * 19, None),
        (b"", None),
        (b"-5", None),
        (b"1e3", None),
        (b" 7", None),
        (None, None),
    ],
)
def test_expiry_is_decimal_or_absent(
    codec: ModuleType, content: bytes | None, expiry: int | None
) -> None:
    batch = made(record(0), record(1, headers=[(b"expire-at", content)]), record(2))
    columns = codec.decode([batch])
    assert [found.expire_at_ms for found in columns.records()] == [None, expiry, None]


def test_the_last_expiry_header_counts(codec: ModuleType) -> None:
    batch = made(record(0, headers=[(b"expire-at", b"5"), (b"expire-at", b"9")]))
    assert codec.decode([batch]).expire_at_ms(0) == 9
    renamed = made(record(0, headers=[(b"expire-at", b"5"), (b"bis", b"9")]))
    assert chosen(codec, renamed, expire_header=b"bis").expire_at_ms(0) == 9


def test_time_to_live(codec: ModuleType) -> None:
    batch = made(
        record(0),
        record(1, headers=[(b"expire-at", b"1100")]),
        record(2, headers=[(b"expire-at", b"9999")]),
        record(3, timestamp_delta=-1_001),  # The record has no timestamp.
    )
    columns = chosen(codec, batch, ttl_ms=500)
    assert [columns.expire_at_ms(i) for i in range(4)] == [1_500, 1_100, 1_500, None]
    assert offsets(codec, batch, ttl_ms=500, now_ms=1_099) == [0, 1, 2, 3]
    assert offsets(codec, batch, ttl_ms=500, now_ms=1_100) == [0, 2, 3]
    assert offsets(codec, batch, ttl_ms=500, now_ms=1_500) == [3]
    assert offsets(codec, batch, now_ms=1_100) == [0, 2, 3]
    assert chosen(codec, batch, ttl_ms=2**63 - 1).expire_at_ms(0) is None


def test_control_batches_are_left_out_unless_asked_for(codec: ModuleType) -> None:
    control = made(record(0, key=b"\0\0\0\1"), attributes=0x30, base_offset=110)
    after = made(record(0), base_offset=111)
    assert offsets(codec, TEN, control, after, start_offset=109) == [109, 111]
    assert offsets(codec, control, include_control=True) == [110]
    assert chosen(codec, control).next_offset == 111


def test_only_what_is_asked_for_is_materialised(codec: ModuleType) -> None:
    columns = chosen(codec, TEN, columns=frozenset({"key"}))
    assert columns.values is None
    assert columns.header_names is None
    assert columns.tags is None
    assert columns.record(1).key == b"k1"
    assert columns.record(1).value is None
    assert columns.record(1).headers == ()
    assert columns.to_arrow().schema.names == ["offset", "timestamp", "key", "expire_at"]
    tags = chosen(codec, TEN, columns=frozenset({"tags"}))
    assert tags.record(1).tags == ("odd",)
    assert tags.record(1).headers == ()
    headers = chosen(codec, TEN, columns=frozenset({"headers"}))
    assert headers.record(1).tags == ()
    assert headers.record(1).headers == (("tag", b"odd"),)
    bare = chosen(codec, TEN, columns=frozenset())
    assert bare.records()[9].offset == 109


def test_nulls_of_every_length_of_bitmap(codec: ModuleType) -> None:
    for count in (1, 7, 8, 9, 63, 64, 65, 200):
        for nth in (1, 2, 3, 9):
            entries = [None if i % nth == 0 else b"%d" % i for i in range(count)]
            for first in (b"x", None):
                keys = [first, *entries]
                batch = made(*(record(i, key=key) for i, key in enumerate(keys)))
                columns = codec.decode([batch])
                assert columns.keys.entries() == keys
                assert [columns.keys[i] for i in range(count + 1)] == keys
                assert columns.keys.null_count == keys.count(None)


def test_an_empty_batch_only_moves_the_offset(codec: ModuleType) -> None:
    for compression in Compression:
        empty = made(
            record_count=0, last_offset_delta=4, base_offset=110, attributes=int(compression)
        )
        columns = chosen(codec, TEN, empty, start_offset=109)
        assert columns.offsets.tolist() == [109]
        assert columns.next_offset == 115


# What is wrong, and the batch that has it wrong.
BAD: dict[str, bytes] = {
    "truncated": TEN[:-1],
    "no header": TEN[:20],
    "bad magic": made(record(0), magic=1),
    "bad length": made(record(0), batch_length=10),
    "unknown compression codec": made(record(0), attributes=7),
    "gzip data is damaged": made(record(0), attributes=1),
    "snappy data is damaged": made(record(0), attributes=2),
    "lz4 data is damaged": made(record(0), attributes=3),
    "zstd data is damaged": made(record(0), attributes=4),
    "more records are counted": made(record(0), record_count=1_000),
    "bytes are left over after the last": made(record(0), record(1), record_count=1),
    "bytes are left over after": made(b"x", record_count=0, last_offset_delta=0),
    "record 1: record length": made(record(0), varint(50) + bytes(9)),
    "record 0: record length": made(varint(-1) + bytes(9)),
    "record 0: record length does": made(varint(2) + bytes(9)),
    "number has too many bytes": made(b"\xff" * 5 + b"\x01" + bytes(9)),
    "number has too many": made(b"\xff\xff\xff\xff\x1f" + bytes(9)),
    "past the end": made(varint(6) + b"\0" + b"\x80" * 5),
    "key length": made(varint(10) + b"\0\0\0" + varint(-2) + bytes(6)),
    "key length does not": made(varint(10) + b"\0\0\0" + varint(60) + bytes(6)),
    "value length": made(varint(10) + b"\0\0\0" + varint(-1) + varint(60) + bytes(5)),
    "header count": made(varint(10) + b"\0\0\0" + varint(-1) * 2 + varint(3) + bytes(4)),
    "header count does": made(varint(10) + b"\0\0\0" + varint(-1) * 3 + bytes(4)),
    "header name length": made(varint(10) + b"\0\0\0\1\1" + varint(1) + varint(-1) + bytes(3)),
    "header value length": made(varint(10) + b"\0\0\0\1\1" + varint(1) + b"\0\x20" + bytes(2)),
    "left over at the end of the record": made(varint(8) + b"\0\0\0\1\1\0" + bytes(2)),
    "left over at the end": made(varint(10) + b"\0\0\0\1\1" + varint(1) + b"\0\0" + bytes(2)),
    "offset delta out of order": made(record(0), record(0)),
    "offset delta": made(record(1), record_count=1, last_offset_delta=0),
    "offset delta out": made(record(-1)),
    "timestamp out of range": made(record(0, timestamp_delta=2**63 - 1)),
    "timestamp out": made(record(0, timestamp_delta=-(2**63)), base_timestamp=-1),
    "bad offset": made(record(0), base_offset=-1),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_bytes_from_disk_are_corruption(codec: ModuleType, what: str) -> None:
    with pytest.raises(Corruption) as refusal:
        codec.decode([TEN + BAD[what]] if BAD[what][:8] > TEN[:8] else [BAD[what]], where="seg")
    assert refusal.value.where == "seg"
    assert refusal.value.position is not None
    if what != "no header":
        assert what in refusal.value.reason


@pytest.mark.parametrize("what", BAD)
def test_bad_bytes_from_a_client_are_an_invalid_record(codec: ModuleType, what: str) -> None:
    with pytest.raises(InvalidRecord):
        codec.decode([BAD[what]], source="client")


def test_a_bad_crc_is_found_unless_not_asked_for(codec: ModuleType) -> None:
    damaged = bytearray(made(record(0, value=b"0123456789")))
    damaged[-4] ^= 1
    with pytest.raises(Corruption, match="crc mismatch"):
        codec.decode([damaged])
    assert len(codec.decode([damaged], verify=False)) == 1


def test_the_position_of_the_bad_batch_is_told(codec: ModuleType) -> None:
    with pytest.raises(Corruption) as refusal:
        codec.decode([TEN + made(record(0), base_offset=110, magic=0)])
    assert refusal.value.position == len(TEN)


def test_batches_must_follow_each_other(codec: ModuleType) -> None:
    with pytest.raises(Corruption, match="before its predecessor"):
        codec.decode([TEN, TEN])


def test_the_decompressed_size_is_limited(codec: ModuleType) -> None:
    for compression in Compression:
        if compression is Compression.NONE:
            continue
        batch = made(record(0, value=bytes(100_000)), compression=compression)
        with pytest.raises(LimitExceeded):
            codec.decode([batch], source="client", max_decompressed=50_000)
        with pytest.raises(Corruption):
            codec.decode([batch], max_decompressed=50_000)


def test_a_count_is_judged_before_memory_is_taken(codec: ModuleType) -> None:
    batch = made(record(0), record_count=2**31 - 1, last_offset_delta=2**31 - 1)
    with pytest.raises(Corruption, match="more records"):
        codec.decode([batch])
    with pytest.raises(Corruption, match="more records"):
        codec.collect(batch)


@pytest.mark.parametrize(
    "wrong",
    [
        {"start_offset": -1},
        {"end_offset": 2**63},
        {"max_records": -1},
        {"max_bytes": -1},
        {"ttl_ms": -1},
        {"now_ms": 2**63},
        {"columns": frozenset({"body"})},
    ],
    ids=str,
)
def test_a_selection_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Selection(**wrong)


def test_limits_beyond_the_possible_are_no_limits(codec: ModuleType) -> None:
    assert len(chosen(codec, TEN, max_records=2**62, max_bytes=2**62)) == 10


def test_an_unknown_source_is_the_callers_mistake(codec: ModuleType) -> None:
    with pytest.raises(InvalidArgument):
        codec.decode([TEN], source="elsewhere")


def test_large_batches_grow_every_buffer(codec: ModuleType) -> None:
    records = [
        NewRecord(
            value=b"v" * (i % 50),
            key=None if i % 3 else b"k%d" % i,
            headers=((f"h{i}", None if i % 2 else b"x" * i),) if i > 100 else (),
            tags=(f"t{i}",) if i > 500 else (),
            expire_at_ms=i if i > 700 else None,
        )
        for i in range(1_000)
    ]
    batch = codec.encode(records, now_ms=5, compression=Compression.ZSTD)
    for selection in (Selection(), Selection(tag_headers=(b"tag",), max_records=99)):
        decoded = codec.decode([batch], selection).records()
        for new, stored in zip(records, decoded, strict=False):
            assert (stored.key, stored.value, stored.tags) == (new.key, new.value, new.tags)
            assert stored.headers[: len(new.headers)] == new.headers
            assert stored.expire_at_ms == new.expire_at_ms
        assert len(decoded) == min(1_000, selection.max_records)


def test_made_batches_can_be_changed() -> None:
    assert Made(records=[record(0)]).with_(magic=1).build() == made(record(0), magic=1)
