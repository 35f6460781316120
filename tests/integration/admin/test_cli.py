"""The command line through a running node."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

from firnmq.cli import main
from tests.integration.admin.serving import TIMEOUT_S, Served, firn


def test_topics_look_the_same_from_both_sides(node: Served, tmp_path: Path, documents, run) -> None:
    """What a node shows about a topic has the fields a data directory shows."""
    data = str(tmp_path / "data")
    (through,) = documents("topic", "create", "both", "--shards", "2")
    local = CliRunner().invoke(main, ["topic", "create", "both", "--data", data, "--json"])
    assert list(json.loads(local.stdout)) == list(through)
    (through,) = documents("topic", "describe", "both")
    local = CliRunner().invoke(main, ["topic", "describe", "both", "--data", data, "--json"])
    assert list(json.loads(local.stdout)) == list(through)
    assert list(json.loads(local.stdout)["shards"][0]) == list(through["shards"][0])
    listed = [each["topic"] for each in documents("topic", "list")]
    assert "both" in listed
    assert "both" in run("topic", "list").stdout
    assert "segment.bytes" in run("topic", "describe", "both").stdout
    assert documents("segments", "both") == node.get("/v1/topics/both/segments")
    refused = run("topic", "create", "both")
    assert (refused.exit_code, "exists already" in refused.stderr) == (1, True)
    assert run("topic", "delete", "both", "--yes").exit_code == 0
    assert run("topic", "describe", "both").exit_code == 1


def test_config(topic: str, run, documents) -> None:
    (found,) = documents("config", "set", topic, "retention.ms=7000", "segment.bytes=65536")
    assert found["options"] == {"retention.ms": "7000", "segment.bytes": "65536"}
    assert documents("config", "get", topic, "retention.ms")[0]["options"] == {
        "retention.ms": "7000"
    }
    assert documents("config", "set", topic, "retention.ms=")[0]["options"] == {
        "retention.ms": None
    }
    assert "retention.ms" in run("config", "get", topic).stdout
    assert run("config", "get", topic, "nope").exit_code == 2
    refused = run("config", "set", topic, "storage.type=EngineMemory")
    assert (refused.exit_code, "fixed" in refused.stderr) == (2, True)
    assert run("config", "set", topic, "nothing").exit_code == 2


def test_produce_and_read(topic: str, run, documents) -> None:
    lines = "".join(f"line {number}\n" for number in range(2500))
    placed = documents("produce", topic, "--shard", "1", stdin=lines)
    assert [(each["base_offset"], each["next_offset"]) for each in placed] == [(0, 2500)]
    last = documents("read", topic, "--shard", "1", "--offset", "-2")
    assert [each["value"] for each in last] == ["line 2498", "line 2499"]
    shown = run("read", topic, "--shard", "1", "--offset", "-1").stdout
    assert shown.startswith("1:2499  ")
    assert shown.endswith("  line 2499\n")
    # What read prints, produce takes.
    documents("produce", topic, "--input", "json", "--shard", "0", stdin=json.dumps(last[0]))
    assert documents("read", topic, "--shard", "0")[0]["value"] == "line 2498"
    assert run("produce", topic, "--shard", "0", stdin=b"\xff\xfe\n").exit_code == 0
    assert documents("read", topic, "--shard", "0", "--offset", "-1")[0]["value_base64"] == "//4="


def test_a_bad_line_says_where_and_what_was_stored(topic: str, run) -> None:
    result = run("produce", topic, "--input", "json", stdin='{"value": "a"}\n{"value": 5}\n[]\n')
    assert result.exit_code == 1
    assert "stdin, line 2: value must be text" in result.stderr
    assert "stored before it: 1" in result.stderr


def test_following_shows_what_others_write(node: Served, topic: str) -> None:
    following = subprocess.Popen(
        [
            *(sys.executable, "-m", "firnmq", "--node", node.url),
            *("read", topic, "--shard", "0", "--follow", "--json"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    try:
        for value in ("first", "second"):
            node.call(
                "POST", f"/v1/topics/{topic}/records", {"records": [{"value": value}], "shard": 0}
            )
            assert json.loads(following.stdout.readline())["value"] == value
    finally:
        following.terminate()
        following.wait(TIMEOUT_S)
        following.stdout.close()


def test_users_and_status(run, documents) -> None:
    added = run("user", "add", "ann", "--password-file", "-", stdin="secret\n")
    assert added.stdout == "added user ann\n"
    assert {"user": "ann"} in documents("user", "list")
    assert run("user", "remove", "ann").exit_code == 0
    assert run("user", "remove", "ann").exit_code == 1
    (status,) = documents("status")
    assert status["tls"] is False
    assert "kafka" in run("status").stdout


def test_what_needs_saying_when_nobody_answers_or_the_directory_is_taken(
    node: Served, tmp_path: Path
) -> None:
    nobody = firn("topic", "list", FIRN_NODE="http://127.0.0.1:1")
    assert nobody.returncode == 1
    assert "firn serve starts a node" in nobody.stderr
    taken = firn("topic", "list", "--data", node.said["data"])
    assert taken.returncode == 0, "a directory that is served is reached through its node"
    for behind in (("--node", node.url), (f"--node={node.url}",)):
        before = firn("--node", node.url, "topic", "list", "--json")
        assert before.returncode == 0
        assert firn("topic", "list", *behind, "--json").stdout == before.stdout
    plain = firn("produce", "t", "--data", str(tmp_path / "here"), "--", "--node=x")
    assert "there is no data directory" in plain.stderr, "behind two dashes there are no options"
    both = firn("--node", node.url, "topic", "list", "--data", str(tmp_path))
    assert both.returncode == 2
    local_only = firn("--node", node.url, "verify")
    assert (local_only.returncode, "data directory" in local_only.stderr) == (2, True)
    data_wins = firn("topic", "list", "--data", str(tmp_path / "no"), FIRN_NODE=node.url)
    assert "there is no data directory" in data_wins.stderr
