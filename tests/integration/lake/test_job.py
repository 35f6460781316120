"""The conversion by `spark-submit`, PySpark's own: on this machine, and on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest

from firnmq.lake import job
from firnmq.lake.jobs.java import java_home
from scale.cluster import SETTINGS, StandaloneCluster
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import new_topic, numbered, open_table, produce, rows_of

TIMEOUT_S = 400
SCHEMA = '{"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}'
SMALL: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


def submit(
    *arguments: str, master: str = "local[2]", settings: Mapping[str, str] = SMALL
) -> subprocess.CompletedProcess[str]:
    """Executors start this environment's Python, which has FirnMQ. Spark prints what the driver
    says, errors too, to its standard output, and its own log to the other."""
    home = Path(pyspark.__file__).parent
    conf = {**settings, "spark.pyspark.python": sys.executable}
    return subprocess.run(
        [
            *(str(home / "bin" / "spark-submit"), "--master", master),
            *(part for name, value in conf.items() for part in ("--conf", f"{name}={value}")),
            *(job.__file__, *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, "JAVA_HOME": str(java_home()), "SPARK_HOME": str(home)},
    )


def typed_records(count: int) -> list[dict[str, object]]:
    """Every fifth does not fit."""
    return [
        {"partition": n % 2, "value": b'{"n": %d}' % n if n % 5 else b"?"} for n in range(count)
    ]


def numbers_of(options: Mapping[str, str]) -> list[int]:
    catalog, table = open_table(options)
    with catalog:
        return sorted(table.iceberg.scan().to_arrow()["n"].to_pylist())


@pytest.mark.slow
@pytest.mark.streaming
def test_it_is_submitted(node: NodeProcess, tmp_path: Path) -> None:
    """1. Two topics as they are. 2. The rest of one of them. 3. One with a schema. 4. One that is
    not there, for spark-submit's own exit code."""
    first, second, third = (new_topic(node, "job") for _ in range(3))
    sent = produce(node, first, numbered(200))
    other = produce(node, second, numbered(30))
    where = ("--option", f"bootstrap={node.address}")
    done = submit(*where, first, second)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{first}: 200 rows in" in done.stdout
    assert f"{second}: 30 rows in" in done.stdout
    schema = tmp_path / "numbers.schema.json"
    schema.write_text(SCHEMA)
    sent += produce(node, first, numbered(100, start=200))
    done = submit(*where, "--partition", "hour", "--commit-bytes", "2000", first)
    assert done.returncode == 0, done.stdout + done.stderr
    for topic, expected in ((first, sent), (second, other)):
        options = {"bootstrap": node.address, "topic": topic}
        assert rows_of(options) == sorted(each.row for each in expected)
    produce(node, third, typed_records(50))
    done = submit(*where, "--schema", str(schema), third)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{third}: 40 rows, 10 dead letters in" in done.stdout
    options = {"bootstrap": node.address, "topic": third}
    assert numbers_of(options) == [n for n in range(50) if n % 5]
    done = submit(*where, "nobody")
    assert (done.returncode, done.stdout) == (1, "error: no topic 'nobody'\n")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.cluster
def test_it_is_submitted_to_a_cluster(node: NodeProcess, tmp_path: Path) -> None:
    """A master and two workers, of which both have a part in it: raw, then with a schema."""
    raw, typed = new_topic(node, "job"), new_topic(node, "job")
    sent = produce(node, raw, numbered(400))
    produce(node, typed, typed_records(100))
    schema = tmp_path / "numbers.schema.json"
    schema.write_text(SCHEMA)
    settings = {**SMALL, **SETTINGS}
    where = ("--option", f"bootstrap={node.address}")
    with StandaloneCluster(tmp_path / "cluster") as cluster:
        done = submit(*where, raw, master=cluster.master, settings=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        arguments = ("--schema", str(schema), typed)
        done = submit(*where, *arguments, master=cluster.master, settings=settings)
        assert done.returncode == 0, done.stdout + done.stderr
        assert all(cluster.executors_of(f"worker-{number}") for number in range(2))
    options = {"bootstrap": node.address, "topic": raw}
    assert rows_of(options) == sorted(each.row for each in sent)
    assert numbers_of({**options, "topic": typed}) == [n for n in range(100) if n % 5]


# What is wrong is said before Spark starts --------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "arguments: the following arguments are required: TOPIC"),
        (("--commit-bytes", "many", "t"), "arguments: argument --commit-bytes: invalid int value"),
        (("--commit-bytes", "0", "t"), "commit_bytes: 0 is not more than 0"),
        (("--what", "t"), "arguments: unrecognized arguments: --what"),
        (("--option", "s3cr3t", "t"), "--option: wants NAME=VALUE"),
        (("--option", "=s3cr3t", "t"), "--option: wants NAME=VALUE"),
        (("--option", "boot=node:9092", "t"), "is bootstrap meant?"),
        (("t",), "options: name no source; give bootstrap, store or data"),
        (("--schema", "none.json", "t"), "none.json: cannot be read as a schema"),
        (("--schema", "s.avsc", "t"), "--schema-kind: is missing"),
        (("--schema-writer", "1=s.avsc", "t"), "cannot be read as a schema"),
        (("--schema", "s.json", "--schema-writer", "x", "t"), "'x' is not NUMBER=FILE"),
        (("--schema", "s.json", "--schema-writer", "x=f", "t"), "'x=f' is not NUMBER=FILE"),
        (("--schema", "s.json", "--schema-writer", "1=", "t"), "'1=' is not NUMBER=FILE"),
        (("--schema-kind", "avro", "t"), "--schema: is missing"),
        (("--schema-kind", "xml", "t"), "invalid choice: 'xml'"),
    ],
)
def test_what_cannot_be_meant(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert job.main(arguments) == 1
    _one_line(capsys, said)


def test_what_is_not_there(
    node: NodeProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(node, "job")
    where = ("--option", f"bootstrap={node.address}")
    assert job.main([*where, "nobody"]) == 1
    _one_line(capsys, "no topic 'nobody'")
    assert job.main(["--option", "bootstrap=127.0.0.1:1", topic]) == 1
    _one_line(capsys, "127.0.0.1:1")
    schema = tmp_path / "broken.json"
    schema.write_text('{"type": ')
    assert job.main([*where, "--schema", str(schema), topic]) == 1
    _one_line(capsys, "schema")
    schema.write_bytes(b"\xff\xfe")
    assert job.main([*where, "--schema", str(schema), topic]) == 1
    _one_line(capsys, "cannot be read as a schema")
    assert job.main(["--option", f"data={tmp_path}/none", topic]) == 1
    _one_line(capsys, "none")


def _one_line(capsys: pytest.CaptureFixture[str], said: str) -> None:
    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert "s3cr3t" not in line
