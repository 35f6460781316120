"""A sync that is killed at each step, or runs twice at once: every offset is in the table once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from firnmq.lake.plans.places import make_plan
from firnmq.lake.tables.catalogs.catalog import OpenCatalog
from firnmq.lake.tables.maintain import expire
from firnmq.lake.tables.table import find_table
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    NOON_MS,
    new_topic,
    numbered,
    open_table,
    options_of,
    produce,
    rows_of,
    sync_here,
)
from tests.integration.lake.sync_run import STEPS
from tests.integration.lake.syncs import TIMEOUT_S, Syncs

RECORDS = 120
SMALL_COMMITS = {"commit_bytes": 2_500, "split_bytes": 2_500, "partition": "hour"}
"""Several rounds, each of several files."""

CRASHES = [
    *((step, 1) for step in STEPS if step != "pending finished"),
    *((step, 2) for step in ("files written", "all converted", "metadata written", "committed")),
    *(("not told", 2), ("catalog written, not committed", 4)),
]


def test_killed_anywhere_it_loses_and_repeats_nothing(
    node: NodeProcess, syncs: Syncs, tmp_path: Path
) -> None:
    """1. One process after the other is killed, each at another step, while records arrive between
    them. 2. One more runs to its end. 3. The table has what was acknowledged, once."""
    topic = new_topic(node, segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = []
    killed = 0
    for number, (step, count) in enumerate(CRASHES):
        sent += produce(node, topic, numbered(RECORDS, start=number * RECORDS))
        code = syncs.ended(syncs.start(options, SMALL_COMMITS, step, count))
        killed += code != 0
        if number > 1:
            # Whatever is in the table by now is a beginning of each shard, without a gap.
            rows = rows_of(options)
            assert rows == sorted(each.row for each in sent if each.row in set(rows))
            assert len({row[:2] for row in rows}) == len(rows)
    assert killed >= len(CRASHES) - 1, "steps that are never come by are not tested"
    sync_here(options, **SMALL_COMMITS)
    assert rows_of(options) == sorted(each.row for each in sent)

    # What the dead left behind goes, and nothing else.
    catalog, table = open_table(options)
    with catalog:
        done = expire(table, older_than_ms=0, grace_ms=0)
        assert done.files > 0
        folder = Path(table.location.removeprefix("file://"))
        files = {str(path) for path in (folder / "data").rglob("*.parquet")}
        used = {task.file.file_path for task in table.iceberg.scan().plan_files()}
        assert files == {each.removeprefix("file://") for each in used}
        assert not list((folder / ".partial").iterdir())
    assert rows_of(options) == sorted(each.row for each in sent)


def told(node: NodeProcess, topic: str) -> list[int]:
    """The ends that the node knows of the topic's table."""
    url = f"{node.admin_url}/v1/topics/{topic}/lake"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as answer:
        return list(json.load(answer)["ends"].values())


def test_progress_is_told_after_a_crash_before_it(
    node: NodeProcess, syncs: Syncs, tmp_path: Path
) -> None:
    topic = new_topic(node, shards=1)
    options = options_of(node, topic, tmp_path / "lake")
    produce(node, topic, numbered(10, shards=1))
    assert syncs.ended(syncs.start(options, {}, "committed")) == -signal.SIGKILL
    assert 10 not in told(node, topic)
    assert sync_here(options).rounds == 0
    assert 10 in told(node, topic)


def test_two_at_once_convert_every_offset_once(
    node: NodeProcess, syncs: Syncs, tmp_path: Path
) -> None:
    """1. Three syncs begin together on an empty catalog. 2. Records keep coming. 3. Once."""
    topic = new_topic(node, segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, numbered(400))
    several = [syncs.start(options, SMALL_COMMITS) for _ in range(3)]
    sent += produce(node, topic, numbered(200, start=400))
    assert [syncs.ended(number) for number in several] == [0, 0, 0]
    sync_here(options, **SMALL_COMMITS)
    assert rows_of(options) == sorted(each.row for each in sent)


def test_a_worker_that_dies_is_replaced(node: NodeProcess, tmp_path: Path) -> None:
    """1. A Python worker of Spark is killed when its files are written. 2. Spark tries its task
    again. 3. The table has everything once, and one file per name."""
    topic = new_topic(node, segment_bytes=4_096)
    options = options_of(node, topic, tmp_path / "lake")
    sent = produce(node, topic, numbered(200), **{"batch.num.messages": 10})
    marker = tmp_path / "died"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tests.integration.lake.dying"),
            *(json.dumps(options), str(marker)),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    assert done.returncode == 0, done.stderr
    assert marker.exists()
    assert json.loads(done.stdout) == {"rows": 200}
    assert rows_of(options) == [each.row for each in sent]


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "word": {"type": "string"}},
    "required": ["n"],
}
TYPED_STEPS = [
    *(("all converted", count) for count in (1, 2)),
    *(("committed", count) for count in (1, 2)),
    *(("metadata written", count) for count in (1, 2)),
    *(("not told", count) for count in (1, 2)),
]
"""A round commits twice: dead letters, then rows."""


def test_a_typed_topic_killed_between_its_two_commits(
    node: NodeProcess, syncs: Syncs, tmp_path: Path
) -> None:
    """1. Values fit a schema or do not, in turn. 2. Syncs are killed before, between and after the
    commits of rows and dead letters. 3. Every record is in one of the two tables, once."""
    topic = new_topic(node, shards=2)
    options = options_of(node, topic, tmp_path / "lake")
    settings = {"schema_document": json.dumps(SCHEMA), "partition": "hour"}
    good, bad = set(), set()
    killed = 0
    for number, (step, count) in enumerate(TYPED_STEPS):
        records = [
            {
                "partition": each % 2,
                "value": b'{"n": %d}' % each if each % 3 else b"no JSON %d" % each,
                "timestamp": NOON_MS + each,
            }
            for each in range(number * 30, number * 30 + 30)
        ]
        for each in produce(node, topic, records):
            assert each.value is not None
            (good if each.value.startswith(b"{") else bad).add((each.shard, each.offset))
        killed += syncs.ended(syncs.start(options, settings, step, count)) != 0
    assert killed == len(TYPED_STEPS)
    sync_here(options, **settings)
    found = [(row["shard"], row["offset"]) for row in _typed_rows(options, "topics")]
    dead = [(row["shard"], row["offset"]) for row in _typed_rows(options, "dead_letters")]
    assert sorted(found) == sorted(good)
    assert sorted(dead) == sorted(bad)


def _typed_rows(options: dict[str, str], namespace: str) -> list[dict[str, Any]]:
    plan = make_plan(options)
    assert plan.table is not None
    with OpenCatalog(plan.table, options) as catalog:
        table = find_table(catalog, plan.topic, plan.topic_id, namespace=namespace)
        assert table is not None
        rows: list[dict[str, Any]] = table.iceberg.scan().to_arrow().to_pylist()
        return rows
