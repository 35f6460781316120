"""Queries end well: with LIMIT, and by Ctrl-C while Spark works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq import open as open_store

pytestmark = pytest.mark.streaming

TIMEOUT_S = 300
_LAUNCH = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "firnmq", *sys.argv[1:]])
"""
"""A shell lets its background jobs ignore Ctrl-C, and what they start inherits that."""
_ENDLESS = "SELECT count(DISTINCT a.value, b.value) FROM edge a JOIN edge b ON a.offset < b.offset"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stops") / "data"
    with open_store(path) as store:
        topic = store.create_topic("edge", shards=2)
        for shard in range(2):
            topic.append([b"%d" % number for number in range(50_000)], shard=shard)
    return path


@pytest.fixture
def firn(data: Path) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for each in started:
        if each.poll() is None:
            os.killpg(each.pid, signal.SIGKILL)
            each.communicate()


def start(started: list[subprocess.Popen[str]], *args: str) -> subprocess.Popen[str]:
    """A command in a process group of its own, as a terminal starts it."""
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCH, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    started.append(process)
    return process


def test_a_query_with_a_limit_prints_rows_and_nothing_else(firn, data: Path) -> None:
    done = start(firn, "lake", "sql", "SELECT value FROM edge LIMIT 3", "--data", str(data))
    out, error = done.communicate(timeout=TIMEOUT_S)
    assert (done.returncode, len(out.splitlines()), error) == (0, 4, "")


def test_ctrl_c_while_spark_works_is_one_line(firn, data: Path) -> None:
    """1. A query that would take hours is begun. 2. Its Python workers are there. 3. Ctrl-C, which
    a terminal sends to the whole group."""
    process = start(firn, "lake", "sql", _ENDLESS, "--data", str(data))
    deadline = time.monotonic() + TIMEOUT_S
    while not _has_workers(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, error = process.communicate(timeout=TIMEOUT_S)
    said = "stopped: the query was given up; it changes nothing\n"
    assert (process.returncode, out, error) == (130, "", said)


def test_ctrl_c_during_a_sync_that_follows_is_told_at_once(firn, data: Path) -> None:
    """1. A round is under way. 2. Ctrl-C is told at once. 3. The second one ends the command."""
    soon = ("--follow", "--commit-interval", "0.1")
    process = start(firn, "lake", "sync", "edge", *soon, "--data", str(data))
    deadline = time.monotonic() + TIMEOUT_S
    while not _has_workers(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    assert process.stderr is not None
    said = process.stderr.readline()
    assert said == "stopping after the round under way; Ctrl-C again ends now\n"
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=TIMEOUT_S)
    said = r"stopped: [\d,]+ rows committed; the next sync goes on after them\n"
    assert process.returncode == 130
    assert re.fullmatch(said, error)


def test_ctrl_c_before_a_sync_that_follows_has_begun_ends_it(firn, data: Path) -> None:
    process = start(firn, "lake", "sync", "edge", "--follow", "--data", str(data))
    deadline = time.monotonic() + TIMEOUT_S
    while not _has_java(process.pid):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    _, error = process.communicate(timeout=TIMEOUT_S)
    said = "stopped: 0 rows committed; the next sync goes on after them\n"
    assert (process.returncode, error) == (130, said)


def _has_java(leader: int) -> bool:
    children = Path(f"/proc/{leader}/task").glob("*/children")
    return any(each.read_text().strip() for each in children)


def _has_workers(leader: int) -> bool:
    """Whether Spark's daemon for Python workers runs below a process."""
    parents: dict[int, int] = {}
    daemons = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            stat = (entry / "stat").read_text()
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        if b"\0-m\0firnmq.lake.daemon" in command:  # Java has the name in its settings.
            daemons.append(int(entry.name))
    for process in daemons:
        while process in parents:
            process = parents[process]
            if process == leader:
                return True
    return False
