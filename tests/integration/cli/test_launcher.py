"""The launcher `firn`: a node answers short reads, Python does everything else, and both print the
same."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

TIMEOUT_S = 60
LAUNCHER = Path(sys.executable).with_name("firn")
PYTHON = Path(sys.executable).with_name("firn-python")

pytestmark = pytest.mark.skipif(
    LAUNCHER.read_bytes()[:4] != b"\x7fELF", reason="the launcher is not compiled"
)

ANSWERED_BY_THE_NODE = (
    ("read", "t", "-n", "1"),
    ("read", "t", "-n", "3", "--offset", "1"),
    ("read", "t", "--offset=2", "-n1", "-f", r"%t %p %o %k %v %g %h %K %S %T\n"),
    ("read", "t", "--max=100", "--json"),
    ("read", "--key", "ann", "t"),
    ("read", "t", "--key", "ann", "--all", "-n", "5", "-f", "%o %v\n\u2192\x01"),
    ("read", "t", "--tag", "snow", "-n", "9"),
    ("read", "t", "--since", "1970-01-02", "--until", "100d", "-n", "9"),
    ("read", "t", "-n", "1", "--shard", "0", "--offset", "-1"),
    ("read", "t", "-n", "2", "--offset", "end"),
    ("read", "-n", "2", "--", "t"),
    ("read", "t", "-n", "2", "-f", '"\\t'),
)
LEFT_TO_PYTHON = (
    ("read", "t"),
    ("read", "t", "-n", "101"),
    ("read", "t", "--key", "ann", "--all"),
    ("read", "t", "-n", "0"),
    ("read", "t", "-n", "x"),
    ("read", "t", "-n", "1", "--offset", "99"),
    ("read", "t", "-n", "1", "--offset", "soon"),
    ("read", "t", "-n", "1", "-f", "%z"),
    ("read", "t", "-n", "1", "-f", "%o", "--json"),
    ("read", "t", "--key", "nobody"),
    ("read", "t", "--key", "nobody", "--json"),
    ("read", "t", "-n", "1", "--shard", "7"),
    ("read", "t", "-n", "1", "--colour"),
    ("read", "t", "u", "-n", "1"),
    ("read", "absent", "-n", "1"),
    ("read", "-n", "1"),
    ("read", "t", "-n", "1", "--help"),
    ("read", "t", "-h"),
    ("read", "t", "-n", "1", "--node", "http://127.0.0.1:1"),
    ("read", "t", "-n", "1", "--data", "elsewhere"),
    ("read", "t", "-n", "1", "-f", "--data", "elsewhere"),
    ("read",),
    ("reed", "t"),
    ("topic", "list"),
    ("--version",),
    (),
)

Run = Callable[..., subprocess.CompletedProcess[bytes]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a node with a topic."""
    data = tmp_path_factory.mktemp("launcher") / "data"
    node = subprocess.Popen(
        [PYTHON, "serve", "--data", str(data), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert node.stdout is not None
        assert any(line.startswith("stop ") for line in node.stdout)
        for command in (
            ("topic", "create", "t"),
            ("produce", "t", "minus four", "--key", "ann", "--tag", "snow"),
            ("produce", "t", "\u2603 \x1b[31m", "--key", "ben", "--header", "a=b"),
            ("produce", "t", "minus six", "--key", "ann"),
        ):
            subprocess.run([PYTHON, *command, "--data", str(data)], check=True, capture_output=True)
        yield data
    finally:
        node.terminate()
        node.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def start(
        program: Path, *arguments: str, **variables: str
    ) -> subprocess.CompletedProcess[bytes]:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("FIRN_")}
        return subprocess.run(
            [program, *arguments],
            capture_output=True,
            cwd=tmp_path,
            env={**environment, **variables},
            timeout=TIMEOUT_S,
        )

    return start


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A launcher that finds no Python to start."""
    copied = shutil.copy(LAUNCHER, tmp_path / "firn")
    return Path(copied)


@pytest.mark.parametrize("arguments", ANSWERED_BY_THE_NODE, ids=" ".join)
def test_a_node_answers_what_the_command_prints(
    arguments: tuple[str, ...], served: Path, run: Run, alone: Path
) -> None:
    # `alone` could not start Python: what it prints comes from the node.
    expected = run(PYTHON, *arguments, FIRN_DATA=str(served))
    assert expected.returncode == 0, expected.stderr
    found = run(alone, *arguments, FIRN_DATA=str(served))
    assert (found.returncode, found.stdout, found.stderr) == (0, expected.stdout, b"")


@pytest.mark.parametrize("arguments", LEFT_TO_PYTHON, ids=" ".join)
def test_everything_else_is_left_to_python(
    arguments: tuple[str, ...], served: Path, run: Run, alone: Path
) -> None:
    expected = run(PYTHON, *arguments, FIRN_DATA=str(served))
    found = run(LAUNCHER, *arguments, FIRN_DATA=str(served))
    for side in (expected, found):  # A refused connection names no port of its own.
        assert b"Traceback" not in side.stderr
    assert (found.returncode, found.stdout, found.stderr) == (
        expected.returncode,
        expected.stdout,
        expected.stderr,
    )
    assert b"cannot start firn-python" in run(alone, *arguments, FIRN_DATA=str(served)).stderr


def test_the_directory_is_named_as_for_every_command(served: Path, run: Run, alone: Path) -> None:
    read = ("read", "t", "-n", "1", "-f", "%v")
    for target in (("--data", str(served)), (f"--data={served}",), ("--data", f"{served}/")):
        assert run(alone, *read, *target).stdout == b"minus four"
        assert run(alone, *read, *target, FIRN_DATA="/elsewhere").stdout == b"minus four"
    (alone.parent / "firn-data").symlink_to(served)
    assert run(alone, *read).stdout == b"minus four"
    # FIRN_NODE counts more than the directory; an unknown variable is told by Python.
    for variable in ("FIRN_NODE", "FIRN_NOD"):
        left = run(alone, *read, **{variable: "http://127.0.0.1:1"})
        assert b"cannot start firn-python" in left.stderr


def test_a_node_that_serves_another_directory_is_not_believed(
    served: Path, run: Run, tmp_path: Path
) -> None:
    # A crash left node.json behind, and another node has the port now.
    stale = tmp_path / "stale"
    run(PYTHON, "topic", "create", "t", "--data", str(stale))
    run(PYTHON, "produce", "t", "of the stale directory", "--data", str(stale))
    shutil.copy(served / "node.json", stale)
    found = run(LAUNCHER, "read", "t", "-n", "1", "-f", "%v", "--data", str(stale))
    assert (found.returncode, found.stdout) == (0, b"of the stale directory")


@pytest.mark.parametrize(
    "answer",
    (
        b"",
        b"nonsense",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\n\r\nno length",
        b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 5\r\n\r\nwrong",
    ),
)
def test_an_answer_that_is_not_whole_is_not_printed(
    answer: bytes, served: Path, run: Run, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    run(PYTHON, "topic", "create", "t", "--data", str(data))
    run(PYTHON, "produce", "t", "stored", "--data", str(data))
    with _fake_node(data) as listener:
        started = subprocess.Popen(
            [LAUNCHER, "read", "t", "-n", "1", "-f", "%v", "--data", str(data)],
            stdout=subprocess.PIPE,
        )
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(answer)
        # node.json names a process that has not locked the directory: Python opens it.
        assert started.communicate(timeout=TIMEOUT_S)[0] == b"stored"


def test_ctrl_c_before_the_answer_says_so(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with _fake_node(data) as listener:
        started = subprocess.Popen(
            [LAUNCHER, "read", "t", "-n", "1", "--data", str(data)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        connection, _ = listener.accept()
        with connection:
            assert connection.recv(65536)  # It has asked, and waits.
            started.send_signal(signal.SIGINT)
            out, error = started.communicate(timeout=TIMEOUT_S)
    assert (started.returncode, out, error) == (130, b"", b"stopped: 0 records read\n")


def test_a_reader_that_has_gone_is_no_error(served: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [LAUNCHER, "read", "t", "-n", "1", "--data", str(served)],
            stdout=write_end,
            stderr=subprocess.PIPE,
            timeout=TIMEOUT_S,
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def _fake_node(data: Path) -> closing[socket.socket]:
    """A listener that node.json names, without the directory's lock."""
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    address = {"http": f"http://127.0.0.1:{port}", "kafka": "x:1", "pid": 1, "token_file": None}
    (data / "node.json").write_text(json.dumps(address))
    return closing(listener)
