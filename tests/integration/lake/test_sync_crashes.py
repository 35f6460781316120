"""A sync that is killed at each step, or runs twice at once: every offset is in the table once."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firnmq.lake.maintain import expire
from firnmq.lake.places import make_plan
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    new_topic,
    numbered,
    open_table,
    options_of,
    produce,
    rows_of,
    sync_here,
)
from tests.integration.lake.sync_run import STEPS

RECORDS = 120
SMALL_COMMITS = {"commit_bytes": 2_500, "split_bytes": 2_500, "partition": "hour"}
"""Several rounds, each of several files."""

TIMEOUT_S = 180


class Syncs:
    """The process that forks syncs, each of which a test waits for by its number."""

    def __init__(self, errors: Path) -> None:
        self._errors = errors
        with errors.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.lake.sync_run"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )

    def start(
        self,
        options: dict[str, str],
        settings: dict[str, Any],
        step: str | None = None,
        count: int = 1,
    ) -> int:
        return self._ask({"options": options, "settings": settings, "step": step, "count": count})

    def ended(self, number: int) -> int:
        code = self._ask({"wait": number})
        assert code in (0, -signal.SIGKILL), self._errors.read_text()
        return code

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(TIMEOUT_S)

    def _ask(self, order: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            answer = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        assert answer, self._errors.read_text()
        return int(answer)


@pytest.fixture(scope="module")
def syncs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Syncs]:
    syncs = Syncs(tmp_path_factory.mktemp("syncs") / "errors.txt")
    yield syncs
    syncs.close()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    node.start()
    yield node
    node.close()


CRASHES = [
    *((step, 1) for step in STEPS if step != "pending finished"),
    *((step, 2) for step in ("file written", "all converted", "metadata written", "committed")),
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


def test_progress_is_told_after_a_crash_before_it(
    node: NodeProcess, syncs: Syncs, tmp_path: Path
) -> None:
    topic = new_topic(node, shards=1)
    options = options_of(node, topic, tmp_path / "lake")
    produce(node, topic, numbered(10, shards=1))
    assert syncs.ended(syncs.start(options, {}, "committed")) == -signal.SIGKILL
    assert sync_here(options).rounds == 0
    told = make_plan(options)
    assert told.shards[0].end_offset == 10


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
