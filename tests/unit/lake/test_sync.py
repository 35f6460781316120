"""What a sync refuses to go on with, since a table would silently lack records."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.lake.plan import Plan, Wanted
from firnmq.lake.sync import LogBehindTable, TopicSync
from firnmq.lake.table import OtherTopicsTable
from tests.conformance.lab import Lab, numbered
from tests.unit.lake.lake_lab import LakeTopic
from tests.unit.lake.rows import content
from tests.unit.lake.sync_lab import HereRunner, LabSource


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
    """1. A sync that follows has ten records. 2. The topic is deleted and made anew, and has more.
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
