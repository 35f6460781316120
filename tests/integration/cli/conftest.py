"""A data directory of its own for each test, and `firn` in this process or in another."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from firnmq.cli import main

Firn = Callable[..., Result]

_LAUNCH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "firnmq", *sys.argv[1:]])
"""
"""A shell lets its background jobs ignore Ctrl-C, and what they start inherits that."""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def firn(data: Path) -> Firn:
    """Runs a command in this process; a defect shows as its own exception."""

    def run(*args: str, stdin: bytes | str | None = None) -> Result:
        result = CliRunner(env={"FIRN_DATA": str(data)}).invoke(main, args, input=stdin)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def ok(firn: Firn) -> Callable[..., str]:
    """Runs a command that must succeed and gives its output."""

    def run(*args: str, stdin: bytes | str | None = None) -> str:
        result = firn(*args, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture
def documents(firn: Firn) -> Callable[..., list[Any]]:
    """Runs a command with --json, whatever its exit code, and gives the documents."""

    def run(*args: str, stdin: bytes | str | None = None) -> list[Any]:
        return [json.loads(line) for line in firn(*args, "--json", stdin=stdin).stdout.splitlines()]

    return run


@pytest.fixture
def process(data: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `python -m firnmq` with pipes; what is still running after the test is killed."""
    with ExitStack() as stack:

        def start(*args: str) -> subprocess.Popen[str]:
            environment = {**os.environ, "FIRN_DATA": str(data), "PYTHONUNBUFFERED": "1"}
            started = subprocess.Popen(
                [sys.executable, "-c", _LAUNCH, *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            stack.enter_context(started)
            stack.callback(started.kill)
            return started

        yield start
