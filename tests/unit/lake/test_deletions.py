"""Deleted records leave the table: all of them, nothing else, and once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.table import DataScan, FileScanTask

from firnmq.lake.plans.plan import ShardPlan
from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.deletions import Applied, Deleter, _Columns, deletions_below
from firnmq.lake.tables.files.rewrite import Removal, Rewrite, Rewritten, rewrite
from firnmq.lake.tables.maintain import compact, expire
from firnmq.lake.tables.table import Advance, TopicTable, shard_deletions
from tests.unit.lake.rows import clicks, content, open_catalog, raw_rows, written

Offsets = set[tuple[int, int]]


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[OpenCatalog]:
    with open_catalog(tmp_path) as catalog:
        yield catalog


@pytest.fixture
def table(catalog: OpenCatalog) -> TopicTable:
    return clicks(catalog)


class Work:
    """Does rewrites here, and counts them."""

    def __init__(self, meanwhile: Callable[[], None] | None = None) -> None:
        self.done: list[Rewrite] = []
        self._meanwhile = meanwhile

    def __call__(self, work: Sequence[Rewrite]) -> list[Rewritten]:
        self.done += work
        made = [rewrite(each) for each in work]
        meanwhile, self._meanwhile = self._meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return made


def add(table: TopicTable, shard: int, start: int, end: int, **more: Any) -> None:
    files = written(table, raw_rows(shard, range(start, end), step_us=36_000_000))
    base = {shard: start} if start else {}
    assert table.advance(Advance(base=base, ends={shard: end}, files=files, **more)).shards


def deleted(shard: int, *holes: int, **keys: int) -> ShardPlan:
    """A plan; keys are written as k1=9 for `key-1` below 9."""
    dead = tuple((b"key-" + name[1:].encode(), below) for name, below in keys.items())
    return ShardPlan(shard=shard, start_offset=0, end_offset=10**6, holes=holes, dead_keys=dead)


def rows(table: TopicTable) -> Offsets:
    found = [(row["shard"], row["offset"]) for row in content(table)]
    assert len(set(found)) == len(found)
    return set(found)


def both(count: int, shards: Sequence[int] = (0, 1)) -> Offsets:
    return {(shard, offset) for shard in shards for offset in range(count)}


def used_files(table: TopicTable) -> set[str]:
    return {task.file.file_path for task in table.reload().iceberg.scan().plan_files()}


def snapshot(table: TopicTable) -> int:
    newest = table.reload().iceberg.current_snapshot()
    assert newest is not None
    return int(newest.snapshot_id)


def test_deleted_rows_go_and_no_others(table: TopicTable) -> None:
    for shard in (0, 1):
        for start in range(0, 100, 20):
            add(table, shard, start, start + 20)
    before = {(row["shard"], row["offset"]): row for row in content(table)}
    files, work = used_files(table), Work()
    plan = [deleted(0, 5, 47, 5000, k8=9, k50=50, k61=62), deleted(1, k8=1000)]
    done = Deleter(table, work).apply(plan)
    gone = {(0, 5), (0, 47), (0, 8), (0, 61), (1, 8)}
    after = {(row["shard"], row["offset"]): row for row in content(table)}
    assert after == {place: row for place, row in before.items() if place not in gone}
    assert done == Applied(row_count=5, files_before=4, files_after=4)
    assert len(files & used_files(table)) == len(files) - 4
    assert len(work.done) == 4, "bounds and filters leave the others out"
    assert table.ends() == {0: 100, 1: 100}
    add(table, 0, 100, 120)
    assert len(rows(table)) == 215


def test_what_is_applied_costs_nothing_again(table: TopicTable) -> None:
    add(table, 0, 0, 50)
    plan = [deleted(0, 3, k10=20)]
    assert Deleter(table, Work()).apply(plan).row_count == 2
    newest, work = snapshot(table), Work()
    again = Deleter(table, work)
    assert not again.has_outstanding(plan)
    assert again.apply(plan) == Applied()
    assert again.apply([deleted(0, 3)]) == Applied(), "what the node has forgotten is no news"
    assert (snapshot(table), work.done) == (newest, [])


def test_only_what_is_new_is_looked_for(table: TopicTable) -> None:
    """Also of a key that is deleted once more: the rows since the last time."""
    for start in range(0, 60, 20):
        add(table, 0, start, start + 20)
    work = Work()
    Deleter(table, work).apply([deleted(0, 3, k10=20)])
    work.done.clear()
    done = Deleter(table, work).apply([deleted(0, 3, 45, k10=50)])
    assert done.row_count == 1
    assert [each.removals for each in work.done] == [(Removal(shard=0, holes=(45,)),)]
    assert rows(table) == both(60, [0]) - {(0, 3), (0, 10), (0, 45)}


def test_without_the_document_all_is_looked_for_again(table: TopicTable) -> None:
    add(table, 0, 0, 20)
    Deleter(table, Work()).apply([deleted(0, 3)])
    folder = Path(table.location.removeprefix("file://")) / "deletions"
    (document,) = folder.iterdir()
    document.unlink()
    work = Work()
    assert Deleter(table, work).apply([deleted(0, 3, 4)]).row_count == 1
    assert [each.removals[0].holes for each in work.done] == [(3, 4)]
    assert not Deleter(table, work).has_outstanding([deleted(0, 3, 4)])


def test_a_file_without_rows_left_is_removed(table: TopicTable) -> None:
    add(table, 0, 0, 5)
    add(table, 0, 5, 10)
    done = Deleter(table, Work()).apply([deleted(0, *range(5))])
    assert done == Applied(row_count=5, files_before=1, files_after=0)
    assert len(used_files(table)) == 1
    assert Deleter(table, Work()).apply([deleted(0, *range(10))]).row_count == 5
    assert used_files(table) == set()
    assert table.ends() == {0: 10}
    add(table, 0, 10, 15)
    assert rows(table) == {(0, offset) for offset in range(10, 15)}


def test_what_is_beyond_the_table_is_applied_when_it_is_there(table: TopicTable) -> None:
    """A sync that began before the deletion may still bring the rows."""
    add(table, 0, 0, 20)
    plan = [deleted(0, 3, 25, k28=40)]
    deleter = Deleter(table, Work())
    deleter.apply(plan)
    assert deleter.is_applied(plan[0])
    add(table, 0, 20, 50)
    assert deleter.has_outstanding(plan)
    assert deleter.apply(plan).row_count == 2
    assert rows(table) == both(50, [0]) - {(0, 3), (0, 25), (0, 28)}


def test_a_commit_notes_what_its_files_lack(table: TopicTable) -> None:
    """The files of a round are made by the same plan, so no sync has to read them."""
    add(table, 0, 0, 20)
    work = Work()
    deleter, plan = Deleter(table, work), [deleted(0, 3, 25)]
    deleter.apply(plan)
    work.done.clear()
    noted = deleter.noted(plan, {0: 30})
    files = written(table, raw_rows(0, [each for each in range(20, 30) if each != 25]))
    table.advance(Advance(base={0: 20}, ends={0: 30}, files=files, applied=noted))
    assert not Deleter(table, work).has_outstanding(plan)
    assert Deleter(table, work).apply(plan) == Applied()
    assert work.done == []
    assert rows(table) == both(30, [0]) - {(0, 3), (0, 25)}


def test_a_commit_does_not_note_what_is_not_applied(table: TopicTable, tmp_path: Path) -> None:
    """1. A plan without deletions is being converted. 2. Another sync applies some. 3. Its commit
    leaves that note; and one of a plan whose deletions were not applied makes none."""
    add(table, 0, 0, 20)
    first = Deleter(table, Work())
    assert first.noted([deleted(0, 3)], {0: 30}) == {}
    noted = first.noted([deleted(0)], {0: 30})
    stale = {0: (None, "0" * 32)}
    with open_catalog(tmp_path) as other:
        Deleter(clicks(other), Work()).apply([deleted(0, 3)])
    note = shard_deletions(table.reload().properties, 0)
    assert note == deletions_below(deleted(0, 3), 20).digest
    add(table, 0, 20, 30, applied=noted)
    add(table, 0, 30, 40, applied=stale)
    assert shard_deletions(table.reload().properties, 0) == note


def test_a_compaction_in_between_is_looked_at_again(table: TopicTable, tmp_path: Path) -> None:
    for start in range(0, 50, 10):
        add(table, 0, start, start + 10)

    def compacted() -> None:
        with open_catalog(tmp_path) as other:
            assert compact(clicks(other), lambda work: [rewrite(each) for each in work]).groups == 1

    work = Work(compacted)
    done = Deleter(table, work).apply([deleted(0, 3, 44)])
    assert done.row_count == 2
    assert rows(table) == both(50, [0]) - {(0, 3), (0, 44)}
    assert not Deleter(table, work).has_outstanding([deleted(0, 3, 44)])


def test_a_compaction_that_began_before_brings_nothing_back(
    table: TopicTable, tmp_path: Path
) -> None:
    add(table, 0, 0, 10)
    add(table, 0, 10, 20)

    def beaten(work: Sequence[Rewrite]) -> list[Rewritten]:
        made = [rewrite(each) for each in work]
        with open_catalog(tmp_path) as other:
            Deleter(clicks(other), Work()).apply([deleted(0, 3)])
        return made

    assert compact(table, beaten).groups == 0
    assert rows(table) == both(20, [0]) - {(0, 3)}


def test_two_at_once(table: TopicTable, tmp_path: Path) -> None:
    """The second has a deletion more, and a sync commits as well."""
    add(table, 0, 0, 20)
    add(table, 1, 0, 20)

    def others() -> None:
        with open_catalog(tmp_path) as other:
            Deleter(clicks(other), Work()).apply([deleted(0, 3, 4), deleted(1, 7)])
            add(clicks(other), 0, 20, 30)

    Deleter(table, Work(others)).apply([deleted(0, 3), deleted(1, 7)])
    left = (both(20) | both(30, [0])) - {(0, 3), (0, 4), (1, 7)}
    assert rows(table) == left
    Deleter(table, Work()).apply([deleted(0, 3, 4), deleted(1, 7)])
    assert rows(table) == left


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["rewritten", "document", "staged", "committed"])
def test_a_crash_between_the_steps_repeats(
    table: TopicTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    add(table, 0, 0, 20)
    plan = [deleted(0, 3, k4=9)]

    def die(*_: object) -> None:
        raise Killed

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            real(*args, **kwargs)
            raise Killed

        return call

    work = Work(die) if step == "rewritten" else Work()
    with monkeypatch.context() as patch:
        if step == "document":
            patch.setattr(Deleter, "_keep", dying(Deleter._keep))
        elif step == "staged":
            patch.setattr("pyiceberg.table.Transaction.commit_transaction", die)
        elif step == "committed":
            patch.setattr(TopicTable, "commit", dying(TopicTable.commit))
        with pytest.raises(Killed):
            Deleter(table, work).apply(plan)
    is_done = step == "committed"
    assert rows(table) == both(20, [0]) - ({(0, 3), (0, 4)} if is_done else set())
    again = Deleter(table, Work()).apply(plan)
    assert again.row_count == (0 if is_done else 2)
    assert rows(table) == both(20, [0]) - {(0, 3), (0, 4)}


def test_what_others_deleted_does_not_come_back(
    table: TopicTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. Another engine notes the rows of offsets 1 and 8 as deleted, beside their file. 2. One
    more is deleted here, and while the file is rewritten, the other engine deletes another.
    3. All of them are gone from the new file."""
    add(table, 0, 0, 10)
    (path,) = used_files(table)
    folder, plan_files = Path(table.location.removeprefix("file://")), DataScan.plan_files
    noted: list[IcebergFile] = []

    def delete_there(*positions: int) -> None:
        name = folder / f"deletes-{len(noted)}.parquet"
        pq.write_table(pa.table({"file_path": [path] * len(positions), "pos": positions}), name)
        noted.append(
            IcebergFile.from_args(
                content=DataFileContent.POSITION_DELETES,
                file_path=f"file://{name}",
                file_format=FileFormat.PARQUET,
            )
        )

    def with_deletes(scan: DataScan) -> list[FileScanTask]:
        tasks = list(plan_files(scan))
        for task in tasks:
            if task.file.file_path == path:
                task.delete_files.update(noted)
        return tasks

    monkeypatch.setattr(DataScan, "plan_files", with_deletes)
    delete_there(1, 8)
    work = Work(lambda: delete_there(6))
    assert Deleter(table, work).apply([deleted(0, 3)]).row_count == 1
    assert [each.positions for each in work.done] == [(1, 8), (1, 6, 8)]
    assert rows(table) == both(10, [0]) - {(0, 1), (0, 3), (0, 6), (0, 8)}


