"""Commits to a topic's table: once, in order, despite concurrent commits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import DataScan, FileScanTask
from sqlalchemy.exc import OperationalError

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import Plan, ShardPlan, TablePlace, Wanted
from firnmq.lake.reading.schema import RAW
from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.files.rows import read_history
from firnmq.lake.tables.history import plan_history
from firnmq.lake.tables.table import (
    Advance,
    CommitGivenUp,
    NotALakeTable,
    OtherTopicsTable,
    find_table,
)
from tests.unit.lake.rows import HOUR_US, NOON_US, clicks, content, open_catalog, raw_rows, written


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[OpenCatalog]:
    with open_catalog(tmp_path) as catalog:
        yield catalog


def test_a_table_is_made_once_and_found_again(catalog: OpenCatalog, tmp_path: Path) -> None:
    made = clicks(catalog)
    with open_catalog(tmp_path) as again:
        found = clicks(again, partition="day")
        assert found.location == made.location
        assert found.partition == "hour"
        assert found.properties["firn.topic"] == "clicks"
        assert found.properties["firn.cluster"] == "c1"
        assert found.properties["commit.retry.num-retries"] == "0"
        assert found.ends() == {}


def test_the_topic_of_another_life_is_refused(catalog: OpenCatalog) -> None:
    clicks(catalog, topic_id="a1")
    with pytest.raises(OtherTopicsTable, match="a1") as refused:
        clicks(catalog, topic_id="b2")
    assert refused.value.table == "topics.clicks"
    assert find_table(catalog, "clicks", None) is not None


def test_a_table_of_somebody_else_is_refused(catalog: OpenCatalog) -> None:
    catalog.make_namespace("topics")
    catalog.iceberg.create_table(("topics", "clicks"), schema=RAW)
    with pytest.raises(NotALakeTable):
        clicks(catalog)


def test_rows_come_back_as_they_were(catalog: OpenCatalog) -> None:
    table = clicks(catalog)
    rows = raw_rows(0, range(100), step_us=HOUR_US // 7)
    files = written(table, rows)
    assert len(files) > 10
    done = table.advance(Advance(base={}, ends={0: 100}, files=files))
    assert (done.shards, done.row_count, done.file_count) == ((0,), 100, len(files))
    assert content(table) == rows.to_pylist()
    assert table.ends() == {0: 100}


def test_a_round_that_comes_twice_counts_once(catalog: OpenCatalog, tmp_path: Path) -> None:
    table = clicks(catalog)
    advance = Advance(base={}, ends={0: 10}, files=written(table, raw_rows(0, range(10))))
    table.advance(advance)
    with open_catalog(tmp_path) as again:
        repeated = clicks(again).advance(advance)
    assert repeated.shards == ()
    assert repeated.snapshot_id is None
    assert [row["offset"] for row in content(table)] == list(range(10))


def test_only_shards_that_still_stand_there_are_committed(catalog: OpenCatalog) -> None:
    table = clicks(catalog)
    zero, one = written(table, raw_rows(0, range(5))), written(table, raw_rows(1, range(8)))
    table.advance(Advance(base={}, ends={0: 5}, files=zero))
    both = table.advance(Advance(base={}, ends={0: 5, 1: 8}, files=[*zero, *one]))
    assert both.shards == (1,)
    assert both.row_count == 8
    assert table.ends() == {0: 5, 1: 8}
    assert len(content(table)) == 13


def test_offsets_without_rows_move_the_end_too(catalog: OpenCatalog) -> None:
    table = clicks(catalog)
    table.advance(Advance(base={}, ends={0: 40}, files=[]))
    assert table.advance(Advance(base={}, ends={0: 30}, files=[])).shards == ()
    assert table.ends() == {0: 40}
    assert len(table.iceberg.metadata.snapshots) == 1


def test_of_many_at_once_one_wins_each_time(catalog: OpenCatalog, tmp_path: Path) -> None:
    """1. Four writers hold the same files. 2. All commit each of five rounds at the same moment.
    3. Each offset is there once."""
    table = clicks(catalog)
    rounds = [
        Advance(
            base={0: start} if start else {},
            ends={0: start + 10},
            files=written(table, raw_rows(0, range(start, start + 10))),
        )
        for start in range(0, 50, 10)
    ]
    barrier, wins, failures = Barrier(4), [], []

    def write() -> None:
        try:
            with open_catalog(tmp_path) as mine:
                own = clicks(mine)
                for each in rounds:
                    barrier.wait(60)
                    if own.advance(each).shards:
                        wins.append(each.ends)
        except BaseException as error:
            failures.append(error)
            barrier.abort()

    threads = [Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert wins == [each.ends for each in rounds]
    assert [row["offset"] for row in content(table)] == list(range(50))


def test_a_commit_whose_answer_is_lost_is_found(
    catalog: OpenCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = clicks(catalog)
    real = catalog.iceberg.commit_table
    calls = []

    def commit(*args: Any) -> Any:
        calls.append(args)
        real(*args)
        raise OperationalError("COMMIT", {}, Exception("the answer is lost"))

    monkeypatch.setattr(catalog.iceberg, "commit_table", commit)
    files = written(table, raw_rows(0, range(10)))
    done = table.advance(Advance(base={}, ends={0: 10}, files=files))
    assert done.shards == (0,)
    assert len(calls) == 1
    assert [row["offset"] for row in content(table)] == list(range(10))


def test_a_commit_is_not_repeated_on_top_of_anothers_whatever_the_properties_say(
    catalog: OpenCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. A setting lets the table's commits be retried. 2. Two syncs have the same offsets; one
    commits just before the other does. 3. The other finds it out: each offset is there once."""
    table = clicks(catalog)
    with table.iceberg.transaction() as change:
        change.set_properties({"commit.retry.num-retries": "4", "commit.retry.min-wait-ms": "1"})
    advance = Advance(base={}, ends={0: 10}, files=written(table, raw_rows(0, range(10))))
    real = catalog.iceberg.commit_table

    def commit(*args: Any) -> Any:
        monkeypatch.setattr(catalog.iceberg, "commit_table", real)
        with open_catalog(tmp_path) as other:
            assert clicks(other).advance(advance).shards == (0,)
        return real(*args)

    monkeypatch.setattr(catalog.iceberg, "commit_table", commit)
    assert table.advance(advance).shards == ()
    assert [row["offset"] for row in content(table)] == list(range(10))
    assert table.properties["commit.retry.num-retries"] == "4"


