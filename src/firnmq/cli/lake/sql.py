"""`firn lake sql`: one query over topics, printed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import activity, json_option, print_table, safe_text, tell_when_stopped
from firnmq.cli.lake.options import (
    MASTER_DEFAULT,
    place_options,
    session,
    source_options,
    spark_options,
)
from firnmq.cli.lake.running import interruptible, task_progress, watch_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firnmq.lake.jobs.runner import Watch

_CELL_CHARS_MAX = 200
"""Of a value in a table; with --json it is whole."""


@click.command()
@click.argument("query")
@click.option("--topic", "topics", multiple=True, help="A topic of the query.  [default: found]")
@click.option(
    "-n",
    "--max",
    "limit",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="At most this many rows are printed.",
)
@place_options
@spark_options
@json_option
def sql(
    query: str,
    topics: tuple[str, ...],
    limit: int,
    master: str,
    spark_settings: tuple[str, ...],
    as_json: bool,
    **place: Any,
) -> None:
    """Run a query of Spark SQL over topics and print its rows.

    Every topic is a table. Its columns are shard, offset, timestamp, key, value, headers and tags;
    a topic with a schema has the columns of the schema in place of value. Converted records are
    read from Parquet files, newer ones from the log. The table NAME__dead_letters has the records
    that do not fit the schema of NAME. A name with other characters than letters, digits and _
    needs backticks.
    """
    tell_when_stopped(lambda: "the query was given up; it changes nothing")
    with activity("checking the query"):
        from firnmq.lake.jobs.query import checked_topics, run_query
        from firnmq.lake.jobs.results import named_errors, plain
        from firnmq.lake.plans.places import resolved
    under_way: list[tuple[SparkSession, Watch]] = []

    def answer() -> tuple[list[str], list[list[Any]]]:
        """The names of the columns, and up to one row more than are printed."""
        with session(master, ("spark.sql.shuffle.partitions=8", *spark_settings)) as spark:
            with task_progress("query") as watch, named_errors():
                if watch is not None:
                    under_way.append((spark, watch))
                try:
                    found = run_query(spark, query, options, chosen)
                    collected = found.limit(limit + 1).collect()
                finally:
                    under_way.clear()  # Before the session stops.
            kinds = [field.dataType for field in found.schema.fields]
            return found.columns, [
                [plain(value, kind) for value, kind in zip(row, kinds, strict=True)]
                for row in collected
            ]

    def look() -> None:
        for spark, watch in under_way:
            watch_query(spark, watch)

    with resolved(source_options(changes=False, **place)) as options:
        with activity("checking the query"):
            # A session of the user's own may have tables that are no topics.
            has_others = bool(spark_settings) or master != MASTER_DEFAULT
            chosen = checked_topics(query, options, topics or None, has_other_tables=has_others)
        columns, rows = interruptible(answer, look)
    if as_json:
        for row in rows[:limit]:
            click.echo(json.dumps(dict(zip(columns, row, strict=True))))
    else:
        print_table(
            [name.upper() for name in columns],
            [[_cell(value) for value in row] for row in rows[:limit]],
            grouped=False,
        )
    if len(rows) > limit:
        click.echo(f"there are more than {limit:,} rows; see --max", err=True)


def _cell(value: Any) -> object:
    if value is None:
        return "-"
    if isinstance(value, int):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return safe_text(text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 1] + "…")