def test_a_file_of_another_partitioning_waits(
    table: TopicTable, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    add(table, 0, 0, 10)
    add(table, 1, 0, 10)
    plan_files = DataScan.plan_files

    def changed(scan: DataScan) -> list[FileScanTask]:
        tasks = list(plan_files(scan))
        for task in tasks:
            if task.file.lower_bounds[1] == b"\0\0\0\0":
                task.file._spec_id = 7
        return tasks

    plan = [deleted(0, 3), deleted(1, 4)]
    deleter = Deleter(table, Work())
    with monkeypatch.context() as patch:
        patch.setattr(DataScan, "plan_files", changed)
        assert deleter.apply(plan).row_count == 1
    assert "deletions_wait" in caplog.text
    assert [deleter.is_applied(each) for each in plan] == [False, True]
    assert deleter.apply(plan).row_count == 1
    assert rows(table) == both(10) - {(0, 3), (1, 4)}


def test_expiry_takes_the_rows_and_leaves_the_note(table: TopicTable) -> None:
    add(table, 0, 0, 20)
    for holes in ((3,), (3, 4)):
        Deleter(table, Work()).apply([deleted(0, *holes)])
    folder = Path(table.location.removeprefix("file://"))
    assert len(list((folder / "deletions").iterdir())) == 2
    assert len(list((folder / "data").rglob("*.parquet"))) == 3
    assert expire(table, older_than_ms=0, grace_ms=0).files > 0
    assert len(list((folder / "data").rglob("*.parquet"))) == 1
    (document,) = (folder / "deletions").iterdir()
    assert document.name == f"00000-{shard_deletions(table.properties, 0)}"
    work = Work()
    assert Deleter(table, work).apply([deleted(0, 3, 4)]) == Applied()
    assert not work.done


def test_a_file_with_rows_of_several_shards(table: TopicTable) -> None:
    """Such as another engine makes when it puts small files together."""
    parts = [raw_rows(shard, range(10)) for shard in (0, 1, 2)]
    (file,) = written(table, pa.Table.from_batches(parts).combine_chunks().to_batches()[0])
    ends = {0: 10, 1: 10, 2: 10}
    files = [msgspec.structs.replace(file, shard=0)]
    assert table.advance(Advance(base={}, ends=ends, files=files)).shards
    plan = [deleted(0, 3), deleted(1, k4=8), deleted(2)]
    assert Deleter(table, Work()).apply(plan).row_count == 2
    assert rows(table) == both(10, [0, 1, 2]) - {(0, 3), (1, 4)}


def test_bounds_that_are_not_there_exclude_nothing() -> None:
    columns = _Columns(1, 2, 4)
    removal = Removal(shard=3, holes=(5, 9), keys=((b"k", 0, 10),))

    def file(**bounds: Any) -> IcebergFile:
        return IcebergFile.from_args(lower_bounds=None, upper_bounds=None, **bounds)

    def known(shard: int, first: int, last: int, low: bytes, high: bytes) -> IcebergFile:
        def packed(*values: Any) -> dict[int, bytes]:
            shard, offset, key = values
            return {1: shard.to_bytes(4, "little"), 2: offset.to_bytes(8, "little"), 4: key}

        return IcebergFile.from_args(
            lower_bounds=packed(shard, first, low), upper_bounds=packed(shard, last, high)
        )

    assert columns.parts(file(), [removal]) == [removal]
    assert columns.parts(known(3, 0, 9, b"a", b"z"), [removal]) == [removal]
    assert columns.parts(known(2, 0, 9, b"a", b"z"), [removal]) == []
    assert columns.parts(known(3, 10, 99, b"a", b"z"), [removal]) == []
    assert columns.parts(known(3, 6, 8, b"l", b"z"), [removal]) == []
    assert columns.parts(known(3, 6, 9, b"l", b"z"), [removal]) == [Removal(shard=3, holes=(9,))]
    (part,) = columns.parts(known(3, 6, 8, b"k", b"k"), [removal])
    assert part == Removal(shard=3, keys=((b"k", 0, 10),))
