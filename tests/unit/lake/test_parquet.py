"""Parquet files: one partition value each, in order, with what readers need to leave them out."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.errors import InvalidArgument
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.files import parquet
from firnmq.lake.tables.files.parquet import Made, PartitionedWriter, partition_text
from tests.unit.lake.rows import HOUR_US, NOON_US, raw_rows


def _made(batches: list[pa.RecordBatch], partition: str = "hour") -> list[Made]:
    made: list[Made] = []
    writer = PartitionedWriter(RAW, partition, made.append)
    for batch in batches:
        writer.write(batch)
    writer.close()
    return made


def _rows(made: Made) -> pa.Table:
    return pq.read_table(pa.BufferReader(made.content))


def _at(offsets_and_times: list[tuple[int, int]]) -> pa.RecordBatch:
    rows = raw_rows(0, [offset for offset, _ in offsets_and_times])
    times = pa.array([time for _, time in offsets_and_times], RAW.field("timestamp").type)
    return rows.set_column(2, RAW.field("timestamp"), times)


def test_each_file_has_one_hour_and_nothing_is_lost() -> None:
    batches = [
        raw_rows(3, range(start, start + 50), first_us=NOON_US, step_us=HOUR_US // 20)
        for start in range(0, 200, 50)
    ]
    made = _made(batches)
    assert [each.partition for each in made] == [f"2026-01-01T{hour}" for hour in range(12, 22)]
    assert pa.concat_tables(map(_rows, made)).cast(RAW) == pa.Table.from_batches(batches)


@given(
    st.lists(
        st.one_of(
            st.integers(-3 * HOUR_US, 3 * HOUR_US),
            st.integers(-(2**60), 2**60),
            st.sampled_from([0, -1, HOUR_US - 1, HOUR_US, -HOUR_US]),
        ),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from(["day", "hour"]),
)
def test_any_times_are_partitioned_and_kept_in_order(times: list[int], partition: str) -> None:
    half = len(times) // 2
    numbered = list(enumerate(times))
    made = _made([_at(part) for part in (numbered[:half], numbered[half:]) if part], partition)
    unit = parquet.PARTITIONS[partition]
    found: list[tuple[int, int]] = []
    for each in made:
        rows = _rows(each)
        own = list(
            zip(
                rows.column("offset").to_pylist(),
                rows.column("timestamp").cast(pa.int64()).to_pylist(),
                strict=True,
            )
        )
        assert own == sorted(own)
        assert {time // unit for _, time in own} == {each.partition_value}
        found += own
    assert sorted(found) == numbered


def test_a_file_is_finished_when_time_has_gone_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = parquet.PARTITIONS["hour"]
    batches = [_at([(n, n * hour // 4)]) for n in range(40)]
    monkeypatch.setattr(parquet, "IDLE_BYTES_MAX", 3 * batches[0].nbytes)
    made: list[Made] = []
    writer = PartitionedWriter(RAW, "hour", made.append)
    open_at_once = 0
    for batch in batches:
        writer.write(batch)
        open_at_once = max(open_at_once, len(writer._open))
    assert open_at_once == 2
    writer.write(_at([(40, 0)]))  # Late: its own file.
    writer.close()
    assert sorted((each.partition_value, each.row_count) for each in made) == [
        (0, 1),
        *((value, 4) for value in range(10)),
    ]
    offsets = [offset for each in made for offset in _rows(each).column("offset").to_pylist()]
    assert sorted(offsets) == list(range(41))


def test_the_same_rows_make_the_same_bytes() -> None:
    rows = raw_rows(0, range(1000))
    (whole,) = _made([rows])
    (parts,) = _made([rows.slice(0, 400), rows.slice(400)])
    assert whole.digest == parts.digest
    assert whole.digest != _made([rows.slice(1)])[0].digest


def test_what_readers_leave_out_by_is_there() -> None:
    (made,) = _made([raw_rows(0, range(1000))])
    metadata = pq.read_metadata(pa.BufferReader(made.footer))
    assert metadata.num_rows == made.row_count == 1000
    columns = {
        column.path_in_schema: column
        for column in (metadata.row_group(0).column(at) for at in range(metadata.num_columns))
    }
    assert columns["offset"].statistics.max == 999
    assert "DELTA_BINARY_PACKED" in columns["offset"].encodings
    assert columns["key"].bloom_filter_offset is not None
    assert not columns["value"].is_stats_set
    assert all(column.compression == "ZSTD" for column in columns.values())
    assert columns["timestamp"].has_column_index
    assert columns["timestamp"].has_offset_index
    sorting = [each.column_index for each in metadata.row_group(0).sorting_columns]
    assert sorting == [0, 1]


def test_a_small_file_has_a_small_filter() -> None:
    (made,) = _made([raw_rows(0, range(5))])
    assert len(made.content) < 4_000


def test_row_groups_and_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "ROW_GROUP_ROWS_MAX", 100)
    monkeypatch.setattr(parquet, "FILE_BYTES_MAX", 3_000)
    made = _made([raw_rows(0, range(start, start + 70)) for start in range(0, 2100, 70)])
    assert len(made) > 3
    for each in made:
        metadata = pq.read_metadata(pa.BufferReader(each.footer))
        groups = [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)]
        assert max(groups) <= 100
    offsets = [each for part in made for each in _rows(part).column("offset").to_pylist()]
    assert offsets == list(range(2100))


def test_a_calendar_full_of_partitions_needs_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parquet, "OPEN_FILES_MAX", 3)
    times = [(offset, (offset % 10) * 24 * HOUR_US) for offset in range(100)]
    made = _made([_at(times[start : start + 10]) for start in range(0, 100, 10)], "day")
    found = sorted(each for part in made for each in _rows(part).column("offset").to_pylist())
    assert found == list(range(100))


def test_other_partitions_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="week"):
        PartitionedWriter(RAW, "week", lambda made: None)


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0, "day", "1970-01-01"), (-1, "day", "1969-12-31"), (25, "hour", "1970-01-02T01")],
)
def test_folders_are_called_by_their_time(value: int, unit: str, text: str) -> None:
    assert partition_text(value, unit) == text
