"""The command line: how soon it answers, beside kcat where that is installed."""

import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Bar, Better, Measured, Run, Skipped, benchmark

_FIRN = (str(Path(sys.executable).with_name("firn")),)
_RECORD_COUNT = 1_000
_OFFSET = 500
_CALLS_PER_ROUND = 10
_START_TIMEOUT_S = 60.0


@benchmark("cli_help", unit="ms", bar=Bar.value_at_most(150), better=Better.LOWER)
def cli_help(run: Run) -> Measured:
    """`firn --help`, from the start of the process to its end."""
    return run.repeat(lambda: _median_ms([*_FIRN, "--help"]))


@benchmark("cli_read", unit="ms", bar=Bar.ratio_at_most(1.3), better=Better.LOWER)
def cli_read(run: Run) -> Measured:
    """One record by its offset through a node: `firn read` beside `kcat -C`."""
    if shutil.which("kcat") is None:
        raise Skipped("kcat is not installed")
    with _serving(run.scratch()) as (data, kafka):
        read = [*_FIRN, "read", "t", "--offset", str(_OFFSET), "-n", "1", "-f", r"%v\n"]
        kcat = ["kcat", "-C", "-q", "-b", kafka, "-t", "t", "-p", "0", "-o", str(_OFFSET)]
        ours = _checked_call([*read, "--data", str(data)])
        theirs = _checked_call([*kcat, "-c", "1"])
        return run.alternate(ours=ours, baseline=theirs)


def _checked_call(command: Sequence[str]) -> Callable[[], float]:
    """Measures a command that prints the record's value."""
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert said == f"{_OFFSET}\n", said
    return lambda: _median_ms(command)


def _median_ms(command: Sequence[str]) -> float:
    figures = []
    for _ in range(_CALLS_PER_ROUND):
        started = time.perf_counter()
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
        figures.append((time.perf_counter() - started) * 1000)
    return statistics.median(figures)


@contextmanager
def _serving(directory: Path) -> Iterator[tuple[Path, str]]:
    """A node of its own with a topic; its data directory and its Kafka address."""
    data = directory / "data"
    node = subprocess.Popen(
        [*_FIRN, "serve", "--data", str(data), "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert node.stdout is not None
        for line in node.stdout:
            if line.startswith("stop "):
                break
        where = ("--data", str(data))
        subprocess.run([*_FIRN, "topic", "create", "t", *where], check=True, capture_output=True)
        values = "".join(f"{number}\n" for number in range(_RECORD_COUNT))
        subprocess.run(
            [*_FIRN, "produce", "t", *where],
            input=values,
            text=True,
            check=True,
            capture_output=True,
        )
        yield data, json.loads((data / "node.json").read_text())["kafka"]
    finally:
        node.terminate()
        node.communicate(timeout=_START_TIMEOUT_S)
