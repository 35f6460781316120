"""From a deletion to a table without the record, whatever the log forgets in between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from firnmq.errors import Corruption
from firnmq.lake.jobs.convert import Conversion, Task
from firnmq.lake.jobs.status import table_status
from firnmq.lake.jobs.sync import SyncSettings, TopicSync
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten
from firnmq.record import NewRecord
from tests.conformance.lab import Lab
from tests.unit.lake.lake_lab import LakeTopic
from tests.unit.lake.rows import content
from tests.unit.lake.sync_lab import (
    HereRunner,
    LabSource,
    in_table,
    kept_count,
    offsets,
    seen,
    without,
    write,
)

SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})


@pytest.fixture
def source(lab: Lab, tmp_path: Path) -> LabSource:
    return LabSource(LakeTopic(lab, {"segment.bytes": 1024}), tmp_path)


@pytest.fixture
def sync(source: LabSource) -> Iterator[TopicSync]:
    made = TopicSync(source=source, runner=HereRunner(), options={})
    yield made
    made.close()


K1 = (1, 6, 11, 16, 21, 26)


def test_a_deleted_record_stays_deleted(source: LabSource, sync: TopicSync) -> None:
    """1. Records are in the table. 2. Some are deleted, and the log forgets. 3. The data source
    does not show them, then or after a crash of the node. 4. The next sync takes them out of the
    table, and the node need not know of them any more."""
    lab, shard = source.topic.lab, source.topic.shard
    write(source, 30)
    sync.run()
    shard.delete(3, 28)
    shard.delete_key(b"k1")
    assert in_table(sync) == without(30)
    shard.delete_before(31)
    assert seen(source) == without(30, 3, 28, *K1)
    lab.crash()
    write(source, 5)
    gone = (3, 28, 30, 31, *K1)  # The two entries are no records.
    assert seen(source) == without(37, *gone)
    assert kept_count(source) == 3
    done = sync.run()
    assert done.deleted_count == 8
    assert in_table(sync) == without(37, *gone)
    assert kept_count(source) == 0
    assert source.plan(Wanted()).shards[0].holes == ()
    assert seen(source) == without(37, *gone)
    lab.reopen()
    again = sync.run()
    assert (again.rounds, again.deleted_count) == (0, 0)
    assert seen(source) == without(37, *gone)


def test_unchanged_deletions_cost_nothing(source: LabSource, sync: TopicSync) -> None:
    write(source, 30)
    sync.run()
    source.topic.shard.delete(3, 12)
    source.topic.shard.delete_key(b"k1")
    sync.run()
    write(source, 10)

    class NoRewrites(HereRunner):
        def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]:
            raise AssertionError("nothing is new")

    next_sync = TopicSync(source=source, runner=NoRewrites(), options={})
    assert next_sync.run().row_count == 10
    source.topic.shard.delete_before(20)
    told = len(source.told)
    next_sync.run()
    assert len(source.told) == told + 1, "the node is told that it may forget"
    next_sync.run()
    assert len(source.told) == told + 1
    next_sync.close()
    assert kept_count(source) == 0


def test_what_is_deleted_meanwhile_is_not_forgotten(source: LabSource, sync: TopicSync) -> None:
    """1. A sync applies deletions. 2. Before it tells, another is made and the log moves past it.
    3. The node keeps that one until the next sync."""
    write(source, 30)
    sync.run()
    source.topic.shard.delete(3)
    source.topic.shard.delete_before(10)

    class Slow(HereRunner):
        def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]:
            source.topic.shard.delete(4, 15)
            source.topic.shard.delete_before(20)
            return super().rewrite(work)

    slow = TopicSync(source=source, runner=Slow(), options={})
    slow.run()
    slow.close()
    assert in_table(sync) == without(30, 3)
    assert kept_count(source) == 2
    assert seen(source) == without(30, 3, 4, 15)
    sync.run()
    assert in_table(sync) == without(30, 3, 4, 15)
    assert kept_count(source) == 0


def test_a_deletion_while_the_first_sync_converts(source: LabSource, sync: TopicSync) -> None:
    """Though the node has not been told of any progress, nor the table has the record yet."""
    write(source, 30)

    class Slow(HereRunner):
        def run(self, tasks: Sequence[Task]) -> list[Conversion]:
            made = super().run(tasks)
            source.topic.shard.delete(3)
            source.topic.shard.delete_before(20)
            return made

    slow = TopicSync(source=source, runner=Slow(), options={})
    slow.run()
    slow.close()
    assert seen(source) == without(30, 3)
    sync.run()
    assert in_table(sync) == seen(source) == without(30, 3)
    assert kept_count(source) == 0


def apply_only(source: LabSource) -> None:
    """What a sync does before it adds anything."""
    work = TopicSync(source=source, runner=HereRunner(), options={})
    plan = work._next_plan()
    for each in work._deleters:
        each.apply(plan.shards)
    work._report(plan, has_moved=False)
    work.close()


def test_a_sync_of_an_older_plan_brings_rows_that_the_next_takes_out(
    source: LabSource, sync: TopicSync
) -> None:
    """1. A sync has converted offsets 30 to 39. 2. Two of them are deleted, another sync applies
    that to the table, which has none of them, and the node is told. 3. The first one commits."""
    write(source, 30)
    sync.run()
    write(source, 10)

    class Slow(HereRunner):
        def run(self, tasks: Sequence[Task]) -> list[Conversion]:
            made = super().run(tasks)
            source.topic.shard.delete(3, 33)
            source.topic.shard.delete_key(b"k1")
            source.topic.shard.delete_before(40)
            apply_only(source)
            return made

    slow = TopicSync(source=source, runner=Slow(), options={})
    slow.run()
    slow.close()
    gone = (3, 33, *K1, 31, 36)
    assert 33 in in_table(sync)
    assert seen(source) == without(40, *gone)
    sync.run()
    assert in_table(sync) == seen(source) == without(40, *gone)
    assert kept_count(source) == 0


def test_new_records_do_not_wait_for_a_deletion_that_fails(
    source: LabSource, sync: TopicSync
) -> None:
    """1. The file with a deleted record is damaged. 2. A sync adds what is new, says what is wrong,
    and the node keeps the deletion. 3. The file is repaired, and the next sync applies it."""
    write(source, 30)
    sync.run()
    source.topic.shard.delete(3)
    source.topic.shard.delete_before(10)
    write(source, 10)
    (task,) = sync.table.iceberg.scan().plan_files()
    path = Path(task.file.file_path.removeprefix("file://"))
    intact = path.read_bytes()
    path.write_bytes(intact[:-4] + b"oops")
    with pytest.raises(Corruption):
        sync.run()
    assert sync.table.reload().ends() == {0: 41}
    assert kept_count(source) == 1
    path.write_bytes(intact)
    assert table_status(source.plan(Wanted()), {}).waiting_deletions == 1
    assert sync.run().deleted_count == 1
    assert table_status(source.plan(Wanted()), {}).waiting_deletions == 0
    assert in_table(sync) == without(41, 3, 30)
    assert kept_count(source) == 0


def test_both_tables_of_a_typed_topic(source: LabSource) -> None:
    settings = SyncSettings(schema_document=SCHEMA)
    sync = TopicSync(source=source, runner=HereRunner(), options={}, settings=settings)
    write(source, 30)
    sync.run()
    assert sync._dead is not None
    source.topic.shard.delete(3, 8)
    source.topic.shard.delete_key(b"k1")
    source.topic.shard.delete_before(31)
    write(source, 4)
    assert sync.run().deleted_count == 8
    gone = (3, 8, 30, 31, *K1)  # The two entries are no records.
    assert in_table(sync) == [each for each in without(36, *gone) if each % 2]
    assert offsets(content(sync._dead)) == [each for each in without(36, *gone) if not each % 2]
    assert kept_count(source) == 0
    assert sync.run().rounds == 0
    sync.close()


def test_following_applies_deletions_though_nothing_else_comes(source: LabSource) -> None:
    settings = SyncSettings(commit_interval_s=0.001, poll_s=0.001)
    sync = TopicSync(source=source, runner=HereRunner(), options={}, settings=settings)
    write(source, 30)
    stop = Event()

    def watch(done: Any) -> None:
        if done.row_count:
            source.topic.shard.delete(3)
        if done.deleted_count:
            stop.set()

    total = sync.follow(stop, watch)
    assert (total.row_count, total.deleted_count) == (30, 1)
    assert in_table(sync) == without(30, 3)
    sync.close()


def test_deletions_of_what_the_log_no_longer_has(source: LabSource, sync: TopicSync) -> None:
    write(source, 30)
    sync.run()
    source.topic.shard.append(NewRecord(key=b"other", value=b""))
    source.topic.shard.delete_before(30)
    source.topic.shard.delete(7)
    source.topic.shard.delete_key(b"k1")
    assert seen(source) == without(31, 7, *K1)
    sync.run()
    assert in_table(sync) == without(31, 7, *K1)
    assert kept_count(source) == 0
