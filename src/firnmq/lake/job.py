"""The conversion as a job for `spark-submit`, which brings the session and the master.

    spark-submit --master spark://10.0.0.1:7077 job.py --option bootstrap=node:9092 clicks

The Python of driver and executors has `firnmq[lake]` installed, on their machines or by an archive
of the environment; a zip of the sources (`--py-files`) will not do, for FirnMQ and what it needs
have compiled parts.
Options are those of the data source, and `firn lake sync` says what the others mean.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from firnmq.errors import FirnError, InvalidArgument
from firnmq.lake.jobs.runner import SparkRunner
from firnmq.lake.jobs.session import spark_session
from firnmq.lake.jobs.sync import SyncSettings, TopicSync
from firnmq.lake.plans.option_file import OPTION_FILE, options_in
from firnmq.lake.plans.places import make_plan, resolved
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.plans.source import OptionsSource
from firnmq.lake.spark.options import check_names

_SCHEMA_KINDS = ("json", "avro", "avro-confluent")


def main(arguments: Sequence[str] | None = None) -> int:
    """Whatever is wrong is found before Spark takes its time, where it can be, and said in a
    line."""
    try:
        given = _Parser.of_job().parse_args(arguments)
        settings = _settings(given)
        with resolved({**_of_file(given.option_file), **_options(given.option)}) as options:
            named = [{**options, "topic": topic} for topic in given.topics]
            for each in named:
                _check(each, settings)
            spark = spark_session("firn lake sync", master=None)
            try:
                for each in named:
                    _sync(each, settings, SparkRunner(spark))
            finally:
                spark.stop()
    except FirnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def _check(options: dict[str, str], settings: SyncSettings) -> None:
    if settings.schema_document is not None:
        from firnmq.lake.typed import Parser

        Parser.from_document(
            settings.schema_document, settings.schema_kind, writers=settings.schema_writers
        )
    make_plan(options, Wanted(shards=(), is_durable=True))


def _sync(options: dict[str, str], settings: SyncSettings, runner: SparkRunner) -> None:
    work = TopicSync(
        source=OptionsSource(options), runner=runner, options=options, settings=settings
    )
    try:
        done = work.run()
    finally:
        work.close()
    dead = f", {done.dead_letter_count:,} dead letters" if done.dead_letter_count else ""
    sys.stdout.write(
        f"{options['topic']}: {done.row_count:,} rows{dead} in {done.file_count:,} files, "
        f"{done.rounds:,} commits\n"
    )


# What is given ------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Prints an error like the other errors of the job, without the usage."""

    def error(self, message: str) -> NoReturn:
        raise InvalidArgument("arguments", message)

    @classmethod
    def of_job(cls) -> _Parser:
        parser = cls(
            prog="job.py", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
        )
        defaults = SyncSettings()
        parser.add_argument("topics", nargs="+", metavar="TOPIC")
        parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
        parser.add_argument("--option-file", metavar="FILE", default=os.environ.get(OPTION_FILE))
        parser.add_argument("--partition", choices=("day", "hour"), default=defaults.partition)
        parser.add_argument("--commit-bytes", type=int, default=defaults.commit_bytes)
        parser.add_argument("--sealed", action="store_true")
        parser.add_argument("--schema", metavar="FILE")
        parser.add_argument("--schema-kind", choices=_SCHEMA_KINDS)
        parser.add_argument("--schema-writer", action="append", default=[], metavar="NUMBER=FILE")
        return parser


def _settings(given: argparse.Namespace) -> SyncSettings:
    writers = {}
    for text in given.schema_writer:
        number, _, path = text.partition("=")
        if not path or not number.isdecimal():
            raise InvalidArgument("--schema-writer", f"{text!r} is not NUMBER=FILE")
        writers[int(number)] = _text(path)
    if given.schema is None and (writers or given.schema_kind is not None):
        raise InvalidArgument("--schema", "is missing, and there are options about it")
    if given.schema_kind is None and (given.schema or "").endswith(".avsc"):
        raise InvalidArgument(
            "--schema-kind", f"is missing; {given.schema} looks like avro or avro-confluent"
        )
    return SyncSettings(
        commit_bytes=given.commit_bytes,
        is_sealed_only=given.sealed,
        partition=given.partition,
        schema_document=None if given.schema is None else _text(given.schema),
        schema_kind=given.schema_kind or SyncSettings().schema_kind,
        schema_writers=writers,
    )


def _of_file(path: str | None) -> dict[str, str]:
    return {} if path is None else check_names(options_in(Path(path)))


def _options(pairs: Sequence[str]) -> dict[str, str]:
    options = {}
    for text in pairs:
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            # Not as it is: it may be a secret whose name was forgotten.
            raise InvalidArgument("--option", "wants NAME=VALUE, and one has no name or no =")
        options[name.strip()] = value.strip()
    return check_names(options)


def _text(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(path, f"cannot be read as a schema: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
