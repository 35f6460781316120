"""Tables in a REST catalog: Iceberg's own server, and what goes wrong between it and us.

Needs Maven and what it can fetch: `pytest -m iceberg tests/integration/lake`.
"""

from __future__ import annotations

import json
import logging
import shutil
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier, Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs

import pytest
from click.testing import CliRunner, Result

from firnmq.cli import main
from firnmq.errors import InvalidArgument
from firnmq.lake.jobs.status import table_status
from firnmq.lake.jobs.sync import TopicSync
from firnmq.lake.plans.places import make_plan
from firnmq.lake.tables.catalogs.catalog import CatalogFailed
from firnmq.lake.tables.maintain import expire
from firnmq.lake.tables.table import COMMIT, CommitGivenUp, NoTable
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake.lab import (
    InlineRunner,
    Sent,
    new_topic,
    numbered,
    open_table,
    produce,
    rows_of,
    sync_here,
)
from tests.integration.lake.rest_catalog import Answer, Gate, Request, RestCatalogProcess
from tests.integration.security.conftest import Authority

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.iceberg,
    pytest.mark.skipif(shutil.which("mvn") is None, reason="needs Maven"),
]

SECRET = "s3cr3t-4711"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogProcess]:
    server = RestCatalogProcess(tmp_path_factory.mktemp("rest"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def gate(server: RestCatalogProcess) -> Iterator[Gate]:
    gate = Gate(server.port)
    yield gate
    gate.close()


@pytest.fixture
def options(node: NodeProcess, gate: Gate) -> dict[str, str]:
    """Of a topic of two shards without records. The warehouse is the catalog's."""
    return {"bootstrap": node.address, "topic": new_topic(node, "rest"), "catalog": gate.url}


def _rows(sent: list[Sent]) -> list[tuple[Any, ...]]:
    return sorted(each.row for each in sent)


def _tokens(options: dict[str, str]) -> list[str]:
    """Which attempts made the table's snapshots."""
    catalog, table = open_table(options)
    with catalog:
        return [
            snapshot.summary.get(COMMIT) or ""
            for snapshot in table.iceberg.metadata.snapshots
            if snapshot.summary is not None
        ]


# What commands do ---------------------------------------------------------------------------------


@pytest.fixture
def firn(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a command in this process, which has a Spark already, and reads its JSON."""

    @contextmanager
    def session(*_: object) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("firnmq.cli.commands.lake.session", session)
    monkeypatch.setattr("firnmq.cli.lake.sql.session", session)

    def run(*args: str, fails: bool = False) -> Any:
        result: Result = CliRunner().invoke(main, ["lake", *args, "--json"])
        assert result.exit_code == int(fails), (result.output, result.exception)
        if fails:
            return result.stderr.splitlines()
        return [json.loads(line) for line in result.stdout.splitlines()]

    return run


def test_from_nothing_to_tidy(
    firn: Callable[..., Any], node: NodeProcess, options: dict[str, str], spark: SparkSession
) -> None:
    """1. Two syncs. 2. Queries see table and log, once each. 3. Compaction, expiry. 4. The rows are
    what they were."""
    topic = options["topic"]
    where = ("--server", node.address, "--catalog", options["catalog"])
    sent = produce(node, topic, numbered(60, step_ms=1_000))
    assert firn("sync", topic, *where)[0]["row_count"] == 60
    sent += produce(node, topic, numbered(40, start=60, step_ms=1_000))
    assert firn("sync", topic, *where)[0]["ends"] == {"0": 50, "1": 50}
    sent += produce(node, topic, numbered(10, start=100, step_ms=1_000))
    [before] = firn("status", topic, *where)
    assert (before["rows"], before["lag"], before["snapshots"]) == (100, 10, 2)
    query = f"SELECT count(*) AS n, count(DISTINCT shard, offset) AS d FROM `{topic}`"
    assert firn("sql", *where, query) == [{"n": 110, "d": 110}]
    [tidy] = firn("compact", topic, *where)
    assert (tidy["files_before"], tidy["files_after"], tidy["rows"]) == (4, 2, 100)
    [gone] = firn("expire", topic, *where, "--older-than", "0", "--grace", "0")
    assert (gone["snapshots_left"], gone["files"] >= 4) == (1, True)
    assert firn("sync", topic, *where)[0]["row_count"] == 10
    assert rows_of(options) == _rows(sent)
    from firnmq.lake.spark import register

    register(spark)
    found = spark.read.format("firn").options(**options).load()
    keys = sorted((row.shard, row.offset, bytes(row.key)) for row in found.collect())
    assert keys == sorted((each.shard, each.offset, each.key) for each in sent)


def test_two_syncs_at_once(node: NodeProcess, options: dict[str, str]) -> None:
    """Each offset is in the table once, whichever sync was faster."""
    sent = produce(node, options["topic"], numbered(400))
    failures: list[BaseException] = []
    barrier = Barrier(3)

    def work() -> None:
        try:
            barrier.wait(60)
            for _ in range(3):
                sync_here(options, commit_bytes=4_000, split_bytes=2_000)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert rows_of(options) == _rows(sent)


# Commits ------------------------------------------------------------------------------------------


def test_a_commit_that_somebody_else_was_quicker_with(
    node: NodeProcess, options: dict[str, str], gate: Gate, server: RestCatalogProcess
) -> None:
    """1. While a commit is on its way, another sync commits the same. 2. The catalog refuses the
    first, which finds out that there is nothing left to do."""
    sent = produce(node, options["topic"], numbered(100))
    answers: list[int] = []

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer:
        if request.is_commit and not answers:
            answers.append(0)
            sync_here({**options, "catalog": server.url})
        answer = passed_on()
        if request.is_commit:
            answers.append(answer.status)
        return answer

    gate.rule = rule
    assert sync_here(options).row_count == 0
    assert answers == [0, 409]
    assert rows_of(options) == _rows(sent)


@pytest.mark.parametrize("fault", ["cut", "failed", "gateway"])
def test_a_commit_whose_answer_is_lost_counts_once(
    node: NodeProcess, options: dict[str, str], gate: Gate, fault: str
) -> None:
    """1. The catalog takes a commit, and its answer does not arrive. 2. The sync finds its own
    token and goes on. 3. Nothing is there twice, and the next sync has nothing to do."""
    sent = produce(node, options["topic"], numbered(100))
    lost: list[int] = []

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer | None:
        answer = passed_on()
        if not request.is_commit or lost:
            return answer
        lost.append(answer.status)
        return {"cut": None, "failed": Answer(500, b"{}"), "gateway": Answer(504, b"")}[fault]

    gate.rule = rule
    done = sync_here(options)
    assert (done.row_count, done.rounds) == (100, 1)
    assert lost == [200]
    assert len(gate.commits()) == 1
    assert len(set(_tokens(options))) == 1
    assert sync_here(options).row_count == 0
    assert rows_of(options) == _rows(sent)


@pytest.mark.parametrize("status", [500, 502, 503, 504, None])
def test_a_commit_that_did_not_arrive_is_repeated(
    node: NodeProcess, options: dict[str, str], gate: Gate, status: int | None
) -> None:
    sent = produce(node, options["topic"], numbered(20))
    refused: list[Request] = []

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer | None:
        if request.is_commit and len(refused) < 2:
            refused.append(request)
            return None if status is None else Answer(status, b"")
        return passed_on()

    gate.rule = rule
    assert sync_here(options).row_count == 20
    assert len(gate.commits()) == 3
    assert rows_of(options) == _rows(sent)


def test_a_request_that_arrives_twice(
    node: NodeProcess, options: dict[str, str], gate: Gate
) -> None:
    """1. A proxy repeats a commit, and passes on the second answer: refused. 2. What
    the first one put into the table is not thrown away."""
    sent = produce(node, options["topic"], numbered(50))
    answers: list[tuple[int, int]] = []

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer:
        first = passed_on()
        if not request.is_commit or answers:
            return first
        second = passed_on()
        answers.append((first.status, second.status))
        return second

    gate.rule = rule
    assert sync_here(options).row_count == 50
    assert answers == [(200, 409)]
    assert rows_of(options) == _rows(sent)


def test_a_catalog_that_dies_with_a_commit(
    node: NodeProcess, tmp_path: Path, options: dict[str, str]
) -> None:
    """1. The catalog is killed as soon as it has taken a commit. 2. It comes back, with what it
    had. 3. The commit is found."""
    own = RestCatalogProcess(tmp_path / "rest")
    own.start()
    gate = Gate(own.port)
    sent = produce(node, options["topic"], numbered(100))
    killed: list[int] = []

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer | None:
        if request.is_commit and not killed:
            killed.append(passed_on().status)
            own.kill()
            own.start()
            return None
        return passed_on()

    gate.rule = rule
    mine = {**options, "catalog": gate.url}
    try:
        assert sync_here(mine).row_count == 100
        assert killed == [200]
        assert rows_of(mine) == _rows(sent)
        assert len(set(_tokens(mine))) == 1
    finally:
        gate.close()
        own.kill()


def test_typed_rows_and_dead_letters_through_lost_answers(
    node: NodeProcess, options: dict[str, str], gate: Gate
) -> None:
    """Every second commit loses its answer: each record is in one of the two tables, once."""
    records = [
        {"partition": n % 2, "value": b'{"n": %d}' % n if n % 5 else b"?"} for n in range(50)
    ]
    produce(node, options["topic"], records)
    count = 0

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer | None:
        nonlocal count
        answer = passed_on()
        count += request.is_commit
        return None if request.is_commit and count % 2 else answer

    gate.rule = rule
    schema = '{"type": "object", "properties": {"n": {"type": "integer"}}}'
    done = sync_here(options, schema_document=schema, commit_bytes=500, split_bytes=250)
    assert (done.row_count, done.dead_letter_count) == (40, 10)
    gate.rule = lambda _, passed_on: passed_on()
    catalog, table = open_table(options)
    with catalog:
        found = table.iceberg.scan().to_arrow()["n"].to_pylist()
    assert sorted(found) == [n for n in range(50) if n % 5]


def test_a_newer_schema_adds_columns(
    node: NodeProcess, options: dict[str, str], gate: Gate
) -> None:
    """Also where the answer to that commit is lost."""

    def schema(*names: str) -> str:
        fields = {name: {"type": "integer"} for name in names}
        return json.dumps({"type": "object", "properties": fields})

    produce(node, options["topic"], [{"partition": 0, "value": b'{"a": 1}'}])
    sync_here(options, schema_document=schema("a"))
    produce(node, options["topic"], [{"partition": 0, "value": b'{"a": 2, "b": 3}'}])
    lost: list[Request] = []

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer | None:
        answer = passed_on()
        if request.is_commit and not lost:
            lost.append(request)
            return None
        return answer

    gate.rule = rule
    assert sync_here(options, schema_document=schema("a", "b")).row_count == 1
    assert b"add-schema" in lost[0].body
    catalog, table = open_table(options)
    with catalog:
        rows = table.iceberg.scan().to_arrow().select(["a", "b"]).to_pylist()
    assert sorted(rows, key=lambda row: row["a"]) == [{"a": 1, "b": None}, {"a": 2, "b": 3}]


# Tables -------------------------------------------------------------------------------------------


def test_a_renamed_table_keeps_its_files(node: NodeProcess, options: dict[str, str]) -> None:
    """1. A topic is deleted and recreated; its table is renamed. 2. The new one gets a table too.
    3. Its expiry leaves the files of the old one alone."""
    from confluent_kafka.admin import AdminClient, NewTopic

    topic = options["topic"]
    sent = produce(node, topic, numbered(30))
    sync_here(options)
    catalog, table = open_table(options)
    with catalog:
        old = (*table.iceberg.name()[:-1], f"{table.iceberg.name()[-1]}_old")
        catalog.iceberg.rename_table(table.iceberg.name(), old)
        with pytest.raises(NoTable):
            table.reload()
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.delete_topics([topic])[topic].result(60)
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(60)
    new = produce(node, topic, numbered(10))
    sync_here(options)
    catalog, table = open_table(options)
    with catalog:
        expire(table, older_than_ms=0, grace_ms=0)
        assert catalog.iceberg.load_table(old).scan().to_arrow().num_rows == len(sent)
    assert rows_of(options) == _rows(new)


# Who asks, and who does not answer ----------------------------------------------------------------


def _guard(gate: Gate, allowed: str) -> None:
    """Lets only this one pass, and who asks for a token and knows the secret."""

    def rule(request: Request, passed_on: Callable[[], Answer]) -> Answer:
        if "oauth" in request.path:
            is_known = parse_qs(request.body.decode()).get("client_secret") == [SECRET]
            return passed_on() if is_known else Answer(401, b'{"error": "invalid_client"}')
        if request.headers.get("Authorization") == allowed:
            return passed_on()
        error = {"message": "who are you", "type": "NotAuthorizedException", "code": 401}
        return Answer(401, json.dumps({"error": error}).encode())

    gate.rule = rule


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"catalog.token": SECRET}, f"Bearer {SECRET}"),
        (
            {"catalog.credential": f"me:{SECRET}", "catalog.scope": "catalog"},
            "Bearer client-credentials-token:sub=me",
        ),
        (
            {
                "catalog.auth.type": "basic",
                "catalog.auth.basic.username": "me",
                "catalog.auth.basic.password": SECRET,
            },
            "Basic bWU6czNjcjN0LTQ3MTE=",
        ),
    ],
)
def test_who_asks_is_told_and_secrets_are_not_shown(
    node: NodeProcess,
    options: dict[str, str],
    gate: Gate,
    spark: SparkSession,
    given: dict[str, str],
    allowed: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """1. With the options there is a table, and reads of it. 2. Nothing that is shown has the
    secret: neither status, nor logs, nor Spark's plan. 3. Without the options, or with wrong ones,
    one clear line."""
    from firnmq.lake.spark import register

    for logger in ("firnmq", "pyiceberg", "urllib3", "requests"):  # Py4J would log all it sends.
        caplog.set_level(logging.DEBUG, logger=logger)
    _guard(gate, allowed)
    sent = produce(node, options["topic"], numbered(20))
    known = {**options, **given}
    assert sync_here(known).row_count == 20
    register(spark)
    found = spark.read.format("firn").options(**known).load()
    assert found.count() == len(sent)
    found.explain(extended=True)
    shown = [str(table_status(make_plan(known), known))]
    for wrong in ({}, {name: f"{value}x" for name, value in given.items() if SECRET in value}):
        with pytest.raises(CatalogFailed, match="refuses") as caught:
            sync_here({**options, **wrong, **({} if not wrong else _type(given))})
        assert not caught.value.is_passing
        assert "\n" not in str(caught.value)
        shown.append(str(caught.value))
    shown += [caplog.text, *capfd.readouterr()]
    assert not [text for text in shown if SECRET in text]


def _type(given: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in given.items() if SECRET not in value}


def test_commands_say_who_refuses(
    firn: Callable[..., Any], node: NodeProcess, options: dict[str, str], gate: Gate
) -> None:
    """Every command in one line, without the wrong secret."""
    topic = options["topic"]
    produce(node, topic, numbered(5))
    _guard(gate, "Bearer another")
    where = ("--server", node.address, "--catalog", options["catalog"])
    where = (*where, "-o", f"catalog.token={SECRET}")
    for command in ("sync", "compact", "expire", "status"):
        [line] = firn(command, topic, *where, fails=True)
        assert line.startswith(f"error: catalog {options['catalog']}: refuses access: ")
        assert SECRET not in line
    shown = firn("sql", *where, f"SELECT count(*) FROM `{topic}`", fails=True)
    assert len(shown) == 1
    assert "refuses access" in shown[0]
    assert SECRET not in shown[0]


def test_a_token_from_the_environment(
    node: NodeProcess, options: dict[str, str], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    _guard(gate, f"Bearer {SECRET}")
    monkeypatch.setenv("PYICEBERG_CATALOG__FIRN__TOKEN", SECRET)
    produce(node, options["topic"], numbered(5))
    assert sync_here(options).row_count == 5


def test_a_catalog_with_certificates(
    node: NodeProcess, server: RestCatalogProcess, options: dict[str, str], tmp_path: Path
) -> None:
    """1. Whom we do not trust we do not ask. 2. Whom the catalog does not know it does not answer.
    3. With both there is a table."""
    authority = Authority(tmp_path, "lake")
    theirs, ours = authority.issue("catalog"), authority.issue("sync")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(theirs.certificate, theirs.key)
    context.load_verify_locations(authority.certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    gate = Gate(server.port, context)
    known = {**options, "catalog": gate.url}
    trusting = {**known, "catalog.ssl.cabundle": str(authority.certificate)}
    asking = {
        **trusting,
        "catalog.ssl.client.cert": str(ours.certificate),
        "catalog.ssl.client.key": str(ours.key),
    }
    try:
        produce(node, options["topic"], numbered(5))
        with pytest.raises(CatalogFailed, match=r"catalog\.ssl\.cabundle") as caught:
            sync_here(known)
        assert not caught.value.is_passing
        with pytest.raises(CatalogFailed):
            sync_here(trusting)
        with pytest.raises(CatalogFailed, match="no-such-file"):
            sync_here({**known, "catalog.ssl.cabundle": "no-such-file.pem"})
        assert sync_here(asking).row_count == 5
    finally:
        gate.close()


def test_an_address_that_says_who_asks_is_refused(options: dict[str, str]) -> None:
    url = options["catalog"].replace("://", f"://me:{SECRET}@")
    with pytest.raises(InvalidArgument, match=r"catalog\.token") as caught:
        sync_here({**options, "catalog": url})
    assert SECRET not in str(caught.value)


def test_a_catalog_that_is_not_there(options: dict[str, str], gate: Gate) -> None:
    gate.close()
    try:
        result = CliRunner().invoke(
            main,
            [
                *("lake", "status", options["topic"], "--server", options["bootstrap"]),
                *("--catalog", options["catalog"]),
            ],
        )
    finally:
        gate.close = lambda: None  # type: ignore[method-assign]
    assert result.exit_code == 1
    [line] = result.stderr.splitlines()
    assert line == f"error: catalog {options['catalog']}: cannot be reached: Connection refused"


def test_a_catalog_that_never_answers(
    node: NodeProcess, options: dict[str, str], gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when it is opened, nor when it is to take a commit."""
    monkeypatch.setattr("firnmq.lake.tables.catalogs.rest.ANSWER_S", 0.3)
    monkeypatch.setattr("firnmq.lake.tables.table._COMMIT_S_MAX", 1.0)
    produce(node, options["topic"], numbered(5))

    is_all = False

    def wait(request: Request, passed_on: Callable[[], Answer]) -> Answer | None:
        if is_all or request.is_commit:
            gate.closing.wait(60)
            return None
        return passed_on()

    gate.rule = wait
    with pytest.raises(CommitGivenUp, match="does not answer"):
        sync_here(options)
    is_all = True
    with pytest.raises(CatalogFailed, match="does not answer"):
        sync_here(options)


@pytest.mark.parametrize("answer", [Answer(200, b"<html>"), Answer(404, b"<html>")])
def test_somebody_who_is_no_catalog(options: dict[str, str], gate: Gate, answer: Answer) -> None:
    gate.rule = lambda *_: answer
    with pytest.raises(CatalogFailed) as caught:
        sync_here(options)
    assert "\n" not in str(caught.value)


def test_following_ends_where_it_is_refused(
    node: NodeProcess, options: dict[str, str], gate: Gate
) -> None:
    """A request without an answer is retried; what is refused will be refused again."""
    from threading import Event

    from firnmq.lake.plans.source import OptionsSource

    produce(node, options["topic"], numbered(5))
    _guard(gate, "Bearer another")
    work = TopicSync(source=OptionsSource(options), runner=InlineRunner(), options=options)
    with pytest.raises(CatalogFailed, match="refuses access"):
        work.follow(Event())
    work.close()
