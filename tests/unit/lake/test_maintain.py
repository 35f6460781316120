"""Compaction and expiry: the same rows in fewer files, and no file gone that a reader uses."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyiceberg.table import DataScan, FileScanTask

from firnmq.errors import InvalidArgument
from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten, rewrite
from firnmq.lake.tables.maintain import age_ms, compact, expire
from firnmq.lake.tables.table import Advance, TopicTable
from tests.unit.lake.rows import clicks, content, open_catalog, raw_rows, written


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[OpenCatalog]:
    with open_catalog(tmp_path) as catalog:
        yield catalog


@pytest.fixture
def table(catalog: OpenCatalog) -> TopicTable:
    return clicks(catalog)


def add(table: TopicTable, shard: int, start: int, end: int) -> None:
    files = written(table, raw_rows(shard, range(start, end), step_us=36_000_000))
    base = {shard: start} if start else {}
    assert table.advance(Advance(base=base, ends={shard: end}, files=files)).shards


def run(work: Sequence[Rewrite]) -> list[Rewritten]:
    return [rewrite(each) for each in work]


def folder_of(table: TopicTable) -> Path:
    return Path(table.location.removeprefix("file://"))


def data_files(table: TopicTable) -> set[str]:
    return {f"file://{path}" for path in (folder_of(table) / "data").rglob("*.parquet")}


def used_files(table: TopicTable) -> set[str]:
    return {task.file.file_path for task in table.reload().iceberg.scan().plan_files()}


def test_small_files_become_one_per_shard_and_hour(table: TopicTable) -> None:
    for shard in (0, 1):
        for start in range(0, 250, 25):  # 250 × 36 s = 2.5 hours.
            add(table, shard, start, start + 25)
    before = content(table)
    assert len(used_files(table)) == 20
    found = compact(table, run, is_dry=True)
    done = compact(table, run)
    assert done.files_before == found.files_before == 20
    assert done.files_after == len(used_files(table)) == 6
    assert done.rows == 500
    assert content(table) == before
    assert table.ends() == {0: 250, 1: 250}
    assert compact(table, run).groups == 0
    add(table, 0, 250, 260)
    assert len(content(table)) == 510


def test_a_sync_may_commit_in_between(table: TopicTable, tmp_path: Path) -> None:
    """1. A compaction has rewritten its files. 2. A sync commits. 3. Both are in the table."""
    add(table, 0, 0, 10)
    add(table, 0, 10, 20)

    def slow(work: Sequence[Rewrite]) -> list[Rewritten]:
        with open_catalog(tmp_path) as other:
            add(clicks(other), 0, 20, 30)
        return run(work)

    assert compact(table, slow).files_after == 1
    assert [row["offset"] for row in content(table)] == list(range(30))


def test_of_two_compactions_one_replaces_the_files(table: TopicTable, tmp_path: Path) -> None:
    add(table, 0, 0, 10)
    add(table, 0, 10, 20)

    def beaten(work: Sequence[Rewrite]) -> list[Rewritten]:
        with open_catalog(tmp_path) as other:
            assert compact(clicks(other), run).groups == 1
        return run(work)

    assert compact(table, beaten).groups == 0
    assert [row["offset"] for row in content(table)] == list(range(20))


def test_rows_deleted_meanwhile_do_not_come_back(
    table: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine may put a file of deletions beside one that is being rewritten."""
    for start in range(0, 50, 10):
        add(table, 0, start, start + 10)
    before = used_files(table)
    plan_files = DataScan.plan_files

    def with_deletions(scan: DataScan) -> list[FileScanTask]:
        tasks = list(plan_files(scan))
        tasks[0].delete_files.add(tasks[0].file)
        return tasks

    def run_slowly(work: Sequence[Rewrite]) -> list[Rewritten]:
        monkeypatch.setattr(DataScan, "plan_files", with_deletions)
        return run(work)

    assert compact(table, run_slowly).groups == 0
    monkeypatch.undo()
    assert used_files(table) == before


def test_expiry_removes_what_nobody_has_and_nothing_else(table: TopicTable) -> None:
    for start in range(0, 50, 10):
        add(table, 0, start, start + 10)
    compact(table, run)
    late = written(table, raw_rows(0, range(50, 60)))  # May be about to be committed.
    lost = written(table, raw_rows(0, range(20, 40)))  # Of a sync that was outrun.
    before = content(table)
    young = expire(table, older_than_ms=0)
    assert young.files == 0
    assert young.young_files > 0
    found = expire(table, older_than_ms=0, grace_ms=0, is_dry=True)
    done = expire(table, older_than_ms=0, grace_ms=0)
    assert (done.files, done.file_bytes) == (found.files, found.file_bytes)
    assert done.files >= 6
    assert done.snapshots_left == 1
    paths = {f"{table.location}/{file.path}" for file in late}
    assert data_files(table) == used_files(table) | paths
    assert not any((folder_of(table) / file.path).exists() for file in lost)
    assert content(table) == before
    table.advance(Advance(base={0: 50}, ends={0: 60}, files=late))
    assert [row["offset"] for row in content(table)] == list(range(60))


def test_snapshots_that_are_kept_stay_readable(table: TopicTable) -> None:
    add(table, 0, 0, 10)
    first = table.iceberg.current_snapshot()
    assert first is not None
    add(table, 0, 10, 20)
    compact(table, run)
    expire(table, older_than_ms=age_ms("7d"), grace_ms=0)
    old = table.iceberg.scan(snapshot_id=first.snapshot_id).to_arrow()
    assert sorted(old.column("offset").to_pylist()) == list(range(10))
    done = expire(table, older_than_ms=0, keep_last=2, grace_ms=0)
    assert done.snapshots_left == 2


def test_what_a_crash_left_half_written_is_swept(table: TopicTable) -> None:
    add(table, 0, 0, 10)
    partial = folder_of(table) / ".partial" / "00002-x.metadata.json.abcd"
    partial.parent.mkdir(exist_ok=True)
    partial.write_bytes(b"{")
    os.utime(partial, (1, 1))
    expire(table)
    assert not partial.exists()


@pytest.mark.parametrize(("text", "ms"), [("7d", 604_800_000), ("90s", 90_000), ("0", 0)])
def test_ages(text: str, ms: int) -> None:
    assert age_ms(text) == ms


@pytest.mark.parametrize("text", ["", "d", "-1d", "1w", "1.5h"])
def test_bad_ages_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        age_ms(text)
