from datetime import UTC, datetime, timedelta
from types import ModuleType

import pyarrow as pa
import pytest

from firnmq.errors import InvalidArgument
from firnmq.record import Columns, NewRecord, Record, Selection, columns_of_records
from firnmq.record.arrow import SCHEMA, table_of
from tests.unit.record.batches import made, record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
RECORDS = [
    NewRecord(
        value=None if i % 5 == 0 else b"v%d" % i,
        key=b"k%d" % i if i % 3 else None,
        headers=(("name", b"x"), ("näme", None)) if i % 4 == 0 else (),
        tags=("red", "grün")[: i % 3],
        timestamp_ms=1_000 + i,
        expire_at_ms=9_000 + i if i % 2 else None,
    )
    for i in range(50)
]


def columns_with(codec: ModuleType, records: list[NewRecord] = RECORDS) -> Columns:
    columns = codec.decode([codec.encode(records, now_ms=1, base_offset=70)])
    assert isinstance(columns, Columns)
    return columns


def test_arrow_sees_the_same_memory_and_the_same_records(codec: ModuleType) -> None:
    columns = columns_with(codec)
    batch = columns.to_arrow()
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    rows = batch.to_pylist()
    for row, stored in zip(rows, columns.records(), strict=True):
        assert row["offset"] == stored.offset
        assert row["timestamp"] == EPOCH + timedelta(milliseconds=stored.timestamp_ms)
        assert (row["key"], row["value"]) == (stored.key, stored.value)
        headers = tuple((header["key"], header["value"]) for header in row["headers"])
        assert headers == stored.headers
        assert tuple(row["tags"]) == stored.tags
        if stored.expire_at_ms is None:
            assert row["expire_at"] is None
        else:
            assert row["expire_at"] == EPOCH + timedelta(milliseconds=stored.expire_at_ms)
    value_address = pa.py_buffer(columns.values.data).address if columns.values else 0
    assert batch.column("value").buffers()[2].address == value_address


def test_there_and_back(codec: ModuleType) -> None:
    columns = columns_with(codec)
    back = Columns.from_arrow(columns.to_arrow())
    assert back.records() == columns.records()
    assert [back.record(i) for i in range(len(back))] == columns.records()
    assert back.next_offset == columns.next_offset
    assert codec.encode_columns(back) == codec.encode_columns(columns)


def test_back_from_slices_and_chunks(codec: ModuleType) -> None:
    columns = columns_with(codec)
    table = pa.Table.from_batches([columns.to_arrow()])
    for start, length in ((0, 50), (3, 20), (13, 1), (49, 1), (20, 0)):
        part = Columns.from_arrow(table.slice(start, length))
        assert part.records() == columns.records()[start : start + length]
    chunks = pa.concat_tables([table.slice(40), table.slice(7, 9)])
    assert Columns.from_arrow(chunks).records() == columns.records()[40:] + columns.records()[7:16]


def test_back_from_other_types(codec: ModuleType) -> None:
    columns = columns_with(codec)
    table = pa.Table.from_batches([columns.to_arrow()])
    wide = table.set_column(3, "value", table["value"].cast(pa.large_binary()))
    shuffled = wide.select(["value", "timestamp", "offset"])
    back = Columns.from_arrow(shuffled)
    assert back.keys is None
    assert [r.value for r in back.records()] == [r.value for r in columns.records()]


def test_null_lists_are_empty_ones() -> None:
    table = pa.table(
        {
            "offset": pa.array([1, 2]),
            "timestamp": pa.array([5, 6], pa.timestamp("ms", tz="UTC")),
            "tags": pa.array([None, ["a"]], pa.list_(pa.string())),
            "headers": pa.array([None, []], SCHEMA.field("headers").type),
        }
    )
    assert [found.tags for found in Columns.from_arrow(table).records()] == [(), ("a",)]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"offset": pa.array([1])}),
        pa.table({"offset": pa.array(["x"]), "timestamp": pa.array([1])}),
        pa.table({"offset": pa.array([None], pa.int64()), "timestamp": pa.array([1])}),
    ],
)
def test_a_table_of_something_else_is_refused(table: pa.Table) -> None:
    with pytest.raises(InvalidArgument):
        Columns.from_arrow(table)


def test_names_that_are_not_text_never_make_invalid_arrow(codec: ModuleType) -> None:
    # Each half of a character is invalid, though the column's bytes put together are not.
    batch = made(
        record(0, headers=[(b"\xc3", b"1"), (b"\xa9", b"2"), (b"tag", b"\xff")]),
        record(1, headers=[(b"plain", None), (b"tag", "gut ✓".encode())]),
    )
    columns = codec.decode([batch])
    arrow = columns.to_arrow()
    arrow.validate(full=True)
    rows = arrow.to_pylist()
    assert [header["key"] for header in rows[0]["headers"]] == ["�", "�", "tag"]
    assert [row["tags"] for row in rows] == [["�"], ["gut ✓"]]
    assert columns.record(0).headers[0] == ("\udcc3", b"1")


def test_no_rows(codec: ModuleType) -> None:
    columns = codec.decode([])
    arrow = columns.to_arrow()
    arrow.validate(full=True)
    assert arrow.schema == SCHEMA
    assert arrow.num_rows == 0
    assert Columns.from_arrow(arrow).records() == []


def test_several_sets_become_one_table(codec: ModuleType) -> None:
    first = codec.decode([made(record(0), record(1))])
    second = codec.decode([made(record(0, key=b"k"), base_offset=2)])
    table = table_of([first, second])
    assert table["offset"].to_pylist() == [0, 1, 2]
    assert table_of([]).schema == SCHEMA
    some = Selection(columns=frozenset({"key"}))
    assert table_of([codec.decode([made(record(0))], some)]).num_columns == 4


def test_records_become_columns(codec: ModuleType) -> None:
    stored = columns_with(codec).records()
    columns = columns_of_records(stored)
    assert columns.records() == stored
    assert columns.next_offset == stored[-1].offset + 1
    columns.to_arrow().validate(full=True)
    assert columns.to_arrow().equals(columns_with(codec).to_arrow())
    assert codec.encode_columns(columns) == codec.encode_columns(columns_with(codec))
    assert columns_of_records([]).records() == []
    assert columns_of_records([]).to_arrow().num_rows == 0


def test_an_index_outside_is_an_index_error(codec: ModuleType) -> None:
    columns = codec.decode([made(record(0))])
    for index in (-1, 1):
        with pytest.raises(IndexError):
            columns.record(index)
        with pytest.raises(IndexError):
            columns.keys[index]
    assert isinstance(columns.record(0), Record)


def test_columns_outlive_the_batch(codec: ModuleType) -> None:
    batch = bytearray(made(record(0, value=b"stays")))
    columns = codec.decode([batch])
    arrow = columns.to_arrow()
    batch.clear()
    del columns
    assert arrow.to_pylist()[0]["value"] == b"stays"
