"""A process that answers a node's questions about the lake: SQL, and the state of tables.

Spark and pyiceberg are large and busy: in a process of their own they neither stop the node's event
loop nor fill its memory, and a query that takes too long ends with the process. Questions come as
lines of JSON on standard input, answers go as lines to standard output. The process ends when its
input does, and with it the Java that it has started.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from firnmq.errors import FirnError, InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MASTER: Final = "local[*,4]"
_CELL_CHARS_MAX: Final = 4_000
_SNAPSHOTS_MAX: Final = 50


class Question(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    """sql or table."""
    options: dict[str, str]
    """Of the data source: the node's addresses, and its token if it needs one."""
    topics: list[str] = []
    query: str = ""
    max: int = 200


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A state of a table."""

    snapshot_id: str
    """As text: it is larger than what browsers count to."""
    committed_ms: int
    operation: str
    added_rows: int
    total_rows: int


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    failure: str | None = None
    is_wrong: bool = False
    """Whether the question was wrong, rather than the lake."""
    columns: list[str] = []
    rows: list[list[Any]] = []
    has_more: bool = False
    seconds: float = 0.0
    table: dict[str, Any] | None = None
    snapshots: list[Snapshot] = []


class Answering:
    def __init__(self) -> None:
        self._spark: SparkSession | None = None

    def answer(self, question: Question) -> Reply:
        begun_s = time.monotonic()
        try:
            if question.kind == "table":
                return self._table(question)
            return self._sql(question, begun_s)
        except FirnError as error:
            return Reply(failure=str(error), is_wrong=isinstance(error, InvalidArgument))

    def _sql(self, question: Question, begun_s: float) -> Reply:
        from firnmq.lake.jobs.query import checked_topics, run_query
        from firnmq.lake.jobs.restricted import check_reading
        from firnmq.lake.jobs.results import named_errors, plain

        check_reading(question.query)
        query = question.query.rstrip().rstrip(";")
        # The node has said which topics there are; nothing else is a table.
        known = {name: value for name, value in question.options.items() if name != "bootstrap"}
        checked_topics(query, known, question.topics)
        with named_errors():
            found = run_query(self._session(), query, question.options, question.topics)
            collected = found.limit(question.max + 1).collect()
        kinds = [field.dataType for field in found.schema.fields]
        rows = [
            [_cell(plain(value, kind)) for value, kind in zip(row, kinds, strict=True)]
            for row in collected
        ]
        return Reply(
            columns=found.columns,
            rows=rows[: question.max],
            has_more=len(rows) > question.max,
            seconds=round(time.monotonic() - begun_s, 3),
        )

    def _session(self) -> SparkSession:
        if self._spark is None:
            from firnmq.lake.jobs.restricted import SETTINGS
            from firnmq.lake.jobs.session import spark_session

            settings = {
                **SETTINGS,
                "spark.ui.enabled": "false",
                "spark.sql.shuffle.partitions": "8",
                "spark.python.daemon.module": "firnmq.lake.daemon",
            }
            self._spark = spark_session(
                "firn console", master=_MASTER, settings=settings, is_quiet=True
            )
        return self._spark

    def _table(self, question: Question) -> Reply:
        from firnmq.lake.jobs.status import table_status
        from firnmq.lake.plans.places import make_plan
        from firnmq.lake.tables.catalogs.catalog import OpenCatalog
        from firnmq.lake.tables.table import find_table

        options = {**question.options, "topic": question.topics[0]}
        plan = make_plan(options)
        status = msgspec.to_builtins(table_status(plan, options))
        snapshots: list[Snapshot] = []
        if plan.table is not None:
            with OpenCatalog(plan.table, options) as catalog:
                table = find_table(catalog, plan.topic, plan.topic_id)
                if table is not None:
                    newest = sorted(
                        table.iceberg.metadata.snapshots, key=lambda each: -each.timestamp_ms
                    )
                    snapshots = [_snapshot(each) for each in newest[:_SNAPSHOTS_MAX]]
        return Reply(table=status, snapshots=snapshots)


def _snapshot(found: Any) -> Snapshot:
    summary = found.summary
    totals = {} if summary is None else summary.additional_properties
    return Snapshot(
        snapshot_id=str(found.snapshot_id),
        committed_ms=found.timestamp_ms,
        operation="" if summary is None else summary.operation.value,
        added_rows=int(totals.get("added-records", 0)),
        total_rows=int(totals.get("total-records", 0)),
    )


def _cell(value: Any) -> Any:
    """A value that a page can show: text is shortened, and numbers that JavaScript would round are
    text."""
    if isinstance(value, str) and len(value) > _CELL_CHARS_MAX:
        return value[:_CELL_CHARS_MAX] + "…"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)
    if isinstance(value, list | dict):
        text = msgspec.json.encode(value).decode()
        return text if len(text) <= _CELL_CHARS_MAX else text[:_CELL_CHARS_MAX] + "…"
    return value


def main() -> None:
    # Libraries and Java write to standard output; what the node reads is a descriptor of its own.
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)
        questions: SimpleQueue[bytes] = SimpleQueue()

        def read() -> None:
            for line in sys.stdin.buffer:
                questions.put(line)
            os._exit(0)  # The node has gone, or has given the question up.

        threading.Thread(target=read, daemon=True).start()
        answering = Answering()
        while True:
            question = msgspec.json.decode(questions.get(), type=Question)
            answers.write(msgspec.json.encode(answering.answer(question)) + b"\n")
            answers.flush()


if __name__ == "__main__":
    main()
