"""`firn lake sql`: one query over topics, printed."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click

from firnmq.cli.console import json_option, print_table, safe_text
from firnmq.cli.lake_options import place_options, session, source_options, spark_options
from firnmq.errors import FirnError, InvalidArgument, TopicNotFound

_CELL_CHARS_MAX = 200
"""Of a value in a table; with --json it is whole."""


@click.command()
@click.argument("query")
@click.option("--topic", "topics", multiple=True, help="A topic of the query.  [default: found]")
@click.option(
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

    Every topic is a table with the columns shard, offset, timestamp, key, value, headers and tags,
    or those of its schema in place of value: what has been converted is read from Parquet, the
    rest from the log up to this moment. What does not fit a schema is NAME__dead_letters. Names
    with other characters than letters, digits and _ stand in backticks.
    """
    from firnmq.lake.jobs.query import run_query
    from firnmq.lake.plans.places import resolved

    with (
        resolved(source_options(**place)) as options,
        session(master, ("spark.sql.shuffle.partitions=8", *spark_settings)) as spark,
    ):
        with _named_errors():
            found = run_query(spark, query, options, topics or None)
            collected = found.limit(limit + 1).collect()
        rows = [[_plain(value) for value in row] for row in collected[:limit]]
        if as_json:
            for row in rows:
                click.echo(json.dumps(dict(zip(found.columns, row, strict=True))))
        else:
            print_table(
                [name.upper() for name in found.columns],
                [[_cell(value) for value in row] for row in rows],
            )
        if len(collected) > limit:
            click.echo(f"there are more than {limit:,} rows; see --max", err=True)


@contextmanager
def _named_errors() -> Iterator[None]:
    """What is wrong with the query, in Spark's words but without its plans and stacks."""
    from pyspark.errors import PySparkException

    logging.getLogger("SQLQueryContextLogger").disabled = True  # It would say the same as JSON.
    try:
        yield
    except PySparkException as error:
        if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
            raise no_such_topic(error.getMessageParameters() or {}) from error
        raise InvalidArgument("query", spark_reason(str(error))) from error


def no_such_topic(parameters: Mapping[str, str]) -> FirnError:
    """Of a name that Spark does not know, as it quotes it: `a`.`b` where the query has a.b."""
    name = parameters.get("relationName", "").replace("`.`", ".").strip("`")
    if "." not in name:
        return TopicNotFound(name)
    return InvalidArgument(
        "query", f"has no table {name}; a topic's name with a dot stands in backticks: `{name}`"
    )


def spark_reason(text: str) -> str:
    """The part of Spark's message that is for whoever wrote the query."""
    if "Traceback (most recent call last)" in text:
        ours = re.findall(r"^(?:pyspark|firnmq)\.[\w.]+: (.+)$", text, re.MULTILINE)
        if ours:
            return str(ours[-1])
    return text.partition(";\n")[0].strip()


def _plain(value: Any) -> Any:
    """As JSON can say it. Bytes are text where they can be."""
    from datetime import date, datetime
    from decimal import Decimal

    from pyspark.sql import Row

    if isinstance(value, bytes | bytearray):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return bytes(value).hex()
    if isinstance(value, Row):
        return {name: _plain(each) for name, each in value.asDict().items()}
    if isinstance(value, dict):
        return {str(_plain(name)): _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _cell(value: Any) -> object:
    if value is None:
        return "-"
    if isinstance(value, int):
        return value
    text = value if isinstance(value, str) else json.dumps(value)
    return safe_text(text if len(text) <= _CELL_CHARS_MAX else text[: _CELL_CHARS_MAX - 1] + "…")
