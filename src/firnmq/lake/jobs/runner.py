"""Runs tasks on Spark, which schedules and retries them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

import msgspec

from firnmq.lake.jobs.convert import Conversion, Task, run_task
from firnmq.lake.jobs.sync import ConversionFailed
from firnmq.lake.tables.files.rewrite import Rewrite, Rewritten, run_rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Watch = Callable[[int, int], None]
"""Called with how many tasks are done, and how many there are."""

_POLL_S: Final = 0.25
_NO_FIRN: Final = "No module named 'firnmq'"


class SparkRunner:
    """Runs pieces of work as the tasks of a Spark job."""

    def __init__(self, spark: SparkSession, watch: Watch | None = None) -> None:
        self._spark = spark
        self._watch = watch

    def run(self, tasks: Sequence[Task]) -> list[Conversion]:
        done = self._run(run_task, tasks, f"firn lake sync {tasks[0].split.topic}")
        return [msgspec.msgpack.decode(each, type=Conversion) for each in done]

    def rewrite(self, work: Sequence[Rewrite]) -> list[Rewritten]:
        title = "firn lake compact"
        if work and work[0].removals:
            title = "firn lake sync: deletions"
        done = self._run(run_rewrite, work, title)
        return [msgspec.msgpack.decode(each, type=Rewritten) for each in done]

    def _run(
        self, function: Callable[[bytes], bytes], work: Sequence[object], title: str
    ) -> list[bytes]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        context = self._spark.sparkContext
        group = f"firn-{secrets.token_hex(8)}"
        raw = [msgspec.msgpack.encode(each) for each in work]
        try:
            context.setJobGroup(group, title, interruptOnCancel=True)
            with self._watching(group, len(raw)):
                done: list[bytes] = context.parallelize(raw, len(raw)).map(function).collect()
                return done
        except (Py4JError, PySparkException) as error:
            raise ConversionFailed(f"{title} failed: {_reason(error)}") from error
        except BaseException:
            context.cancelJobGroup(group)  # Ctrl-C, above all.
            raise
        finally:
            with suppress(Py4JError):  # The loss of Spark was already reported.
                context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]

    @contextmanager
    def _watching(self, group: str, count: int) -> Iterator[None]:
        watch = self._watch
        if watch is None:
            yield
            return
        tracker, ended = self._spark.sparkContext.statusTracker(), Event()

        def look() -> None:
            while not ended.wait(_POLL_S):
                stages = [
                    tracker.getStageInfo(stage)
                    for job in tracker.getJobIdsForGroup(group)
                    for stage in getattr(tracker.getJobInfo(job), "stageIds", ())
                ]
                watch(sum(each.numCompletedTasks for each in stages if each is not None), count)

        watch(0, count)
        thread = Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        watch(count, count)


def _reason(error: BaseException) -> str:
    """The last line of a worker's traceback says what went wrong; the rest is Spark's."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith("firnmq.") or "Error: " in line]
    if named and _NO_FIRN in named[0]:
        return f"{named[0]}: executors need firnmq[lake] in the Python that PYSPARK_PYTHON names"
    return (named or lines or [type(error).__name__])[0][:500]
