"""Options, filters and positions of the Spark data source, without Spark running."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import OFFSET_END, Wanted
from firnmq.lake.reading.marks import Mark
from firnmq.lake.reading.schema import RAW
from firnmq.lake.spark.columns import RECORD, arrow_schema
from firnmq.lake.spark.encoding import RowEncoder, key_hashes
from firnmq.lake.spark.filters import Limits, narrow
from firnmq.lake.spark.options import read_options, shown_options, write_options
from firnmq.lake.spark.positions import Position
from firnmq.lake.spark.streaming import limited
from firnmq.record import Compression, decode

HERE = {"bootstrap": "localhost:9092", "topic": "t"}


def test_defaults() -> None:
    found = read_options(HERE)
    assert found.connection == HERE
    assert found.wanted == Wanted()
    assert (found.starting.at(3), found.ending.at(3)) == ("earliest", "latest")
    assert not found.takes_filters
    assert found.uses_table


def test_everything_said() -> None:
    found = read_options(
        {
            **HERE,
            "STARTINGOFFSETS": '{"0": 5, "1": "latest", "2": -2}',
            "endingOffsets": "latest",
            "startingTimestamp": "2026-01-01T01:00:00+01:00",
            "endingTimestamp": "1767225600001",
            "shards": "2, 0",
            "keys": '["a", "ü", "a"]',
            "tag": "x,y",
            "table": "never",
            "catalog.token": "secret",
        }
    )
    assert [found.starting.at(shard) for shard in range(4)] == [5, "latest", "earliest", "earliest"]
    assert found.wanted == Wanted(
        shards=(0, 2),
        min_timestamp_ms=1_767_225_600_000,
        end_timestamp_ms=1_767_225_600_001,
        keys=(b"a", "ü".encode()),
        tags=("x,y",),
    )
    assert found.connection["catalog.token"] == "secret"
    assert not found.uses_table


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"topic": "t"}, "bootstrap"),
        ({"bootstrap": "x"}, "topic"),
        ({**HERE, "topic": "a/b"}, "topic name"),
        ({**HERE, "data": "d"}, "data"),
        ({**HERE, "endingOffsets": '{"x": 1}'}, "endingOffsets"),
        ({**HERE, "endingOffsets": '{"1": true}'}, "endingOffsets"),
        ({**HERE, "startingTimestamp": "soon"}, "startingTimestamp"),
        ({**HERE, "key": "a", "keys": "[]"}, "key"),
        ({**HERE, "tags": "a"}, "tags"),
        ({**HERE, "splitBytes": "0"}, "splitBytes"),
        ({**HERE, "table": "always"}, "table"),
        ({**HERE, "path": "x"}, "path"),
    ],
)
def test_mistakes_are_named(options: dict[str, str], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        read_options(options)
    assert caught.value.argument == argument


def test_what_is_only_for_streams_and_what_is_not() -> None:
    assert read_options({**HERE, "maxRowsPerTrigger": "7"}, is_stream=True).max_rows == 7
    for name in ("endingOffsets", "endingTimestamp", "pushFilters"):
        with pytest.raises(InvalidArgument):
            read_options({**HERE, name: "latest"}, is_stream=True)


def test_write_options() -> None:
    assert write_options(HERE).compression is Compression.ZSTD
    assert write_options({**HERE, "compression": "LZ4"}).compression is Compression.LZ4
    for wrong in ({"compression": "rar"}, {"batchBytes": "99999999"}, {"writeId": ""}):
        with pytest.raises(InvalidArgument):
            write_options({**HERE, **wrong})
    with pytest.raises(InvalidArgument, match="through a node"):
        write_options({"store": "s3://b", "topic": "t"})


def moment(millis: int, micros: int = 0) -> datetime:
    return datetime.fromtimestamp(millis / 1000, UTC).replace(
        microsecond=millis % 1000 * 1000 + micros
    )


def test_filters_that_are_taken_over() -> None:
    filters: list[Filter] = [
        In(("shard",), (3, 1, None)),
        GreaterThan(("offset",), 4),
        LessThanOrEqual(("offset",), 9),
        GreaterThanOrEqual(("timestamp",), moment(1000, 1)),
        LessThan(("timestamp",), moment(5000, 1)),
        EqualTo(("key",), bytearray(b"k")),
        IsNotNull(("key",)),
        IsNotNull(("offset",)),
    ]
    limits, left = narrow(Limits(wanted=Wanted(shards=(1, 2))), filters)
    assert left == []
    assert limits == Limits(
        wanted=Wanted(shards=(1,), min_timestamp_ms=1001, end_timestamp_ms=5001, keys=(b"k",)),
        min_offset=5,
        end_offset=10,
    )


def test_filters_that_are_left_to_spark() -> None:
    filters: list[Filter] = [
        Not(EqualTo(("shard",), 1)),
        GreaterThan(("shard",), 1),
        EqualTo(("value",), b"x"),
        IsNotNull(("key",)),
        EqualTo(("headers", "key"), "x"),
    ]
    limits, left = narrow(Limits(wanted=Wanted()), filters)
    assert left == filters
    assert limits == Limits(wanted=Wanted())


def test_filters_that_nothing_fulfils() -> None:
    for filters in (
        [EqualTo(("shard",), 1), EqualTo(("shard",), 2)],
        [EqualTo(("key",), b"a"), EqualTo(("key",), b"b")],
        [LessThan(("offset",), 5), GreaterThan(("offset",), 5)],
        [EqualTo(("timestamp",), moment(5, 1))],
        [EqualTo(("key",), None)],
    ):
        limits, left = narrow(Limits(wanted=Wanted()), filters)
        assert limits.is_empty
        assert left == []
    limits, _ = narrow(Limits(wanted=Wanted()), [GreaterThanOrEqual(("offset",), -5)])
    assert not limits.is_empty
    assert (limits.min_offset, limits.end_offset) == (0, OFFSET_END)


@pytest.mark.parametrize(
    ("begin", "ends", "most", "expected"),
    [
        ({0: 0, 1: 0}, {0: 5, 1: 5}, 20, {0: 5, 1: 5}),
        ({0: 0, 1: 0}, {0: 90, 1: 10}, 10, {0: 9, 1: 1}),
        ({0: 0, 1: 0}, {0: 1000, 1: 1}, 10, {0: 10, 1: 0}),
        ({0: 7}, {0: 7, 1: 3}, 2, {0: 7, 1: 2}),
        ({0: 0, 1: 0, 2: 0}, {0: 9, 1: 9, 2: 9}, 1, {0: 1, 1: 0, 2: 0}),
    ],
)
def test_limits_are_shared_out(
    begin: dict[int, int], ends: dict[int, int], most: int, expected: dict[int, int]
) -> None:
    assert limited(begin, ends, most) == expected


def test_a_limited_stream_gets_to_the_end() -> None:
    ends = {0: 1000, 1: 3, 2: 0}
    position = dict.fromkeys(ends, 0)
    for _ in range(200):
        after = limited(position, ends, 7)
        assert 0 < sum(after.values()) - sum(position.values()) <= 7
        position = after
        if position == ends:
            break
    assert position == ends


def test_the_schema_is_the_tables() -> None:
    assert arrow_schema(RECORD).equals(RAW)


def test_keys_choose_shards_as_kafka_clients_do() -> None:
    # By Kafka's own DefaultPartitionerTest and Utils' murmur2.
    known = {
        b"21": -973932308,
        b"foobar": -790332482,
        b"a-little-bit-long-string": -985981536,
        b"a-little-bit-longer-string": -1486304829,
        b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
        b"abc": 479470107,
    }
    hashes = key_hashes(pa.array(list(known), pa.binary()))
    assert hashes.astype(np.int32).tolist() == list(known.values())


def test_rows_become_batches() -> None:
    encoder = RowEncoder(
        shard_count=4, tag_header="tag", compression=Compression.LZ4, batch_bytes=2000
    )
    count = 500
    rows = pa.record_batch(
        {
            "key": pa.array([b"k%d" % (index % 50) for index in range(count)], pa.binary()),
            "value": [f"v{index}" for index in range(count)],
            "shard": pa.array([index % 2 if index < 10 else None for index in range(count)]),
        }
    )
    seen: dict[int, list[bytes | None]] = {}
    for shard, part in encoder.parts(rows):
        batch = encoder.encode(part, producer_id=1, producer_epoch=0, sequence=0)
        assert len(batch) < 3000
        seen.setdefault(shard, []).extend(each.value for each in decode([batch]).records())
    assert sum(map(len, seen.values())) == count
    assert len(seen) == 4
    for values in seen.values():
        numbers = [int((value or b"").removeprefix(b"v")) for value in values]
        assert numbers == sorted(numbers)
    assert {b"v0", b"v2", b"v4"} <= set(seen[0])


def test_what_rows_are() -> None:
    given = {"bootstrap": "a:1", "topic": "t"}
    assert read_options(given).values == "auto"
    assert read_options({**given, "values": "Typed"}).values == "typed"
    # Without the table there are only records as they are.
    assert read_options({**given, "table": "never"}).values == "raw"
    for values in ("typed", "dead_letters"):
        with pytest.raises(InvalidArgument, match="table=never"):
            read_options({**given, "table": "never", "values": values})
    with pytest.raises(InvalidArgument, match="none of auto, raw, typed, dead_letters"):
        read_options({**given, "values": "json"})
    # Which columns there are is asked before it is known whether it is a stream.
    assert shown_options({**given, "values": "raw", "maxRowsPerTrigger": "5"}).values == "raw"


def test_positions_as_text_stay_as_they_are() -> None:
    """Spark compares them as text; those from before marks were noted go on as they were."""
    position = Position(
        topic_id="ab", offsets={10: 3, 2: 20}, marks={10: Mark(2, "cd"), 2: Mark(19, "ef")}
    )
    text = json.dumps(position.document)
    assert text == (
        '{"last": {"2": "19:ef", "10": "2:cd"}, "shards": {"2": 20, "10": 3}, "topic": "ab"}'
    )
    assert Position.of_document(json.loads(text)) == position
    old = '{"shards": {"0": 7}, "topic": "ab"}'
    assert json.dumps(Position.of_document(json.loads(old)).document) == old
    newer = {"last": {"0": "?"}, "shards": {"0": 7}, "topic": "ab"}
    assert Position.of_document(newer) == Position(topic_id="ab", offsets={0: 7})
