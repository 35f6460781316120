"""`firn lake` on a node and on a data directory, with the tests' own Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from pyspark.sql import Row
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from firnmq import NewRecord
from firnmq import open as open_store
from firnmq.cli import main
from firnmq.lake.jobs.results import no_such_topic, plain, spark_reason
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    NOON_MS,
    new_topic,
    numbered,
    options_of,
    produce,
    rows_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


TIMEOUT_S = 300


@pytest.fixture
def firn(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in this process, which has a Spark already."""

    @contextmanager
    def session(master: str, settings: tuple[str, ...]) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("firnmq.cli.commands.lake.session", session)

    def run(*args: str) -> Result:
        result = CliRunner().invoke(main, ["lake", *args])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


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


def test_what_firn_delete_deletes_goes_from_the_table(firn: Any, node: NodeProcess) -> None:
    """1. A key has records in both shards, and all is synced. 2. It is deleted on the running node,
    and a record by its offset. 3. The next sync takes them out, and the one after has no more."""
    topic = new_topic(node)
    shared = [{**each, "key": b"shared"} for each in numbered(2, start=60)]
    sent = produce(node, topic, [*numbered(60), *shared])
    where = ("--server", node.address, "--json")
    assert _json(firn("sync", topic, *where))["row_count"] == 62
    for way in (("--key", "shared"), ("--offset", "3", "--shard", "1")):
        args = ["--node", node.admin_url, "delete", topic, *way, "--yes"]
        assert CliRunner().invoke(main, args).exit_code == 0
    assert _json(firn("sync", topic, *where))["deleted_count"] == 3
    left = [each for each in sent if each.key != b"shared" and (each.shard, each.offset) != (1, 3)]
    assert rows_of(options_of(node, topic)) == sorted(each.row for each in left)
    assert _json(firn("sync", topic, *where))["deleted_count"] == 0


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


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("sync", "x", "--schema-kind", "avro"), "needs --schema FILE"),
        (("sync", "x", "--schema-writer", "1=a.avsc"), "needs --schema FILE"),
        (("sync", "x", "--schema", "a.avsc"), "--schema-kind avro or avro-confluent"),
        (("expire", "x", "--older-than", "soon"), "'--older-than': 'soon' is not like 7d"),
        (("expire", "x", "--grace", "-1d"), "'--grace': '-1d' is not like 7d"),
    ],
)
def test_wrong_usage_is_told_before_anything_is_asked(
    firn: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.avsc").write_text('{"type": "record", "name": "A", "fields": []}')
    result = firn(*given, "--server", "127.0.0.1:1")
    assert result.exit_code == 2
    assert said in result.stderr


def test_options_of_the_data_source_are_checked(firn: Any, node: NodeProcess) -> None:
    topic = new_topic(node)
    where = ("--server", node.address)
    misspelt = firn("status", topic, *where, "-o", "store.endpiont=http://x")
    assert misspelt.exit_code == 2
    assert "is store.endpoint meant?" in misspelt.stderr
    nowhere = firn("sync", topic, *where, "--warehouse", "tables")
    assert nowhere.exit_code == 2
    assert "file:///path" in nowhere.stderr


def test_what_to_do_is_said(firn: Any, node: NodeProcess) -> None:
    unreachable = firn("status", "clicks", "--server", "127.0.0.1:1")
    assert "--node, --data or --server" in unreachable.stderr
    unknown = firn("sync", "nobody", "--server", node.address)
    assert "no topic 'nobody'\nhint: firn topic list" in unknown.stderr
    through_its_node = firn("status", new_topic(node), "--data", str(node.data))
    assert through_its_node.exit_code == 0, through_its_node.output


@pytest.mark.parametrize("package", ["pyspark", "pyiceberg", "numpy"])
def test_a_package_that_is_missing(node: NodeProcess, package: str) -> None:
    """In a process of its own, since this one has the package."""
    script = (
        f"import sys; sys.modules[{package!r}] = None; from firnmq.cli import main; "
        f"main(['lake', 'sync', {new_topic(node)!r}, '--server', {node.address!r}])"
    )
    done = _run([sys.executable, "-c", script])
    assert done.returncode == 1
    problem, hint = done.stderr.splitlines()
    assert problem == f"error: the package {package} is not installed: pip install 'firnmq[lake]'"
    assert "make lake" in hint


def test_a_nodes_file_says_where_the_tables_are(firn: Any, tmp_path: Path) -> None:
    """With a directory or a bucket there is no node to say it."""
    catalog = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    config = tmp_path / "firn.toml"
    config.write_text(f'[lake]\ncatalog = "{catalog}"\nwarehouse = "{tmp_path.as_uri()}/tables"\n')
    data, store = tmp_path / "data", tmp_path / "bucket"
    store.mkdir()
    with open_store(data, tiering=store.as_uri()) as opened:
        topic = opened.create_topic("edge", options={"tiering": "on"})
        topic.append(["a", "b"])
        topic.roll()
        opened.upload()
    named = ("--config", str(config), "--json")
    for place in (("--data", str(data)), ("--store", store.as_uri())):
        found = _json(firn("status", "edge", *place, *named))
        assert (found["catalog"], found["lag"]) == (catalog, 2)
    assert _json(firn("sync", "edge", "--store", store.as_uri(), *named))["row_count"] == 2
    assert _json(firn("status", "edge", "--data", str(data), *named))["rows"] == 2


def test_spark_says_what_is_wrong_with_a_query_without_plans_and_stacks() -> None:
    unresolved = "[UNRESOLVED] no column `x`; line 1 pos 7;\n'Project ['x]\n+- View"
    assert spark_reason(unresolved) == "[UNRESOLVED] no column `x`; line 1 pos 7"
    parse = "[PARSE] near 'SELEC' (line 1, pos 0)\n\n== SQL ==\nSELEC 1\n^^^\n"
    assert spark_reason(parse) == parse.strip()
    stack = (
        "[DATA_SOURCE] Traceback (most recent call last):\n  File x\n"
        "firnmq.errors.TopicNotFound: no topic 'x'\n"
    )
    assert spark_reason(stack) == "no topic 'x'"


def test_a_query_about_no_topic() -> None:
    assert str(no_such_topic({"relationName": "`nobody`"})) == "no topic 'nobody'"
    assert "in backticks: `shop.clicks`" in str(no_such_topic({"relationName": "`shop`.`clicks`"}))


@pytest.mark.parametrize(
    "arguments, kind, part",
    [
        (["SELECT * FROM ordrs AS o"], "TopicNotFound", "no topic 'ordrs'"),
        (["SELECT 1", "--topic", "ordrs"], "TopicNotFound", "no topic 'ordrs'"),
        (["SELECT count(* FROM orders"], "InvalidArgument", "has a ( that is not closed"),
        (["SELECT 1", "--server", "127.0.0.1:1"], "NodeUnreachable", "cannot be reached"),
    ],
)
def test_a_wrong_query_is_told_before_spark_starts(
    arguments: list[str], kind: str, part: str, node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def session(*_: object) -> None:
        raise AssertionError("Spark was started")

    monkeypatch.setattr("firnmq.cli.lake.sql.session", session)
    command = ["lake", "sql", "--server", node.address, *arguments]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == (2 if kind == "InvalidArgument" else 1), done.output
    assert part in done.stderr
    assert "\nhint: " in done.stderr or kind == "InvalidArgument"
    as_json = CliRunner().invoke(main, [*command, "--json"])
    assert json.loads(as_json.stderr)["error"] == kind


def test_a_spark_that_does_not_start(node: NodeProcess) -> None:
    command = ("lake", "sync", new_topic(node), "--server", node.address, "--master", "local[x]")
    done = _run([sys.executable, "-m", "firnmq", *command])
    assert done.returncode == 1
    assert done.stderr.startswith("error: Spark does not start on local[x]: Could not parse")
    assert "Traceback" not in done.stderr


@pytest.mark.streaming
def test_a_spark_of_its_own_is_quiet(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with open_store(data) as store:
        store.create_topic("edge").append(["a", "b"])
    query = "SELECT count(*) AS n FROM edge"
    command = ("lake", "sql", query, "--data", str(data), "--json")
    done = _run([sys.executable, "-m", "firnmq", *command])
    assert (done.returncode, done.stdout, done.stderr) == (0, '{"n": 2}\n', "")


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def test_values_of_a_query_as_json_says_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment has a zone wherever it is in a value; a timestamp without a zone has none."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        moment = datetime.fromtimestamp(1_790_000_000)  # As Spark gives it: local, without a zone.
        assert plain(moment, TimestampType()) == "2026-09-21T14:13:20Z"
        assert plain(moment, TimestampNTZType()) == "2026-09-21T19:43:20"
        nested = StructType([StructField("at", ArrayType(TimestampType()))])
        assert plain(Row(at=[moment]), nested) == {"at": ["2026-09-21T14:13:20Z"]}
        pairs = MapType(StringType(), TimestampType())
        assert plain({"a": moment}, pairs) == {"a": "2026-09-21T14:13:20Z"}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert plain(b"\xff", BinaryType()) == "ff"


def test_options_by_file_are_checked_and_not_shown(tmp_path: Path, firn: Any) -> None:
    file = tmp_path / "options"
    file.write_text("store.endpoint = http://127.0.0.1:1\nno.such = hidden\n")
    refused = firn("status", "t", "--store", f"file://{tmp_path}/none", "--option-file", str(file))
    assert refused.exit_code != 0
    assert "no.such" in refused.stderr
    assert "hidden" not in refused.output
