"""The command as a process of its own: exit codes, pipes, signals, the directory's lock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import firnmq

TIMEOUT_S = 60


def test_version_and_help(process) -> None:
    out, _ = process("--version").communicate(timeout=TIMEOUT_S)
    assert out.startswith("firn ")
    out, _ = process("--help").communicate(timeout=TIMEOUT_S)
    for command in ("demo", "dump", "read", "segments", "topic", "verify", "produce"):
        assert f"  {command} " in out


def test_help_does_not_load_what_only_other_commands_need() -> None:
    code = (
        "import sys; from firnmq.cli import main; "
        "main(['read', '--help'], standalone_mode=False); "
        "print([m for m in ('rich', 'pyarrow', 'rocksdict', 'firnmq.server') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=TIMEOUT_S
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_session_of_processes(process) -> None:
    def run(*args: str, stdin: str | None = None) -> str:
        started = process(*args)
        out, error = started.communicate(stdin, timeout=TIMEOUT_S)
        assert (started.returncode, error) == (0, "")
        return str(out)

    run("topic", "create", "t", "--storage", "rocksdb")
    run("produce", "t", "--file", "-", stdin="a\nb\n")
    found = [json.loads(line) for line in run("read", "t", "--json").splitlines()]
    assert [each["value"] for each in found] == ["a", "b"]
    assert "nothing is wrong" in run("verify")


def test_errors_have_no_traceback(process, data: Path) -> None:
    started = process("read", "t")
    out, error = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1
    assert out == ""
    assert error.startswith("error: ")
    assert "Traceback" not in error
    usage = process("read")
    _, error = usage.communicate(timeout=TIMEOUT_S)
    assert usage.returncode == 2
    assert "Usage: " in error


@pytest.mark.parametrize("name", ["FIRN_TIERING_SECRET_KEY", "FIRN_TIERING_ACCESS_KEY"])
def test_a_key_in_the_environment_disturbs_no_directory_without_tiering(
    process, data: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv(name, "one of two")
    for command in ("create", "describe"):
        started = process("topic", command, "t")
        _, error = started.communicate(timeout=TIMEOUT_S)
        assert (started.returncode, error) == (0, "")


def test_a_directory_in_use_is_said(process, data: Path) -> None:
    with firnmq.open(data) as store:
        store.create_topic("t")
        started = process("read", "t")
        _, error = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1
    assert "is in use by process" in error


def test_a_data_directory_that_is_a_file_is_wrong_usage(process, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    started = process("topic", "list", "--data", str(file))
    _, error = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 2
    assert "is a file" in error


def test_a_damaged_catalog_is_an_error_not_a_traceback(process, data: Path) -> None:
    with firnmq.open(data) as store:
        store.create_topic("t")
    (data / "db" / "CURRENT").write_text("garbage")
    started = process("verify")
    _, error = started.communicate(timeout=TIMEOUT_S)
    assert started.returncode == 1
    assert error.startswith("error: ")
    assert "Traceback" not in error


def test_output_that_cannot_be_written_is_named(data: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "firnmq", "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
        )
        assert b"Traceback" not in done.stderr
        with firnmq.open(data) as store:
            store.create_topic("t").append("hello")
        command = [sys.executable, "-m", "firnmq", "topic", "list", "--data", str(data)]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S)
    assert done.stderr == b"error: standard output: no space left on device\n"
    assert done.returncode == 1


@pytest.mark.parametrize("count", [20_000])
def test_a_reader_that_goes_away_is_no_error_message(process, data: Path, count: int) -> None:
    with firnmq.open(data) as store:
        store.create_topic("t").append([b"x" * 100] * count)
    started = process("read", "t")
    assert started.stdout is not None
    assert started.stderr is not None
    started.stdout.readline()
    started.stdout.close()
    error = started.stderr.read()
    started.stderr.close()
    assert started.stdin is not None
    started.stdin.close()
    assert started.wait(timeout=TIMEOUT_S) == 141
    assert "Traceback" not in error
    assert "error" not in error
