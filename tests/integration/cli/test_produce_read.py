"""`firn produce` and `firn read` on a data directory."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path

import pytest

from firnmq.cli.console import parse_time
from firnmq.errors import InvalidArgument


@pytest.fixture
def topic(ok) -> str:
    ok("topic", "create", "t")
    return "t"


def values(documents) -> list[str]:
    return [document["value"] for document in documents("read", "t")]


def test_one_record_with_everything(ok, documents, topic) -> None:
    where = ok(
        *("produce", "t", "hello", "--key", "k", "--tag", "red", "--tag", "blue"),
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
    (where,) = documents("produce", "t", "--file", "-", stdin=lines)
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


def test_requests_fit_the_batches_of_the_topic(ok, documents) -> None:
    """A node refuses a request that is more than a batch."""
    limits = ("--option", "max.batch.bytes=4096", "--option", "max.record.bytes=1000")
    ok("topic", "create", "t", *limits)
    lines = "".join(f"line {number:90}\n" for number in range(200))
    (where,) = documents("produce", "t", "--file", "-", stdin=lines)
    assert where["record_count"] == 200
    assert values(documents) == lines.splitlines()


def test_lines_from_a_file(ok, documents, topic, tmp_path: Path) -> None:
    file = tmp_path / "lines.txt"
    file.write_bytes(b"one\r\ntwo\n\nlast")
    assert ok("produce", "t", "--file", str(file), "--tag", "x") == (
        "t shard 0: 4 records at offsets 0 to 3\n"
    )
    assert values(documents) == ["one", "two", "", "last"]
    assert len(documents("read", "t", "--tag", "x")) == 4


def test_an_empty_file_writes_nothing(firn, topic) -> None:
    result = firn("produce", "t", "--file", "-", stdin="")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "nothing to store" in result.stderr


def test_json_lines_go_in_and_come_out_the_same(ok, documents, firn, topic) -> None:
    ok("topic", "create", "copy")
    given = [
        {"key": "a", "value": "1", "tags": ["x"], "headers": {"h": "v"}},
        {"value": None, "key": "a"},
        {"value_base64": base64.b64encode(b"\xff\x00").decode(), "expire_at_ms": 4 * 10**12},
        {"value": "é", "timestamp_ms": 1900000000000, "headers": [{"name": "n", "value": None}]},
    ]
    ok("produce", "t", "--file", "-", "--input", "json", stdin="\n".join(map(json.dumps, given)))
    out = firn("read", "t", "--json").stdout
    ok("produce", "copy", "--file", "-", "--input", "json", stdin=out)
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
        *("produce", "t", "--file", "-", "--input", "json"),
        stdin=f'{{"value": "good"}}\n{line}\n{{"value": "never"}}\n',
    )
    assert result.exit_code == 1
    assert result.stderr.startswith("error: stdin, line 2: ")
    assert message in result.stderr
    assert "records stored before it: 1" in result.stderr
    assert values(documents) == ["good"]


def test_a_record_beyond_the_limit_is_refused(ok, firn) -> None:
    ok("topic", "create", "t", "--option", "max.record.bytes=100")
    result = firn("produce", "t", "x" * 200)
    assert result.exit_code == 1
    assert "error: record is" in result.stderr
    assert firn("produce", "t", "--file", "-", stdin="x" * 200).exit_code == 1


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["t", "v", "--file", "-"], 2),
        (["t", "v", "--header", "nothing"], 2),
        (["t", "v", "--shard", "x"], 2),
        (["t", "--file", "-", "--input", "xml"], 2),
        (["t", "v", "--shard", "7"], 1),
        (["t", "v", "--shard", "-1"], 2),
        (["t", "v", "--timestamp-ms", "-5"], 1),
        (["t", "--file", "no-such-file"], 1),
    ],
)
def test_writing_what_cannot_be_meant(firn, documents, topic, args: list[str], code: int) -> None:
    result = firn("produce", *args)
    assert result.exit_code == code
    assert "error: " in result.stderr.lower()
    assert documents("read", "t") == []


# Reading ----------------------------------------------------------------------------------------


@pytest.fixture
def filled(ok) -> None:
    ok("topic", "create", "t", "--shards", "2")
    for number in range(6):
        ok(
            *("produce", "t", f"value-{number}", "--key", f"key-{number % 3}", "--shard", "1"),
            *("--tag", "odd" if number % 2 else "even"),
            *("--timestamp-ms", str(1_900_000_000_000 + number)),
        )
    ok("produce", "t", "elsewhere", "--shard", "0")


def test_reading_by_offset(documents, filled) -> None:
    found = documents("read", "t", "--shard", "1", "--offset", "4")
    assert [each["offset"] for each in found] == [4, 5]
    assert len(documents("read", "t")) == 7
    assert len(documents("read", "t", "-n", "3")) == 3
    assert [each["value"] for each in documents("read", "t", "--offset", "-1")] == [
        "elsewhere",
        "value-5",
    ]
    assert documents("read", "t", "--offset", "end") == []


def test_reading_by_key(ok, documents, firn, filled) -> None:
    (found,) = documents("read", "t", "--key", "key-1", "--shard", "1")
    assert found["value"] == "value-4"
    ok("produce", "t", "routed", "--key", "own-shard")
    (found,) = documents("read", "t", "--key", "own-shard")
    assert found["value"] == "routed"
    ok("produce", "t", "older", "--key", "key-1", "--shard", "0", "--timestamp-ms", "5")
    (found,) = documents("read", "t", "--key", "key-1")
    assert found["value"] == "value-4", "the greatest timestamp of all shards is the newest"
    found = documents("read", "t", "--key", "key-1", "--all")
    assert [each["value"] for each in found] == ["older", "value-1", "value-4"]
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
    found = documents("read", "t", "--since", since, "--shard", "1")
    assert [each["offset"] for each in found] == [3, 4, 5]
    until = ("--until", "1900000000005")
    found = documents("read", "t", "--since", since, *until)
    assert [each["offset"] for each in found] == [3, 4]
    assert [each["offset"] for each in documents("read", "t", "--tag", "odd", *until)] == [1, 3]


def test_a_time_range_finds_records_that_were_stored_late(ok, documents, topic) -> None:
    for number in (10, 30, 20, 5):
        ok("produce", "t", str(number), "--timestamp-ms", str(number))
    found = documents("read", "t", "--since", "10", "--until", "30")
    assert [each["value"] for each in found] == ["10", "20"]


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
        (["--max", "0"], 2, "'-n' / '--max': 0 is not in the range x>=1"),
        (["--max", "-1"], 2, "'-n' / '--max': -1 is not in the range x>=1"),
        (["--offset", "0"], 2, "offset: needs a shard (--shard), because t has 2 shards"),
        (["--offset", "first", "--shard", "0"], 2, "--offset: 'first' is no offset"),
        (["--offset", "99", "--shard", "0"], 1, "of shard 0 of topic 't' is outside [0, 1)"),
        (["--shard", "2"], 1, "no shard '2' in topic 't'"),
        (["--shard", "-1"], 1, "no shard '-1' in topic 't'"),
        (["--since", "yesterday"], 2, "--since: 'yesterday' is neither"),
        (["--since", "1d", "--until", "2d"], 2, "no time lies between --since 1d and --until 2d"),
        (["-f", "%y"], 2, "--format: '%y' is unknown"),
        (["-f", r"\y"], 2, "--format: '\\\\y' is no escape"),
        (["--offset", "1", "--shard", "1", "--key", "key-1"], 2, "needs --all"),
        (["--key", "k", "--tag", "odd"], 2, "--key and --tag cannot be used together"),
        (["--all"], 2, "--all needs --key"),
        (["--since", "1", "--offset", "-1"], 2, "--since and --offset cannot be used together"),
        (["--ofset", "1"], 2, "'--offset'"),
        (["--partition", "1"], 2, "Did you mean '--shard'?"),
        (["--follow"], 1, "needs a running node"),
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
    ok("topic", "create", "t", "--option", "index.key=false")
    result = firn("read", "t", "--key", "k")
    assert result.exit_code == 1
    assert "only a new topic can have one" in result.stderr
    assert "by default if firn topic create does" in result.stderr


def test_binary_and_dangerous_values_are_shown_safely(ok, topic) -> None:
    document = {"value_base64": base64.b64encode(b"\xff\x1b[2Jred\n").decode(), "key": "a\tb"}
    ok("produce", "t", "--file", "-", "--input", "json", stdin=json.dumps(document))
    line = ok("read", "t", "-f", "%o\n") and ok("read", "t")
    assert line.endswith("a\\tb  \\xff\\x1b[2Jred\\n\n")


def test_a_format_in_a_pipe_gives_the_bytes_as_they_are(firn, ok, topic) -> None:
    document = {"value_base64": base64.b64encode(b"\xff\x00\x1b").decode()}
    ok("produce", "t", "--file", "-", "--input", "json", stdin=json.dumps(document))
    assert firn("read", "t", "-f", "%v").stdout_bytes == b"\xff\x00\x1b"


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_time("--since", "1970-01-01") == 0
    assert parse_time("--since", "1970-01-01T01:00:00+01:00") == 0
    assert parse_time("--since", "12") == 12
    with pytest.raises(InvalidArgument):
        parse_time("--since", "٣")


def test_the_directory_comes_from_an_option_or_the_environment(firn, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    assert firn("topic", "create", "t", "--data", other).exit_code == 0
    assert firn("read", "t").exit_code == 1
    assert firn("read", "t", "--data", other).exit_code == 0
    assert os.path.isdir(other)
