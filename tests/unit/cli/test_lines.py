"""Lines of an input as they come, and what Ctrl-C does between them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from io import BytesIO
from typing import BinaryIO

import pytest

from firnmq.cli.lines import InputLines

Pipe = tuple[BinaryIO, int]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reading, writing = os.pipe()
    with open(reading, "rb") as file:
        yield file, writing
        os.close(writing)


@pytest.fixture(autouse=True)
def _interrupts() -> Iterator[None]:
    """SIGINT as a program has it that a terminal starts, whatever was set before."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_pause_is_told_once_after_lines(pipe: Pipe) -> None:
    file, writing = pipe
    lines = iter(InputLines(file, 100))
    os.write(writing, b"one\ntwo\nthr")
    assert [next(lines), next(lines), next(lines)] == [b"one\n", b"two\n", None]
    os.write(writing, b"ee\n")
    assert [next(lines), next(lines)] == [b"three\n", None]


def test_the_end_completes_the_last_line() -> None:
    assert list(InputLines(BytesIO(b"a\n\nb"), 100)) == [b"a\n", b"\n", b"b"]
    assert list(InputLines(BytesIO(b""), 100)) == []


def test_a_line_above_the_limit_is_given_before_its_end(pipe: Pipe) -> None:
    file, writing = pipe
    os.write(writing, b"x" * 101)
    assert next(iter(InputLines(file, 100))) == b"x" * 101


def test_ctrl_c_waits_until_everything_that_was_read_is_given(pipe: Pipe) -> None:
    file, writing = pipe
    before = signal.getsignal(signal.SIGINT)
    os.write(writing, b"one\ntwo\n")
    with InputLines(file, 100) as source:
        lines = iter(source)
        assert next(lines) == b"one\n"
        os.kill(os.getpid(), signal.SIGINT)
        assert next(lines) == b"two\n"
        with pytest.raises(KeyboardInterrupt):
            next(lines)
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_does_not_wait(pipe: Pipe) -> None:
    file, writing = pipe
    os.write(writing, b"one\n")
    with InputLines(file, 100) as source:
        assert next(iter(source)) == b"one\n"
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
