"""One rule says what a command works on: a node, or a directory through the node that serves it."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import firnmq
from firnmq.cli import main
from firnmq.nodefile import NAME, NodeAddress, node_serving
from tests.integration.admin.serving import TIMEOUT_S, Served, firn


@pytest.fixture
def node(data: Path) -> Iterator[Served]:
    served = Served(data)
    try:
        yield served
    finally:
        served.stop()


def test_commands_go_through_the_node_that_serves_the_directory(node: Served, data: Path) -> None:
    where = ("--data", str(data))
    for command in (
        ("topic", "create", "t", "-o", "index.key=true"),
        ("produce", "t", "hello", "--key", "k"),
        ("read", "t", "--key", "k"),
        ("topic", "list"),
        ("topic", "describe", "t"),
        ("config", "get", "t"),
        ("segments", "t"),
        ("group", "list"),
        ("user", "list"),
        ("status",),
        ("tier", "cost", "t", "--per-day", "1GB"),
        ("delete", "t", "--key", "k", "--yes"),
    ):
        for args in ((*command, *where), (*where, *command)):
            if command[:2] == ("topic", "create") and args[-1] != str(data):
                continue
            done = firn(*args)
            assert done.returncode == 0, (args, done.stderr)
    by_environment = firn("topic", "list", "--json", FIRN_DATA=str(data))
    assert json.loads(by_environment.stdout)["topic"] == "t"


def test_a_node_names_the_closest_topic_and_completes_its_name(node: Served, data: Path) -> None:
    where = ("--data", str(data))
    for topic in ("orders", "orders-2"):
        assert firn("topic", "create", topic, *where).returncode == 0
    mistyped = firn("read", "ordes", *where)
    assert (mistyped.returncode, "did you mean orders?" in mistyped.stderr) == (1, True)
    wrong = firn("config", "set", "orders", "segmnt.bytes=5", *where)
    assert (wrong.returncode, "did you mean segment.bytes" in wrong.stderr) == (2, True)

    def completed(*words: str) -> str:
        line = " ".join(("firn", *where, *words))
        count = str(len(words) + len(where))
        asked = {"_FIRN_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": count}
        return CliRunner(env=asked).invoke(main, [], prog_name="firn").output

    assert completed("read", "ord") == "plain,orders\nplain,orders-2\n"
    assert completed("lake", "status", "orders", "ord") == "plain,orders-2\n"
    assert completed("read", "x").strip() == ""
    node.stop()
    assert completed("read", "ord").strip() == ""


def test_a_node_tells_its_addresses_to_the_owner_of_the_directory_alone(
    node: Served, data: Path
) -> None:
    address = node_serving(data)
    assert address == NodeAddress(http=node.url, kafka=node.kafka, pid=node.process.pid)
    assert stat.S_IMODE((data / NAME).stat().st_mode) == 0o600
    assert node.stop() == 0
    assert not (data / NAME).exists()


def test_a_file_that_a_crash_left_is_not_believed(data: Path) -> None:
    served = Served(data)
    served.process.send_signal(signal.SIGKILL)
    served.process.wait(TIMEOUT_S)
    served.stop()
    assert (data / NAME).exists()
    assert node_serving(data) is None
    assert firn("topic", "create", "t", "--data", str(data)).returncode == 0
    # A program that is no node has the directory now; its process is not the file's.
    with firnmq.open(data):
        assert node_serving(data) is None
        refused = firn("topic", "list", "--data", str(data))
    assert (refused.returncode, f"process {os.getpid()}" in refused.stderr) == (1, True)
    assert "--node" not in refused.stderr, "there is no node to name"


def test_a_command_that_looks_at_the_lock_keeps_no_node_from_starting(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check takes the lock for an instant; opening the directory retries."""
    with firnmq.open(data):
        pass
    looking = os.open(data / "LOCK", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    monkeypatch.setattr(
        "firnmq.disk.directory.sleep", lambda _: fcntl.flock(looking, fcntl.LOCK_UN)
    )
    with firnmq.open(data):
        os.close(looking)


def test_commands_that_need_the_directory_say_who_has_it(node: Served, data: Path) -> None:
    for command in ("verify", "serve", "recover"):
        refused = firn(command, "--data", str(data))
        assert refused.returncode == 1, command
        assert f"served by a node, process {node.process.pid}" in refused.stderr
        assert "stop the node first" in refused.stderr


def test_a_node_without_http_says_so(data: Path) -> None:
    served = Served(data, "--no-admin")
    try:
        refused = firn("topic", "list", "--data", str(data))
        assert (refused.returncode, "has no HTTP listener" in refused.stderr) == (1, True)
    finally:
        served.stop()


@pytest.mark.parametrize("command", [("status",), ("group", "list"), ("read", "t", "--follow")])
def test_what_needs_a_node_says_how_to_start_one(data: Path, command: tuple[str, ...]) -> None:
    with firnmq.open(data) as store:
        store.create_topic("t")
    refused = firn(*command, "--data", str(data))
    assert refused.returncode == 1
    assert f"firn serve --data {data}" in refused.stderr


def test_the_command_line_counts_more_than_the_environment(
    node: Served, data: Path, tmp_path: Path
) -> None:
    nobody = "http://127.0.0.1:1"
    assert firn("topic", "list", "--node", node.url, FIRN_NODE=nobody).returncode == 0
    assert firn("topic", "list", "--data", str(data), FIRN_NODE=nobody).returncode == 0
    assert firn("topic", "list", FIRN_NODE=node.url, FIRN_DATA=str(tmp_path)).returncode == 0
    assert firn("topic", "list", FIRN_DATA=str(data)).returncode == 0
    assert firn("topic", "list", "--node", node.url, "--data", str(data)).returncode == 2


def test_a_node_that_was_not_named_is_told_and_not_changed(
    node: Served, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a directory without firn-data, beside a node at the default address."""
    node.call("POST", "/v1/topics", {"topic": "t"})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setattr("firnmq.cli.target.NODE_DEFAULT", node.url)
    for command in (("topic", "list"), ("status",), ("read", "t"), ("config", "get", "t")):
        found = CliRunner().invoke(main, command)
        assert found.exit_code == 0, found.output
        assert found.stderr == f"through {node.url} (data {data})\n"
    for command in (
        ("topic", "create", "weather"),
        ("topic", "delete", "t", "--yes"),
        ("produce", "t", "hello"),
        ("delete", "t", "--before", "0", "--yes"),
        ("config", "set", "t", "retention.ms=1"),
        ("group", "delete", "g", "--yes"),
        ("user", "remove", "ann"),
        ("tier", "upload"),
        ("lake", "sync", "t"),
    ):
        refused = CliRunner().invoke(main, command)
        assert refused.exit_code == 1, command
        assert f"hint: --node {node.url} means that node; --data firn-data" in refused.stderr
    assert [each["topic"] for each in node.call("GET", "/v1/topics").document] == ["t"]
    assert not list(elsewhere.iterdir())
    # The hint works in both ways.
    for target in (("--node", node.url), ("--data", "firn-data")):
        made = CliRunner().invoke(main, ["topic", "create", "weather", *target])
        assert made.exit_code == 0, made.output
    assert CliRunner().invoke(main, ["topic", "list"]).stderr == "", "firn-data is here now"


def test_ctrl_c_says_what_was_done(node: Served, process) -> None:
    node.call("POST", "/v1/topics", {"topic": "t"})
    producing = process("produce", "t")
    following = process("read", "t", "--follow", "-f", "%v\\n")
    assert producing.stdin is not None
    assert following.stdout is not None
    for number in range(1000):
        producing.stdin.write(f"{number}\n")
    producing.stdin.flush()
    assert [int(following.stdout.readline()) for _ in range(1000)] == list(range(1000))
    for started, said in ((producing, "1,000 records stored"), (following, "1,000 records read")):
        started.send_signal(signal.SIGINT)
        _, error = started.communicate(timeout=TIMEOUT_S)
        assert (started.returncode, error) == (130, f"stopped: {said}\n")


def test_produce_stores_lines_as_they_are_written(node: Served, process) -> None:
    """`tail -f log | firn produce t`: 1. a line is stored although the input goes on; 2. Ctrl-C
    stores what was read and says how many records that made."""
    node.call("POST", "/v1/topics", {"topic": "t"})
    producing = process("produce", "t")
    following = process("read", "t", "--follow", "-f", "%v\\n")
    for text in ("one", "two"):
        producing.stdin.write(f"{text}\n")
        producing.stdin.flush()
        assert following.stdout.readline() == f"{text}\n"
    producing.send_signal(signal.SIGINT)
    _, error = producing.communicate(timeout=TIMEOUT_S)
    assert (producing.returncode, error) == (130, "stopped: 2 records stored\n")


def test_a_topic_has_the_same_options_with_and_without_a_node(tmp_path: Path) -> None:
    made = []
    for name in ("served", "alone"):
        data = tmp_path / name
        served = Served(data) if name == "served" else None
        try:
            assert firn("topic", "create", "t", "--data", str(data)).returncode == 0
            made.append(
                json.loads(firn("topic", "describe", "t", "--json", "--data", str(data)).stdout)
            )
        finally:
            if served is not None:
                assert served.stop() == 0
    assert made[0]["options"] == made[1]["options"]
    assert made[0]["options"]["index.key"] == "true"
