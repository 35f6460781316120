"""`firn topic`."""

from __future__ import annotations

from pathlib import Path

import pytest

from firnmq.config import TopicConfig


def test_a_topic_is_created_listed_described_and_deleted(ok, documents, firn) -> None:
    assert ok("topic", "create", "orders", "--shards", "3") == (
        "created topic orders: 3 shards, EngineSegment\n"
    )
    assert "orders" in ok("topic", "list")
    text = ok("topic", "describe", "orders")
    assert "segment.bytes" in text
    assert "none" in text
    (described,) = documents("topic", "describe", "orders")
    assert described["options"] == TopicConfig().options()
    assert [shard["end_offset"] for shard in described["shards"]] == [0, 0, 0]
    assert ok("topic", "delete", "orders", "--yes") == "deleted topic orders\n"
    assert documents("topic", "list") == []
    assert firn("topic", "describe", "orders").exit_code == 1


@pytest.mark.parametrize(
    ("storage", "kept_by"),
    [
        ("memory", "EngineMemory"),
        ("rocksdb", "EngineRocksDB"),
        ("segment", "EngineSegment"),
        ("EngineMemory", "EngineMemory"),
    ],
)
def test_storage_types_have_short_names(documents, storage: str, kept_by: str) -> None:
    (made,) = documents("topic", "create", "t", "--storage", storage)
    assert made["storage_type"] == kept_by
    assert documents("topic", "list") == [made]


def test_options_are_taken(documents) -> None:
    documents(
        *("topic", "create", "t", "--option", "segment.bytes=4096"),
        *("--option", "retention.ms=none", "--option", "storage.type=rocksdb"),
    )
    (described,) = documents("topic", "describe", "t")
    assert described["options"]["segment.bytes"] == "4096"
    assert described["options"]["retention.ms"] is None
    assert described["storage_type"] == "EngineRocksDB"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["bad name"], "topic name: 'bad name' has characters"),
        ([".."], "topic name"),
        (["t", "--storage", "tape"], "no storage type 'tape'"),
        (["t", "--option", "segment.size=1"], "segment.size: is not a topic option"),
        (
            ["t", "--option", "retention=1"],
            "retention: is not a topic option; did you mean retention.ms",
        ),
        (["t", "--option", "xyz=1"], "xyz: is not a topic option; there are: acks.all, check"),
        (["t", "--option", "segment.bytes=lots"], "segment.bytes: must be a whole number"),
        (["t", "--option", "segment.bytes=-5"], "segment.bytes: is -5"),
    ],
)
def test_what_cannot_be_meant_is_refused(firn, args: list[str], message: str) -> None:
    result = firn("topic", "create", *args)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: {message}")
    assert result.stdout == ""


@pytest.mark.parametrize("args", [["bad name"], ["t", "--option", "x=1"]])
def test_a_mistake_makes_no_data_directory(firn, data: Path, args: list[str]) -> None:
    assert firn("topic", "create", *args).exit_code == 2
    assert not data.exists()


def test_wrong_usage_is_exit_code_2(firn) -> None:
    assert firn("topic", "create").exit_code == 2
    for shards in ("many", "0", "-3"):
        assert firn("topic", "create", "t", "--shards", shards).exit_code == 2
    for option, value in (("--port", "99999"), ("--admin-port", "-1")):
        assert firn("serve", option, value).exit_code == 2
    assert firn("tier", "upload", "--timeout", "-1").exit_code == 2
    twice = ("--storage", "memory", "--option", "storage.type=segment")
    result = firn("topic", "create", "t", *twice)
    assert (result.exit_code, "--storage: differs" in result.stderr) == (2, True)
    result = firn("topic", "create", "t", "--option", "segment.bytes")
    assert result.exit_code == 2
    assert "OPTION=VALUE" in result.stderr


