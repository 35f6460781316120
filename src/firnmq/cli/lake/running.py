"""Work on Spark that Ctrl-C ends in one line.

Spark's own handler of Ctrl-C talks to Java over the connection that the interrupted code is using,
and both fail with stacks of errors. So the work is done in a thread of its own, which makes Spark
install no handler, and the main thread waits for it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from subprocess import TimeoutExpired
from threading import Event, Thread
from typing import TYPE_CHECKING, Generic, TypeVar

from firnmq.interrupts import on_new_line
from firnmq.lake.jobs.spark_internals import active_context, forget_counters, java_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firnmq.lake.jobs.runner import Watch

T = TypeVar("T")

_LOOK_S = 0.25
_JAVA_ENDS_S = 10.0
_WORK_ENDS_S = 5.0
_STOPPING = "stopping after the round under way; Ctrl-C again ends now\n"


class _Work(Generic[T]):
    """A call in a thread, and what came of it."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self.result: list[T] = []
        self.error: BaseException | None = None
        self.thread = Thread(target=self._run, name="firn-spark", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.result.append(self._function())
        except BaseException as error:  # The main thread raises it.
            self.error = error


def interruptible(function: Callable[[], T], look: Callable[[], None] = lambda: None) -> T:
    """The function's result. Ctrl-C ends Spark and raises KeyboardInterrupt; `look` is called now
    and then while the work goes on."""
    work = _Work(function)
    try:
        while work.thread.is_alive():
            work.thread.join(_LOOK_S)
            look()
    except KeyboardInterrupt:
        _end_spark()
        work.thread.join(_WORK_ENDS_S)
        raise
    if work.error is not None:
        raise work.error
    return work.result[0]


@contextmanager
def finishing(stop: Event, has_begun: Event) -> Iterator[None]:
    """Ctrl-C and SIGTERM set the event, so that a round under way is finished; Ctrl-C says so at
    once. After it the context ends with KeyboardInterrupt. A second one, and a Ctrl-C before the
    work has begun, are that at once."""
    numbers: list[int] = []

    def note(number: int, _: object) -> None:
        if stop.is_set() or (number == signal.SIGINT and not has_begun.is_set()):
            raise KeyboardInterrupt
        numbers.append(number)
        stop.set()
        if number == signal.SIGINT:  # Not through click: the code that is interrupted may print.
            os.write(2, on_new_line(_STOPPING).encode())

    before = {each: signal.signal(each, note) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in numbers:
        raise KeyboardInterrupt


@contextmanager
def task_progress(title: str) -> Iterator[Watch | None]:
    """Shows tasks done and to do, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    bar = Progress(
        SpinnerColumn(),
        TextColumn(title),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("tasks"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def watch_query(spark: SparkSession, watch: Watch) -> None:
    """Tells how many tasks of the stages under way are done."""
    from py4j.protocol import Py4JError

    try:
        tracker = spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(each) for each in tracker.getActiveStageIds()]
    except (Py4JError, AttributeError):
        return  # The query has just ended, and its session may have stopped: it has no tracker.
    known = [each for each in stages if each is not None]
    if known:
        watch(sum(each.numCompletedTasks for each in known), sum(each.numTasks for each in known))


def _end_spark() -> None:
    """Ends this process's own Java, which takes the tasks with it, and says nothing."""
    logging.disable(logging.CRITICAL)
    context = active_context()
    if context is not None:
        with suppress(Exception):  # It may be gone already.
            context.setLogLevel("OFF")
    forget_counters()
    java = java_process()
    if java is not None:
        java.terminate()
        try:
            java.wait(_JAVA_ENDS_S)
        except TimeoutExpired:
            java.kill()
