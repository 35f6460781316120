"""`firn write` and `firn read`."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from firnmq.cli.read import parse_time
from firnmq.errors import InvalidArgument


@pytest.fixture
def topic(ok) -> str:
    ok("topic", "create", "t")
    return "t"


def values(documents) -> list[str]:
    return [document["value"] for document in documents("read", "t")]


def test_one_record_with_everything(ok, documents, topic) -> None:
    where = ok(
        *("write", "t", "hello", "--key", "k", "--tag", "red", "--tag", "blue"),
        *("--header", "a=1", "--header", "b=x=y", "--timestamp-ms", "1900000000000"),
    )
    assert where == "t shard 0: 1 record at offset 0\n"
    assert documents("read", "t") == [
        {
            "topic": "t",
            "shard": 0,
            "offset": 0,
            "timestamp_ms": 1900000000000,
            "key": "k",
            "value": "hello",
            "tags": ["red", "blue"],
            "headers": [{"name": "a", "value": "1"}, {"name": "b", "value": "x=y"}],
            "expire_at_ms": None,
        }
    ]
    assert ok("read", "t") == "0:0  2030-03-17T17:46:40.000Z  k  hello  #red #blue\n"


def test_lines_from_stdin_go_in_batches(ok, documents, topic) -> None:
    lines = "".join(f"line {number}\n" for number in range(2500))
    (where,) = documents("write", "t", "--file", "-", stdin=lines)
    assert where == {
        "topic": "t",
        "shard": 0,
        "base_offset": 0,
        "next_offset": 2500,
        "record_count": 2500,
    }
    assert values(documents) == lines.splitlines()
    (check,) = documents("verify")
    assert check["batch_count"] == 3


def test_lines_from_a_file(ok, documents, topic, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\r\ntwo\n\nlast")
    assert ok("write", "t", "--file", str(file), "--tag", "x") == (
        "t shard 0: 4 records at offsets 0 to 3\n"
    )
    assert values(documents) == ["one", "two", "", "last"]
    assert len(documents("read", "t", "--tag", "x")) == 4


def test_an_empty_file_writes_nothing(firn, topic) -> None:
    result = firn("write", "t", "--file", "-", stdin="")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "nothing to write" in result.stderr


def test_json_lines_go_in_and_come_out_the_same(ok, documents, firn, topic) -> None:
    ok("topic", "create", "copy")
    given = [
        {"key": "a", "value": "1", "tags": ["x"], "headers": {"h": "v"}},
        {"value": None, "key": "a"},
        {"value_base64": base64.b64encode(b"\xff\x00").decode(), "expire_at_ms": 4 * 10**12},
        {"value": "é", "timestamp_ms": 1900000000000, "headers": [{"name": "n", "value": None}]},
    ]
    ok("write", "t", "--file", "-", "--format", "json", stdin="\n".join(map(json.dumps, given)))
    out = firn("read", "t", "--json").stdout
    ok("write", "copy", "--file", "-", "--format", "json", stdin=out)
    first = [json.loads(line) for line in out.splitlines()]
    second = documents("read", "copy")
    for document in second:
        document["topic"] = "t"
    assert first == second
    assert first[0]["tags"] == ["x"]
    assert first[1]["value"] is None
    assert first[2]["value_base64"] == given[2]["value_base64"]
    assert first[2]["expire_at_ms"] == 4 * 10**12


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "a record is an object"),
        ('{"valeu": "v"}', "'valeu' is no field of a record"),
        ('{"value": 5}', "value must be text or null, not int"),
        ('{"value": "a", "value_base64": "YQ=="}', "are both given"),
        ('{"value_base64": "@"}', "value_base64"),
        ('{"value": "v", "tags": "x"}', "tags must be a list"),
        ('{"value": "v", "headers": 5}', "headers must be"),
        ('{"value": "v", "headers": [5]}', "a header is an object"),
        ('{"value": "v", "timestamp_ms": -1}', "timestamp_ms -1 is outside"),
        ('{"value": "v", "timestamp_ms": "now"}', "timestamp_ms must be an int"),
    ],
)
def test_a_bad_line_is_named_and_those_before_it_are_stored(
    firn, documents, topic, line: str, message: str
) -> None:
    result = firn(
        *("write", "t", "--file", "-", "--format", "json"),
        stdin=f'{{"value": "good"}}\n{line}\n{{"value": "never"}}\n',
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("error: stdin, line 2: ")
    assert message in result.stderr
    assert "records stored before it: 1" in result.stderr
    assert values(documents) == ["good"]


def test_a_record_beyond_the_limit_is_refused(ok, firn) -> None:
    ok("topic", "create", "t", "--config", "max.record.bytes=100")
    result = firn("write", "t", "x" * 200)
    assert result.exit_code == 1
    assert "error: record is" in result.stderr
    assert firn("write", "t", "--file", "-", stdin="x" * 200).exit_code == 1


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["t"], 2),
        (["t", "v", "--file", "-"], 2),
        (["t", "v", "--header", "nothing"], 2),
        (["t", "v", "--shard", "x"], 2),
        (["t", "--file", "-", "--format", "xml"], 2),
        (["t", "v", "--shard", "7"], 1),
        (["t", "v", "--shard", "-1"], 1),
        (["t", "v", "--timestamp-ms", "-5"], 1),
        (["t", "--file", "no-such-file"], 1),
    ],
)
def test_writing_what_cannot_be_meant(firn, documents, topic, args: list[str], code: int) -> None:
    result = firn("write", *args)
    assert result.exit_code == code
    assert "error: " in result.stderr.lower()
    assert documents("read", "t") == []


# Reading ----------------------------------------------------------------------------------------


@pytest.fixture
def filled(ok) -> None:
    ok("topic", "create", "t", "--shards", "2")
    for number in range(6):
        ok(
            *("write", "t", f"value-{number}", "--key", f"key-{number % 3}", "--shard", "1"),
            *("--tag", "odd" if number % 2 else "even"),
            *("--timestamp-ms", str(1_900_000_000_000 + number)),
        )
    ok("write", "t", "elsewhere", "--shard", "0")


def test_reading_by_offset(documents, filled) -> None:
    found = documents("read", "t", "--shard", "1", "--offset", "4")
    assert [each["offset"] for each in found] == [4, 5]
    assert len(documents("read", "t")) == 7
    assert len(documents("read", "t", "--max", "3")) == 3


def test_reading_by_key(ok, documents, firn, filled) -> None:
    (found,) = documents("read", "t", "--key", "key-1", "--shard", "1")
    assert found["value"] == "value-4"
    ok("write", "t", "routed", "--key", "own-shard")
    (found,) = documents("read", "t", "--key", "own-shard")
    assert found["value"] == "routed"
    missing = firn("read", "t", "--key", "nobody")
    assert missing.exit_code == 1
    assert "error: no live record with key 'nobody'" in missing.stderr


def test_reading_by_tag(documents, filled) -> None:
    found = documents("read", "t", "--tag", "odd")
    assert [each["value"] for each in found] == ["value-1", "value-3", "value-5"]
    assert len(documents("read", "t", "--tag", "odd", "--max", "2")) == 2
    assert documents("read", "t", "--tag", "none") == []


@pytest.mark.parametrize("since", ["1900000000003", "2030-03-17T17:46:40.003Z"])
def test_reading_by_time(documents, filled, since: str) -> None:
    found = documents("read", "t", "--time", since, "--shard", "1")
    assert [each["offset"] for each in found] == [3, 4, 5]


def test_reading_in_a_format(ok, filled) -> None:
    out = ok("read", "t", "--shard", "1", "--max", "2", "-f", r"%t %p %o %k %v %g %K/%S %T%%\n")
    assert out == (
        "t 1 0 key-0 value-0 even 5/7 1900000000000%\nt 1 1 key-1 value-1 odd 5/7 1900000000001%\n"
    )
    assert ok("read", "t", "--shard", "0", "-f", r"%k|%s|%K|%h\t\\") == "|elsewhere|-1|\t\\"


def test_a_deleted_start_is_where_reading_begins(documents, firn, data: Path, filled) -> None:
    import firnmq

    with firnmq.open(data) as store:
        store.topic("t").delete_before(3, shard=1)
    found = documents("read", "t", "--shard", "1")
    assert [each["offset"] for each in found] == [3, 4, 5]
    early = firn("read", "t", "--shard", "1", "--offset", "0")
    assert early.exit_code == 1
    assert "outside [3, 6)" in early.stderr
    assert "hint: the readable offsets are 3 to 5" in early.stderr


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["--max", "0"], 1, "--max: must be 1 or more, not 0"),
        (["--max", "-1"], 1, "--max: must be 1 or more, not -1"),
        (["--offset", "0"], 1, "--offset: needs --shard, since t has 2 shards"),
        (["--offset", "-1", "--shard", "0"], 1, "--offset: must be 0 or more"),
        (["--offset", "99", "--shard", "0"], 1, "of shard 0 of topic 't' is outside [0, 1)"),
        (["--shard", "2"], 1, "no shard '2' in topic 't'"),
        (["--shard", "-1"], 1, "no shard '-1' in topic 't'"),
        (["--time", "yesterday"], 1, "--time: 'yesterday' is neither"),
        (["-f", "%y"], 1, "format: '%y' is unknown"),
        (["-f", r"\y"], 1, "format: '\\\\y' is no escape"),
        (["--offset", "1", "--key", "k"], 2, "cannot be used together"),
        (["--key", "k", "--follow"], 2, "cannot be used together"),
        (["--json", "-f", "%v"], 2, "cannot be used together"),
        (["--max", "few"], 2, "not a valid integer"),
    ],
)
def test_reading_what_cannot_be_meant(
    firn, filled, args: list[str], code: int, message: str
) -> None:
    result = firn("read", "t", *args)
    assert result.exit_code == code
    assert message in result.stderr
    assert result.stdout == ""


def test_a_question_without_its_index_says_how_to_get_one(ok, firn) -> None:
    ok("topic", "create", "t", "--config", "index.key=false")
    result = firn("read", "t", "--key", "k")
    assert result.exit_code == 1
    assert "set index.key=true" in result.stderr


def test_binary_and_dangerous_values_are_shown_safely(ok, topic) -> None:
    document = {"value_base64": base64.b64encode(b"\xff\x1b[2Jred\n").decode(), "key": "a\tb"}
    ok("write", "t", "--file", "-", "--format", "json", stdin=json.dumps(document))
    line = ok("read", "t", "-f", "%o\n") and ok("read", "t")
    assert line.endswith("a\\tb  \\xff\\x1b[2Jred\\n\n")


def test_a_format_in_a_pipe_gives_the_bytes_as_they_are(firn, ok, topic) -> None:
    document = {"value_base64": base64.b64encode(b"\xff\x00\x1b").decode()}
    ok("write", "t", "--file", "-", "--format", "json", stdin=json.dumps(document))
    assert firn("read", "t", "-f", "%v").stdout_bytes == b"\xff\x00\x1b"


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_time("1970-01-01") == 0
    assert parse_time("1970-01-01T01:00:00+01:00") == 0
    assert parse_time("12") == 12
    with pytest.raises(InvalidArgument):
        parse_time("٣")


def test_the_directory_comes_from_an_option_or_the_environment(firn, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert firn("topic", "create", "t", "--data", other).exit_code == 0
    assert firn("read", "t").exit_code == 1
    assert firn("read", "t", "--data", other).exit_code == 0
    assert os.path.isdir(other)
