"""Bloom filters of Parquet files, read by hand."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firnmq.errors import Corruption
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.files.key_filter import key_hash, may_hold_key
from firnmq.lake.tables.files.parquet import Made, PartitionedWriter
from firnmq.tiering.stores import open_store
from tests.unit.lake.rows import raw_rows


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
        # At every length where the algorithm goes another way.
        (bytes(range(3)), 0xE5C7BB4533BC65DD),
        (bytes(range(4)), 0xFFCED8604453CC1E),
        (bytes(range(7)), 0x14CC643F630C72D2),
        (bytes(range(8)), 0x884A173614B81B8D),
        (bytes(range(31)), 0xC346D2B59B4D8EE1),
        (bytes(range(32)), 0xCBF59C5116FF32B4),
        (bytes(range(33)), 0x0C535D1ACAFB8EAD),
        (bytes(range(63)), 0xE26AA9E2A95F8E4F),
        (bytes(range(64)), 0xF7C67301DB6713F0),
        (bytes(range(100)), 0x6AC1E58032166597),
    ],
)
def test_the_hash_is_that_of_files_written_before(data: bytes, expected: int) -> None:
    assert key_hash(data) == expected


def _file(tmp_path: Path, rows: pa.RecordBatch) -> tuple[str, int]:
    made: list[Made] = []
    writer = PartitionedWriter(RAW, "day", made.append)
    writer.write(rows)
    writer.close()
    open_store(f"file://{tmp_path}").put("x.parquet", made[0].content)
    return "x.parquet", len(made[0].content)


def test_every_key_is_found_and_hardly_any_other(tmp_path: Path) -> None:
    rows = raw_rows(0, range(3000))
    path, size = _file(tmp_path, rows)
    store = open_store(f"file://{tmp_path}")
    keys = [key for key in rows.column("key").to_pylist() if key is not None]
    assert all(may_hold_key(store, path, size, [key]) for key in keys[::40])
    wrong = sum(may_hold_key(store, path, size, [b"other-%d" % n]) for n in range(200))
    assert wrong <= 3
    assert may_hold_key(store, path, size, [b"other-1", keys[5]])


def test_long_keys_are_hashed_the_same_way(tmp_path: Path) -> None:
    keys = [bytes(range(length)) for length in range(1, 100)]
    rows = raw_rows(0, range(len(keys))).set_column(3, RAW.field("key"), pa.array(keys))
    path, size = _file(tmp_path, rows)
    store = open_store(f"file://{tmp_path}")
    assert all(may_hold_key(store, path, size, [key]) for key in keys)


def test_a_file_without_filters_may_hold_anything(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_batches([raw_rows(0, range(10))]), sink)
    store = open_store(f"file://{tmp_path}")
    store.put("plain.parquet", sink.getvalue())
    assert may_hold_key(store, "plain.parquet", sink.getvalue().size, [b"nobody"])


def test_something_else_is_not_read_as_parquet(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("x.parquet", b"not at all a Parquet file")
    with pytest.raises(Corruption, match="Parquet"):
        may_hold_key(store, "x.parquet", 25, [b"k"])
