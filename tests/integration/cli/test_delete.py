"""`firn delete` in a data directory that no node has open."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import firnmq
from firnmq import NewRecord


@pytest.fixture
def topic(data: Path) -> str:
    """Two shards with six records each, of keys `a` and `b` by turns."""
    with firnmq.open(data) as store:
        handle = store.create_topic("t", shards=2)
        for shard in range(2):
            records = [NewRecord(key=b"ab"[at % 2 :][:1], value=b"%d" % at) for at in range(6)]
            handle.append(records, shard=shard)
    return "t"


def left(ok, *args: str) -> list[str]:
    return ok("read", "t", "-f", "%p:%o\n", *args).split()


def test_a_key_in_all_shards(topic: str, ok) -> None:
    assert ok("delete", topic, "--key", "a", "--yes") == (
        "t shard 0: deleted the records of key a below offset 6\n"
        "t shard 1: deleted the records of key a below offset 6\n"
    )
    assert left(ok) == ["0:1", "0:3", "0:5", "1:1", "1:3", "1:5"]
    assert ok("delete", topic, "--key", "nobody", "--yes") == (
        "nothing in the log to delete: no shard of t has records of key nobody\n"
    )
    assert ok("delete", topic, "--key", "nobody", "--shard", "1", "--yes") == (
        "nothing in the log to delete: shard 1 of t has no records of key nobody\n"
    )


def test_a_key_in_one_shard(topic: str, ok) -> None:
    ok("delete", topic, "--key", "a", "--shard", "1", "--yes")
    assert left(ok, "--shard", "0") == [f"0:{at}" for at in range(6)]
    assert left(ok, "--shard", "1") == ["1:1", "1:3", "1:5"]


def test_offsets(topic: str, ok, documents) -> None:
    args = ("--offset", "4", "--offset", "0", "--shard", "1", "--yes")
    (done,) = documents("delete", topic, *args)
    assert (done["shard"], done["offsets"], done["deleted"]) == (1, [0, 4], True)
    assert ok("delete", topic, *args, "--offset", "5") == (
        "t shard 1: deleted 1 record at offset 5; 2 more had gone before\n"
    )
    assert left(ok, "--shard", "1") == ["1:1", "1:2", "1:3"]
    assert ok("delete", topic, *args) == (
        "nothing in the log to delete: what shard 1 of t had at offsets 4, 0 was gone before\n"
    )


def test_before(topic: str, ok) -> None:
    args = ("delete", topic, "--before", "4", "--shard", "0", "--yes")
    assert ok(*args) == "t shard 0: starts at 4, before at 0\n"
    assert ok(*args) == "nothing in the log to delete: shard 0 of t starts at 4\n"
    assert left(ok, "--shard", "0") == ["0:4", "0:5"]


@pytest.mark.parametrize(
    ("args", "question"),
    [
        (["--key", "a\x1b["], r"all records of key a\x1b[ from topic t, all 2 shards?"),
        (["--key-base64", "/w=="], "all records of key /w== (base64) from topic t, all 2 shards?"),
        (["--offset", "1", "--shard", "1"], "the record at offset 1 from topic t, shard 1?"),
        (["--before", "3", "--shard", "0"], "all records before offset 3 from topic t, shard 0?"),
    ],
)
def test_it_asks_first(topic: str, firn, ok, args: list[str], question: str) -> None:
    result = firn("delete", topic, *args, stdin="n\n")
    assert result.exit_code == 1
    assert f"Delete {question} [y/N]" in result.stdout
    assert len(left(ok)) == 12


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ([], 2, "give one of"),
        (["--key", "a", "--before", "1"], 2, "give one of"),
        (["--key", "a", "--key-base64", "YQ=="], 2, "give one of"),
        (["--offset", "x"], 2, "not a valid integer"),
        (["--key-base64", "?"], 1, "key_base64"),
        (["--offset", "1"], 2, "shard: is needed with offsets, since t has 2 shards"),
        (["--offset", "-1", "--shard", "0"], 2, "must be 0 or more, not -1"),
        (["--offset", "6", "--shard", "0"], 1, "the readable offsets are 0 to 5"),
        (["--before", "7", "--shard", "0"], 1, "the readable offsets are 0 to 5"),
        (["--key", "a", "--shard", "2"], 1, "firn topic describe TOPIC"),
    ],
)
def test_what_cannot_be_meant(topic: str, firn, ok, args: list[str], code: int, words: str) -> None:
    result = firn("delete", topic, *args, "--yes")
    assert (result.exit_code, words in result.stderr) == (code, True), result.output
    assert len(left(ok)) == 12


def test_nothing_is_made_where_nothing_is(tmp_path: Path, firn) -> None:
    nowhere = tmp_path / "nowhere"
    result = firn("delete", "t", "--key", "a", "--yes", "--data", str(nowhere))
    assert (result.exit_code, "no data directory" in result.stderr) == (1, True)
    assert not nowhere.exists()


def test_cold_records_go_without_the_object_store(
    tmp_path: Path, ok, documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a note is made, which needs none of their bytes; reads of the rest need them."""
    monkeypatch.setenv("FIRN_TIERING_URL", f"file://{tmp_path}/objects")
    options = ("--option", "tiering=on", "--option", "local.retention.ms=0")
    ok("topic", "create", "cold", *options)
    ok("produce", "cold", "--key", "ann", "--file", "-", stdin="one\ntwo\n")
    ok("produce", "cold", "--key", "bob", "--file", "-", stdin="three\nfour\n")
    ok("tier", "upload", "--roll")
    ok("tier", "upload")
    monkeypatch.delenv("FIRN_TIERING_URL")
    cold, _ = documents("segments", "cold")
    assert (cold["is_local"], cold["end_offset"]) == (False, 4)
    ok("delete", "cold", "--key", "ann", "--yes")
    ok("delete", "cold", "--offset", "3", "--yes")
    monkeypatch.setenv("FIRN_TIERING_URL", f"file://{tmp_path}/objects")
    assert ok("read", "cold", "-f", "%o %v\n") == "2 three\n"


def test_a_key_that_is_not_text(topic: str, data: Path, ok) -> None:
    """The shell's bytes are the key's; what no shell can pass comes as base64."""
    with firnmq.open(data) as store:
        for key in (b"\xff\xfe", b"\x00\x01"):
            store.topic(topic).append(NewRecord(key=key, value=b"x"), shard=0)
    command = [sys.executable, "-m", "firnmq", "delete", topic, "--yes", "--data", str(data)]
    done = subprocess.run(
        [*command, "--key", b"\xff\xfe"], capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"t shard 0: deleted the records of key //4= (base64) below offset 8\n"
    assert left(ok, "--shard", "0")[-1] == "0:7"
    ok("delete", topic, "--key-base64", "AAE=", "--yes")
    assert left(ok, "--shard", "0")[-1] == "0:5"
