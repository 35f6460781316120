"""Deleted on a real node, and gone from the table for every reader: whatever ends in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pytest

from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.plans.places import make_plan
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.tables.files.rows import read_history
from firnmq.lake.tables.history import plan_history
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    Sent,
    as_rows,
    files_of,
    new_topic,
    numbered,
    options_of,
    produce,
    rows_of,
    sync_here,
)
from tests.integration.lake.syncs import Syncs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT_S = 60
HOUR = {"partition": "hour"}
RECORDS = 200
GONE_OFFSETS = (3, 60, 150)
GONE_KEYS = (b"key-7", b"key-121")

CRASHES = [
    ("nothing taken out", 1),
    ("file without rows written", 2),
    ("deletions named", 1),
    ("manifest list written", 1),
    ("metadata written", 1),
    ("catalog written, not committed", 1),
    ("committed", 1),
    ("not told", 2),
]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path / "data", {"FIRN_HOUSEKEEPING_MS": "50"})
    node.start()
    yield node
    node.close()


def call(node: NodeProcess, method: str, path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        node.admin_url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def delete(node: NodeProcess, topic: str) -> None:
    """While the node serves the topic."""
    path = f"/v1/topics/{topic}/deletions"
    (done,) = call(node, "POST", path, {"offsets": GONE_OFFSETS})
    assert done["offsets"] == list(GONE_OFFSETS)
    for key in GONE_KEYS:
        assert call(node, "POST", path, {"key": key.decode()})[0]["deleted"]


def forget_by_retention(node: NodeProcess, topic: str) -> None:
    """Everything is too old at once, the entries of deletions too."""
    end = RECORDS + 1 + len(GONE_KEYS)
    path = f"/v1/topics/{topic}/config"
    call(node, "PATCH", path, {"options": {"retention.ms": 1}})
    deadline = time.monotonic() + TIMEOUT_S
    while start_of(node, topic) < end:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    call(node, "PATCH", path, {"options": {"retention.ms": None}})


def start_of(node: NodeProcess, topic: str) -> int:
    (shard,) = make_plan(options_of(node, topic)).shards
    return shard.start_offset


def history_of(options: Mapping[str, str]) -> list[int]:
    """The offsets that the data source reads of the table."""
    plan = make_plan(options)
    return sorted(
        offset
        for split in plan_history(plan, Wanted(), options, 2**30).splits
        for batch in read_history(split, Wanted(), ["offset"], options)
        for offset in batch.column("offset").to_pylist()
    )


def kept(node: NodeProcess, topic: str) -> int:
    found = call(node, "GET", f"/v1/topics/{topic}/lake")
    return sum(found.get("retired_counts", {}).values())


def is_left(record: Sent) -> bool:
    return record.offset not in GONE_OFFSETS and record.key not in GONE_KEYS


def check(options: Mapping[str, str], sent: list[Sent]) -> None:
    """For PyIceberg and for DuckDB, which know nothing of nodes."""
    expected = sorted(each.row for each in sent)
    assert rows_of(options) == expected
    files = files_of(options)
    found = duckdb.sql(f"FROM read_parquet({files!r})").to_arrow_table().to_pylist()
    assert as_rows(found) == expected


def test_a_deleted_record_is_gone_for_good(node: NodeProcess, syncs: Syncs) -> None:
    """1. A topic is synced, and records of it are deleted by offset and by key. 2. Retention drops
    the whole log, and the node is killed. 3. The data source shows none of them. 4. Syncs are
    killed at each step of taking them out. 5. One runs to its end: they are gone for all readers,
    nothing else is, and the node keeps nothing more."""
    topic = new_topic(node, shards=1, segment_bytes=4_096)
    options = options_of(node, topic)
    sent = produce(node, topic, numbered(RECORDS, shards=1))
    sync_here(options, **HOUR)
    delete(node, topic)
    options = options_of(node, topic)
    assert kept(node, topic) == 0
    check(options, sent)
    forget_by_retention(node, topic)
    left = [each for each in sent if is_left(each)]
    for _ in range(2):
        assert kept(node, topic) == len(GONE_OFFSETS) + len(GONE_KEYS)
        assert history_of(options) == [each.offset for each in left]
        node.kill()
        node.start()
    options = options_of(node, topic)
    killed = 0
    for step, count in CRASHES:
        code = syncs.ended(syncs.start(options, HOUR, step, count))
        killed += code == -signal.SIGKILL
        found = rows_of(options)
        assert found in ([each.row for each in sent], [each.row for each in left])
        assert history_of(options) == [each.offset for each in left]
    assert killed == len(CRASHES)
    left += produce(node, topic, numbered(20, start=RECORDS, shards=1))
    done = sync_here(options, **HOUR)
    assert (done.row_count, done.deleted_count) == (20, 0)
    check(options, left)
    assert kept(node, topic) == 0
    node.kill()
    node.start()
    options = options_of(node, topic)
    assert make_plan(options).shards[0].holes == ()
    assert history_of(options) == [each.offset for each in left]
    assert sync_here(options, **HOUR).rounds == 0
    node.terminate()
    verified = subprocess.run(
        [sys.executable, "-m", "firnmq", "verify", "--data", str(node.data)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout
    node.start()


def test_on_spark(node: NodeProcess, spark: SparkSession) -> None:
    topic = new_topic(node, shards=1, segment_bytes=4_096)
    sent = produce(node, topic, numbered(RECORDS, shards=1))
    sync_here(options_of(node, topic), SparkRunner(spark), **HOUR)
    delete(node, topic)
    options = options_of(node, topic)
    done = sync_here(options, SparkRunner(spark), **HOUR)
    assert done.deleted_count == len(GONE_OFFSETS) + len(GONE_KEYS)
    check(options, [each for each in sent if is_left(each)])