def test_a_catalog_that_never_takes_it_is_given_up(
    catalog: OpenCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = clicks(catalog)

    def commit(*_: Any) -> Any:
        raise CommitFailedException("busy")

    monkeypatch.setattr(catalog.iceberg, "commit_table", commit)
    monkeypatch.setattr("firnmq.lake.tables.table._COMMIT_WAIT_S", 0.0)
    with pytest.raises(CommitGivenUp, match="busy"):
        table.advance(Advance(base={}, ends={0: 10}, files=[]))
    monkeypatch.undo()
    assert table.reload().ends() == {}


@pytest.mark.parametrize("first_us", [-1_000, 1_700_000_000_000_000_000, -(10**17)])
@pytest.mark.parametrize("partition", ["day", "hour"])
def test_timestamps_that_no_calendar_has_are_kept(
    catalog: OpenCatalog, first_us: int, partition: str
) -> None:
    table = clicks(catalog, partition)
    rows = raw_rows(0, range(3), first_us=first_us, step_us=1)
    table.advance(Advance(base={}, ends={0: 3}, files=written(table, rows)))
    assert table.reload().iceberg.scan().to_arrow().column("timestamp").cast(
        "int64"
    ).to_pylist() == [
        first_us,
        first_us + 1,
        first_us + 2,
    ]


def test_a_scan_of_an_hour_or_a_shard_takes_only_its_files(catalog: OpenCatalog) -> None:
    table = clicks(catalog)
    for shard in (0, 1):
        rows = raw_rows(shard, range(240), first_us=NOON_US, step_us=60_000_000)
        table.advance(Advance(base={}, ends={shard: 240}, files=written(table, rows)))
    hour = "timestamp >= '2026-01-01T13:00:00+00:00' and timestamp < '2026-01-01T14:00:00+00:00'"
    assert len(list(table.iceberg.scan().plan_files())) == 8
    assert len(list(table.iceberg.scan(row_filter=hour).plan_files())) == 2
    assert len(list(table.iceberg.scan(row_filter="shard = 1").plan_files())) == 4
    assert len(list(table.iceberg.scan(row_filter="offset < 10").plan_files())) == 2


def test_other_catalogs_are_refused_by_name(tmp_path: Path) -> None:
    place = TablePlace(catalog="mysql://x", warehouse=f"file://{tmp_path}", name="topics.x")
    with pytest.raises(InvalidArgument, match="sqlite"):
        OpenCatalog(place, {})


def clicks_plan(catalog: OpenCatalog) -> Plan:
    """Of ten records, all of which the table has."""
    return Plan(
        cluster="c1",
        topic="clicks",
        topic_id="a1",
        made_ms=0,
        options={},
        table=catalog.place,
        shards=(ShardPlan(shard=0, start_offset=0, end_offset=10),),
    )


def test_records_of_a_time_before_all_clocks_are_found_by_it(
    catalog: OpenCatalog, tmp_path: Path
) -> None:
    table = clicks(catalog)
    first_ms = -50_000_000_000_000  # The year 385.
    files = written(table, raw_rows(0, range(10), first_us=first_ms * 1000))
    table.advance(Advance(base={}, ends={0: 10}, files=files))
    wanted = Wanted(min_timestamp_ms=first_ms - 1)
    splits = plan_history(clicks_plan(catalog), wanted, {}, 2**30).splits
    found = [batch for split in splits for batch in read_history(split, wanted, ["offset"], {})]
    assert sum(batch.num_rows for batch in found) == 10


def test_rows_that_another_engine_deleted_are_not_read(
    catalog: OpenCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a part of the file's row groups is read, and positions count from its start."""
    monkeypatch.setattr("firnmq.lake.tables.files.parquet.ROW_GROUP_ROWS_MAX", 4)
    table = clicks(catalog)
    files = written(table, raw_rows(0, range(10)))
    table.advance(Advance(base={}, ends={0: 10}, files=files))
    (path,) = (task.file.file_path for task in table.iceberg.scan().plan_files())
    notes = tmp_path / "deletes.parquet"
    pq.write_table(pa.table({"file_path": [path] * 3, "pos": [1, 5, 9]}), notes)
    noted = IcebergFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{notes}",
        file_format=FileFormat.PARQUET,
    )
    plan_files = DataScan.plan_files

    def with_deletes(scan: DataScan) -> list[FileScanTask]:
        tasks = list(plan_files(scan))
        for task in tasks:
            task.delete_files.add(noted)
        return tasks

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    plan = clicks_plan(catalog)

    def offsets(wanted: Wanted) -> list[int]:
        splits = plan_history(plan, wanted, {}, 2**30).splits
        read = [batch for split in splits for batch in read_history(split, wanted, ["offset"], {})]
        return [each for batch in read for each in batch.column("offset").to_pylist()]

    assert offsets(Wanted()) == [0, 2, 3, 4, 6, 7, 8]
    assert offsets(Wanted(start_offsets={0: 5})) == [6, 7, 8]