def test_a_second_topic_of_the_same_name_is_refused_with_a_hint(ok, firn) -> None:
    ok("topic", "create", "t")
    result = firn("topic", "create", "t")
    assert result.exit_code == 1
    assert "error: topic 't' exists already" in result.stderr
    assert "hint: " in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        ["topic", "list"],
        ["topic", "describe", "t"],
        ["topic", "delete", "t", "--yes"],
        ["read", "t"],
        ["produce", "t", "v"],
        ["segments", "t"],
        ["verify"],
    ],
)
def test_a_missing_data_directory_is_said_and_not_made(firn, data: Path, args: list[str]) -> None:
    result = firn(*args)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: there is no data directory at {data}")
    assert "hint: " in result.stderr
    assert not data.exists()


@pytest.mark.parametrize(
    "args",
    [
        ["topic", "describe", "nope"],
        ["topic", "delete", "nope", "--yes"],
        ["read", "nope"],
        ["produce", "nope", "v"],
        ["segments", "nope"],
        ["verify", "nope"],
    ],
)
def test_an_unknown_topic_is_said_with_a_hint(ok, firn, args: list[str]) -> None:
    ok("topic", "create", "t")
    result = firn(*args)
    assert result.exit_code == 1
    assert "error: no topic 'nope'" in result.stderr
    assert "firn topic list" in result.stderr


def test_a_mistyped_topic_names_the_closest(ok, firn) -> None:
    ok("topic", "create", "orders")
    ok("topic", "create", "payments")
    assert "no topic 'ordes'; did you mean orders?" in firn("read", "ordes").stderr
    assert "did you mean" not in firn("read", "x").stderr


def test_deleting_asks_first(ok, firn, documents) -> None:
    ok("topic", "create", "t")
    refused = firn("topic", "delete", "t", stdin="n\n")
    assert refused.exit_code == 1
    assert "Delete topic t with 1 shard" in refused.output
    assert len(documents("topic", "list")) == 1
    assert firn("topic", "delete", "t", stdin="y\n").exit_code == 0
    assert documents("topic", "list") == []
    ok("topic", "create", "t")
    assert documents("topic", "delete", "t", "--yes") == [{"topic": "t", "deleted": True}]


def test_an_empty_list_says_what_to_do(ok, firn) -> None:
    ok("topic", "create", "t")
    ok("topic", "delete", "t", "--yes")
    result = firn("topic", "list")
    assert result.stdout == ""
    assert "firn topic create" in result.stderr


def test_tiering_without_a_store_is_told(firn, tmp_path: Path) -> None:
    made = firn("topic", "create", "t", "--option", "tiering=on")
    assert made.exit_code == 0
    assert "warning: tiering=on, but this data directory has no object store" in made.stderr
    assert "warning" not in firn("topic", "create", "u").stderr
    file = tmp_path / "firn.toml"
    file.write_text(f'[tiering]\nurl = "file://{tmp_path}/objects"\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIRN_CONFIG", str(file))
        assert "warning" not in firn("topic", "create", "v", "--option", "tiering=on").stderr


def test_a_topic_of_many_shards_is_described_page_by_page(ok, documents, firn) -> None:
    ok("topic", "create", "many", "--shards", "2500", "-o", "segment.layout=shared-file")
    (described,) = documents("topic", "describe", "many")
    assert [each["shard"] for each in described["shards"]] == list(range(1_000))
    assert described["shard_count"] == 2500
    (described,) = documents("topic", "describe", "many", "--first", "2498")
    assert [each["shard"] for each in described["shards"]] == [2498, 2499]
    (described,) = documents("topic", "describe", "many", "--first", "7", "--count", "1")
    assert [each["shard"] for each in described["shards"]] == [7]
    assert "--first 1000" in firn("topic", "describe", "many").output
    for refused in (("--first", "2500"), ("--count", "1001"), ("--first", "-1")):
        assert firn("topic", "describe", "many", *refused).exit_code == 2
