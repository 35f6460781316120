"""What a sync refuses to go on with, since a table would silently lack records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq import NewRecord
from firnmq.lake.jobs.sync import LogBehindTable, TopicSync
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.reading.marks import LogReplaced
from firnmq.lake.tables.maintain import expire
from firnmq.lake.tables.table import OtherTopicsTable
from tests.conformance.lab import Lab, numbered
from tests.unit.lake.lake_lab import LakeTopic
from tests.unit.lake.rows import content
from tests.unit.lake.sync_lab import HereRunner, LabSource


def keyed(count: int, start: int = 0) -> list[NewRecord]:
    """Records that differ by their numbers."""
    return [
        NewRecord(key=b"key %d" % number, value=b"value %d" % number)
        for number in range(start, start + count)
    ]


@pytest.fixture
def source(lab: Lab, tmp_path: Path) -> LabSource:
    return LabSource(LakeTopic(lab), tmp_path)


@pytest.fixture
def sync(source: LabSource) -> Iterator[TopicSync]:
    made = TopicSync(source=source, runner=HereRunner(), options={})
    yield made
    made.close()


def test_a_topic_that_is_made_anew_meanwhile_is_refused(
    lab: Lab, source: LabSource, sync: TopicSync
) -> None:
    """1. A sync that follows has ten records. 2. The topic is deleted and recreated, and has more.
    3. Neither do its records get into the old table, nor is it told that they have."""
    source.topic.shard.append(*numbered(10))
    assert sync.run().ends == {0: 10}
    source.topic = LakeTopic(lab)
    source.topic.shard.append(*numbered(30))
    told = list(source.told)
    with pytest.raises(OtherTopicsTable):
        sync.run()
    assert source.told == told
    assert [row["offset"] for row in content(sync.table)] == list(range(10))


def test_a_log_that_ends_before_the_table_is_refused(
    lab: Lab, source: LabSource, sync: TopicSync
) -> None:
    """Its next records would get offsets that the table has."""
    source.topic.shard.append(*numbered(10))
    source.topic.shard.append(*numbered(10))
    sync.run()
    source.topic_id = source.topic.topic.topic_id
    source.topic.engine.truncate(source.topic.topic.shard_name(0), 10)
    with pytest.raises(LogBehindTable) as caught:
        sync.run()
    assert (caught.value.log_end, caught.value.table_end) == (10, 20)


def test_a_table_that_is_renamed_keeps_its_files(source: LabSource, sync: TopicSync) -> None:
    """1. A log has lost what its table has. 2. As the error advises, the table is renamed, and the
    sync makes another. 3. What expiry removes of that one is not the old one's."""
    shard, engine = source.topic.shard, source.topic.engine
    shard.append(*keyed(10))
    shard.append(*keyed(10, start=10))
    sync.run()
    engine.truncate(source.topic.topic.shard_name(0), 10)
    with pytest.raises(LogBehindTable, match="Rename the table and sync again"):
        sync.run()
    catalog = sync.table.catalog.iceberg
    old = ("topics", "any_old")
    catalog.rename_table(sync.table.iceberg.name(), old)
    again = TopicSync(source=source, runner=HereRunner(), options={})
    try:
        assert again.run().ends == {0: 10}
        expire(again.table, older_than_ms=0, grace_ms=0)
        assert [row["offset"] for row in content(again.table)] == list(range(10))
    finally:
        again.close()
    assert catalog.load_table(old).scan().to_arrow().num_rows == 20


def test_a_log_that_was_cut_and_has_grown_again_is_refused(
    source: LabSource, sync: TopicSync
) -> None:
    """1. The table has twenty records. 2. The log loses ten of them, and gets thirty others. 3. It
    is detected by the last that the table has, and nothing gets into the table."""
    shard, engine = source.topic.shard, source.topic.engine
    shard.append(*keyed(10))
    shard.append(*keyed(10, start=10))
    assert sync.run().ends == {0: 20}
    engine.truncate(source.topic.topic.shard_name(0), 10)
    for start in (100, 110, 120):
        shard.append(*keyed(10, start=start))
    with pytest.raises(LogReplaced, match="offset 19 ") as caught:
        sync.run()
    assert (caught.value.shard, caught.value.offset) == (0, 19)
    assert len(content(sync.table)) == 20


def test_a_log_that_got_the_same_again_is_taken_for_what_it_was(
    source: LabSource, sync: TopicSync
) -> None:
    """As from a copy of itself: nothing is lost if it goes on."""
    shard, engine = source.topic.shard, source.topic.engine
    shard.append(*keyed(10))
    shard.append(*keyed(10, start=10))
    sync.run()
    engine.truncate(source.topic.topic.shard_name(0), 10)
    shard.append(*keyed(10, start=10))
    shard.append(*keyed(10, start=20))
    assert sync.run().ends == {0: 30}
    assert [row["offset"] for row in content(sync.table)] == list(range(30))


@pytest.mark.parametrize("fate", ["deleted", "its key deleted", "dropped", "its segment dropped"])
def test_a_last_record_that_is_gone_stops_nothing(
    source: LabSource, sync: TopicSync, fate: str
) -> None:
    shard, engine = source.topic.shard, source.topic.engine
    name = source.topic.topic.shard_name(0)
    sent = keyed(10)
    shard.append(*sent)
    sync.run()
    match fate:
        case "deleted":
            engine.delete_by_offset(name, [9])
        case "its key deleted":
            assert sent[9].key is not None
            engine.delete_by_key(name, sent[9].key)
        case "dropped":
            engine.delete_records_before(name, 10)
        case "its segment dropped":
            engine.roll(name)
            engine.delete_records_before(name, 10)
            engine.housekeep()
    shard.append(*keyed(10, start=20))
    entry_count = 1 if "deleted" in fate else 0
    assert sync.run().ends == {0: 20 + entry_count}


def test_only_what_is_durable_is_asked_for(source: LabSource, sync: TopicSync) -> None:
    asked: list[Wanted] = []
    plan = source.plan

    def noted(wanted: Wanted) -> Plan:
        asked.append(wanted)
        return plan(wanted)

    source.plan = noted  # type: ignore[method-assign]
    source.topic.shard.append(*numbered(10))
    sync.run()
    assert all(wanted.is_durable for wanted in asked if wanted.shards is None)
