"""`firn lake` on a node and on a data directory, with the tests' own Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from firnmq import NewRecord
from firnmq import open as open_store
from firnmq.cli import main
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import NOON_MS, new_topic, numbered, produce

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def firn(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in this process, which has a Spark already."""

    @contextmanager
    def session(master: str, settings: tuple[str, ...]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("firnmq.cli.lake.session", session)

    def run(*args: str) -> Result:
        result = CliRunner().invoke(main, ["lake", *args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data")
    node.start()
    yield node
    node.close()


def _json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_topic_of_a_node_from_nothing_to_tidy(firn: Any, node: NodeProcess) -> None:
    """1. Status before. 2. Two syncs. 3. Compaction. 4. Expiry. 5. Status after."""
    topic = new_topic(node)
    where = ("--server", node.address, "--json")
    produce(node, topic, numbered(60, step_ms=1_000))
    before = _json(firn("status", topic, *where))
    assert (before["exists"], before["lag"]) == (False, 60)
    assert _json(firn("sync", topic, *where))["row_count"] == 60
    produce(node, topic, numbered(40, start=60, step_ms=1_000))
    done = _json(firn("sync", topic, *where))
    assert (done["row_count"], done["ends"]) == (40, {"0": 50, "1": 50})
    found = _json(firn("compact", topic, *where, "--dry-run"))
    assert (found["files_before"], found["files_after"]) == (4, 0)
    tidy = _json(firn("compact", topic, *where))
    assert (tidy["files_before"], tidy["files_after"], tidy["rows"]) == (4, 2, 100)
    gone = _json(firn("expire", topic, *where, "--older-than", "0", "--grace", "0"))
    assert gone["snapshots_left"] == 1
    assert gone["files"] >= 4
    after = _json(firn("status", topic, *where))
    assert after["lag"] == 0
    assert (after["rows"], after["files"], after["snapshots"]) == (100, 2, 1)
    assert [shard["table_end"] for shard in after["shards"]] == [50, 50]


def test_it_says_so_in_words_too(firn: Any, node: NodeProcess) -> None:
    topic = new_topic(node)
    produce(node, topic, numbered(10))
    where = ("--server", node.address)
    assert "10 rows in" in firn("sync", topic, *where).stdout
    assert "nothing new" in firn("sync", topic, *where).stdout
    shown = firn("status", topic, *where).stdout
    assert "behind    0 offsets" in shown
    assert "raw, by day" in shown


def test_a_data_directory_without_a_node(firn: Any, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with open_store(data) as store:
        topic = store.create_topic("edge", shards=1)
        topic.append([NewRecord(value=b"%d" % n, timestamp_ms=NOON_MS + n) for n in range(30)])
    done = _json(firn("sync", "edge", "--data", str(data), "--partition", "hour", "--json"))
    assert done["row_count"] == 30
    found = _json(firn("status", "edge", "--data", str(data), "--json"))
    assert (found["rows"], found["lag"], found["partition"]) == (30, 0, "hour")


def test_what_cannot_be_is_said(firn: Any, node: NodeProcess, tmp_path: Path) -> None:
    topic = new_topic(node)
    none = firn("compact", topic, "--server", node.address)
    assert none.exit_code == 1
    assert "no table" in none.stderr
    missing = firn("status", "nobody", "--server", node.address)
    assert missing.exit_code == 1
    assert "nobody" in missing.stderr
    nowhere = firn("sync", topic, "--data", str(tmp_path / "nowhere"))
    assert nowhere.exit_code == 1
    assert "no data directory" in nowhere.stderr
