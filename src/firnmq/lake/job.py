"""The conversion as a job for `spark-submit`, which brings the session and the master.

    spark-submit --master yarn --py-files firnmq.zip job.py --option bootstrap=node:9092 clicks

Options are those of the data source, and `firn lake sync` says what the others mean.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from firnmq.errors import FirnError
from firnmq.lake.places import resolved
from firnmq.lake.runner import SparkRunner
from firnmq.lake.session import spark_session
from firnmq.lake.source import OptionsSource
from firnmq.lake.sync import SyncSettings, TopicSync


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    options = dict(pair.partition("=")[::2] for pair in given.option)
    settings = SyncSettings(
        commit_bytes=given.commit_bytes,
        is_sealed_only=given.sealed,
        partition=given.partition,
        schema_document=None if given.schema is None else Path(given.schema).read_text("utf-8"),
        schema_kind=given.schema_kind,
        schema_writers={
            int(number): Path(path).read_text("utf-8")
            for number, path in (each.split("=", 1) for each in given.schema_writer)
        },
    )
    spark = spark_session("firn lake sync", master=None)
    try:
        with resolved(options) as named:
            for topic in given.topics:
                _sync({**named, "topic": topic}, settings, SparkRunner(spark))
    except FirnError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    finally:
        spark.stop()
    return 0


def _sync(options: dict[str, str], settings: SyncSettings, runner: SparkRunner) -> None:
    work = TopicSync(
        source=OptionsSource(options), runner=runner, options=options, settings=settings
    )
    try:
        done = work.run()
    finally:
        work.close()
    sys.stdout.write(
        f"{options['topic']}: {done.row_count:,} rows in {done.file_count:,} files, "
        f"{done.rounds:,} commits\n"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="job.py", description=__doc__)
    defaults = SyncSettings()
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--partition", choices=("day", "hour"), default=defaults.partition)
    parser.add_argument("--commit-bytes", type=int, default=defaults.commit_bytes)
    parser.add_argument("--sealed", action="store_true")
    parser.add_argument("--schema", metavar="FILE")
    parser.add_argument("--schema-kind", default=defaults.schema_kind)
    parser.add_argument("--schema-writer", action="append", default=[], metavar="NUMBER=FILE")
    return parser


if __name__ == "__main__":
    sys.exit(main())
