"""Documents and files of a topic's table are read as they were written once."""

import io
import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq

from firnmq.lake.reading.marks import LastRow, Mark
from firnmq.lake.tables.deletions import Deletions
from firnmq.lake.tables.files.key_filter import may_hold_key
from firnmq.lake.tables.files.names import deletions_path, parse_converted
from firnmq.tiering.stores import open_store
from tests.unit.lake.rows import raw_rows

GOLDEN = json.loads(
    (Path(__file__).parents[2] / "golden" / "lake_documents_v1.json").read_text("utf-8")
)
PARQUET = bytes.fromhex(GOLDEN["parquet"])


def test_deletions() -> None:
    content = bytes.fromhex(GOLDEN["deletions"])
    deletions = msgspec.msgpack.decode(content, type=Deletions)
    assert deletions == Deletions(holes=(3, 5), dead_keys=((b"a", 7), (b"b", 2**40)))
    assert msgspec.msgpack.encode(deletions) == content
    assert deletions.digest == GOLDEN["digest"]
    assert deletions_path(2, deletions.digest) == f"deletions/00002-{GOLDEN['digest']}"


def test_the_mark_of_the_last_record() -> None:
    last = LastRow()
    assert list(last.passing([raw_rows(0, range(5))]))
    assert last.mark == Mark.of_text(GOLDEN["mark"])


def test_a_file_of_rows(tmp_path: Path) -> None:
    rows = raw_rows(0, range(5))
    assert pq.read_table(io.BytesIO(PARQUET)).to_pylist() == rows.to_pylist()
    store = open_store(f"file://{tmp_path}")
    store.put("golden.parquet", PARQUET)
    for key in rows.column("key").to_pylist():
        assert key is None or may_hold_key(store, "golden.parquet", len(PARQUET), [key])
    assert not may_hold_key(store, "golden.parquet", len(PARQUET), [b"other"])


def test_a_name() -> None:
    path = "data/2026-01-31/00003-00000000000000000007-00000000000000000009-001-0011223344556677"
    converted = parse_converted(f"{path}.parquet")
    assert converted is not None
    assert converted == (3, 7, 9, 1)
