"""Ctrl-C before a command has begun, and after it has ended: one line and exit code 130."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import firnmq
import firnmq.cli

TIMEOUT_S = 60
FIRN = Path(sys.executable).with_name("firn")
SOURCE = Path(firnmq.cli.__file__).with_name("launcher.c")
SIGNAL = "os.kill(os.getpid(), signal.SIGINT)"


def _interrupted() -> None:
    """Ctrl-C comes before the program's first instruction, and waits as in the launcher."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    os.kill(os.getpid(), signal.SIGINT)


def test_while_python_starts() -> None:
    for program in ([sys.executable, "-m", "firnmq"], [str(FIRN)]):
        done = subprocess.run(
            [*program, "tier", "cost"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            preexec_fn=_interrupted,
        )
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n")


def _run(code: str) -> subprocess.CompletedProcess[str]:
    head = "import atexit, os, signal; from firnmq.interrupts import *\n"
    return subprocess.run(
        [sys.executable, "-c", head + code],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def test_before_and_after_the_work() -> None:
    for code in (
        f"end_on_interrupt(); {SIGNAL}; print('not reached')",
        f"end_on_interrupt()\nwith raising_interrupts(): pass\n{SIGNAL}",
        f"end_on_interrupt(); atexit.register(lambda: {SIGNAL})",
    ):
        done = _run(code)
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "stopped\n"), code


def test_within_the_work_it_is_an_exception() -> None:
    code = (
        "end_on_interrupt()\ntry:\n with raising_interrupts(): "
        f"{SIGNAL}\nexcept KeyboardInterrupt: print('raised')"
    )
    assert _run(code).stdout == "raised\n"


def test_while_the_interpreter_ends_the_result_stays() -> None:
    done = _run(f"atexit.register(lambda: {SIGNAL}); end_on_interrupt(); print('done')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_a_job_in_the_background_ignores_it() -> None:
    done = _run(f"signal.signal(signal.SIGINT, signal.SIG_IGN); end_on_interrupt(); {SIGNAL}")
    assert (done.returncode, done.stderr) == (0, "")


def test_on_a_terminal_the_line_begins_a_new_one() -> None:
    ours, terminal = pty.openpty()
    code = f"from firnmq.interrupts import *; end_on_interrupt(); import os, signal; {SIGNAL}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stderr=terminal,
        timeout=TIMEOUT_S,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert (done.returncode, os.read(ours, 100)) == (130, b"\r\nstopped\r\n")
    os.close(ours)
    os.close(terminal)


def test_a_question_on_an_empty_input_is_not_a_ctrl_c(tmp_path: Path) -> None:
    where = ("--data", str(tmp_path / "data"))
    subprocess.run([FIRN, "topic", "create", "t", *where], check=True, timeout=TIMEOUT_S)
    refused = subprocess.run(
        [FIRN, "topic", "delete", "t", *where],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert refused.returncode == 1
    assert "not confirmed" in refused.stderr
    assert "--yes does not ask" in refused.stderr


def test_a_node_that_is_terminated_while_it_starts_ends_like_later(tmp_path: Path) -> None:
    code = (
        "import os, signal; import firnmq.server.settings as settings; "
        "settings.load_node_config = lambda _: os.kill(os.getpid(), signal.SIGTERM); "
        "from firnmq.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "serve", "--data", str(tmp_path / "data")],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    stored = f"stopped   everything that was acknowledged is stored in {tmp_path / 'data'}\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, stored, "")


def _terminated() -> None:
    """SIGTERM comes before the program's first instruction, and waits as in the launcher."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_node_that_is_terminated_while_python_starts_ends_like_later(tmp_path: Path) -> None:
    stored = f"stopped   everything that was acknowledged is stored in {tmp_path / 'data'}\n"
    for program in ([sys.executable, "-m", "firnmq"], [str(FIRN)]):
        done = subprocess.run(
            [*program, "--data", str(tmp_path / "data"), "serve", "--port", "0"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            preexec_fn=_terminated,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, stored, "")


def test_sigterm_ends_other_commands_as_it_ends_every_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "firnmq", "tier", "cost"],
        capture_output=True,
        timeout=TIMEOUT_S,
        preexec_fn=_terminated,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, b"", b"")


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_launcher_starts_python_with_both_signals_blocked(tmp_path: Path) -> None:
    launcher, python = tmp_path / "firn", tmp_path / "firn-python"
    macros = ("-D_GNU_SOURCE", '-DVERSION="0"')
    subprocess.run(["cc", *macros, str(SOURCE), "-o", str(launcher)], check=True, timeout=TIMEOUT_S)
    show = "import signal; print(*sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))))"
    python.write_text(f"#!{sys.executable}\n{show}\n")
    python.chmod(0o755)
    done = subprocess.run([launcher, "serve"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.stdout.split() == [str(int(each)) for each in (signal.SIGINT, signal.SIGTERM)]


@pytest.mark.parametrize(
    "command", ["recover", "tier status", "tier upload --roll", "verify --deep"]
)
def test_while_the_object_store_does_not_answer(tmp_path: Path, command: str) -> None:
    """1. A directory has a segment in the store, and no local copy of it. 2. Another server takes
    the store's connections and does not answer. 3. Ctrl-C while a command waits for its answer."""
    silent = socket.create_server(("127.0.0.1", 0))
    endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
    data = tmp_path / "data"
    if command != "recover":
        _tiered_directory(data)
    environment = {
        **os.environ,
        "FIRN_DATA": str(data),
        "FIRN_TIERING_URL": "s3://bucket/prefix",
        "FIRN_TIERING_ENDPOINT": endpoint,
        "FIRN_TIERING_REGION": "nowhere",
        "FIRN_TIERING_ALLOW_HTTP": "true",
        "FIRN_TIERING_ACCESS_KEY": "access",
        "FIRN_TIERING_SECRET_KEY": "secret",
        "FIRN_TIERING_TIMEOUT_MS": "600000",
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "firnmq", *command.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with silent, process:
        silent.settimeout(TIMEOUT_S)
        connection, _ = silent.accept()
        with connection:
            connection.settimeout(TIMEOUT_S)
            assert connection.recv(1)  # The command waits for the answer from now on.
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out, len(error.splitlines())) == (130, "", 1)
    assert error.startswith("stopped")


def _tiered_directory(data: Path) -> None:
    """One segment is in a store, and a newer one waits for its upload."""
    url = (data.parent / "store").as_uri()
    with firnmq.open(data, tiering=url) as store:
        options = {"tiering": "on", "local.retention.ms": 0}
        topic = store.create_topic("t", options=options)
        topic.append("cold")
        topic.roll()
        store.upload()
        while topic.status().segments[0].is_local:
            store.upload()  # Drops the local copy as well.
        topic.append("warm")
