"""`firn lake`: topics as Iceberg tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import (
    count,
    json_option,
    print_json,
    print_table,
    tell_when_stopped,
    time_text,
)
from firnmq.cli.errors import PackageMissing
from firnmq.cli.lake.options import (
    age_option,
    place_options,
    session,
    source_options,
    spark_options,
)
from firnmq.cli.lake.running import finishing, interruptible, task_progress
from firnmq.cli.lake.sql import sql
from firnmq.cli.reports import AS_JSON, report_error
from firnmq.cli.target import target_options
from firnmq.cli.topic_argument import topic_argument
from firnmq.errors import FirnError

if TYPE_CHECKING:
    from firnmq.lake.jobs.sync import RoundDone, SyncDone, SyncSettings
    from firnmq.lake.tables.maintain import Compacted
    from firnmq.lake.tables.table import TopicTable

_MIB = 1024 * 1024


class _LakeGroup(click.Group):
    """Says which packages are missing, and what becomes of work that is stopped."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package in ("", "firnmq"):
                raise
            raise PackageMissing(package, "lake") from None
        except FirnError as error:
            hint = _hint_for(error)
            if hint is None:
                raise
            report_error(error, as_json=ctx.meta[AS_JSON], hint=hint)
            ctx.exit(1)


def _hint_for(error: FirnError) -> str | None:
    """What to do about errors that mean something else here than for other commands."""
    from firnmq.lake.plans.wire import NodeUnreachable
    from firnmq.lake.tables.table import NoTable

    match error:
        case NoTable():
            return "firn lake sync TOPIC makes it"
        case NodeUnreachable():
            return "firn serve starts a node; --node, --data or --server names it"
        case _:
            return None


@click.group(cls=_LakeGroup)
@target_options
def lake() -> None:
    """Topics as tables: convert, maintain and query them. Needs pip install 'firnmq[lake]'."""


@lake.command()
@topic_argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--follow", is_flag=True, help="Continue until stopped.")
@click.option("--sealed", is_flag=True, help="Only sealed segments: fewer, larger files, later.")
@click.option(
    "--partition",
    type=click.Choice(["day", "hour"]),
    show_default="day",
    help="Partitions of a new table: day or hour of the record's timestamp.",
)
@click.option(
    "--schema",
    "schema_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSON Schema or Avro schema: values become columns, other values dead letters.",
)
@click.option(
    "--schema-kind",
    type=click.Choice(["json", "avro", "avro-confluent"]),
    show_default="json",
    help="What the schema is, and how values are encoded.",
)
@click.option(
    "--schema-writer",
    "writers",
    metavar="NUMBER=FILE",
    multiple=True,
    help="avro-confluent: the schema that values with this number were written with.",
)
@click.option(
    "--commit-bytes",
    type=click.IntRange(min=1),
    default=1024 * _MIB,
    show_default=True,
    help="Bytes of log per commit, at most.",
)
@click.option(
    "--commit-interval",
    "commit_interval_s",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    help="With --follow: seconds after which less than that is committed too.",
)
@place_options
@spark_options
@json_option
def sync(
    topics: tuple[str, ...],
    follow: bool,
    sealed: bool,
    partition: str | None,
    schema_path: Path | None,
    schema_kind: str | None,
    writers: tuple[str, ...],
    commit_bytes: int,
    commit_interval_s: float,
    master: str,
    spark_settings: tuple[str, ...],
    as_json: bool,
    **place: Any,
) -> None:
    """Convert new records of topics into their tables, each record exactly once.

    The command may be killed and repeated, and several may run at once. --follow takes one topic.
    Without TOPIC, the topics are those of the sections [lake.topics.NAME] in the file of --config.
    """
    from firnmq.cli.lake.topics import TopicChoices

    choices = TopicChoices(place["config_path"], topics)
    if follow and len(choices.topics) > 1:
        raise click.UsageError("--follow is for one topic; start one for each")
    settings = {
        topic: choices.settings(
            topic,
            partition=partition,
            schema_path=schema_path,
            schema_kind=schema_kind,
            writers=writers,
            commit_bytes=commit_bytes,
            commit_interval_s=commit_interval_s,
            is_sealed_only=sealed,
        )
        for topic in choices.topics
    }
    committed = Counter[str]()
    tell_when_stopped(
        lambda: f"{count(committed.total(), 'row')} committed; the next sync goes on after them"
    )
    with _resolved(place, changes=True) as options:
        for topic in choices.topics:
            _check_topic({**options, "topic": topic}, settings[topic])
        stop, has_begun = Event(), Event()

        def work() -> None:
            with session(master, spark_settings) as spark:
                has_begun.set()
                for topic in choices.topics:
                    named = {**options, "topic": topic}
                    _sync_topic(
                        named, settings[topic], spark, stop if follow else None, committed, as_json
                    )

        with finishing(stop, has_begun) if follow else nullcontext():
            interruptible(work)


@lake.command()
@topic_argument()
@click.option(
    "--target-bytes",
    type=click.IntRange(min=1),
    default=256 * _MIB,
    show_default=True,
    help="Target size of a file; files below three quarters of it are small.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@place_options
@spark_options
@json_option
def compact(
    topic: str,
    target_bytes: int,
    dry_run: bool,
    master: str,
    spark_settings: tuple[str, ...],
    as_json: bool,
    **place: Any,
) -> None:
    """Merge small files of a topic's table, while syncs and readers continue."""
    from firnmq.lake.tables.maintain import compact as compact_table

    tell_when_stopped(lambda: "the table is as it was, or has all its small files put together")

    def compacted(table: TopicTable) -> Compacted:
        done = compact_table(table, lambda _: [], target_bytes=target_bytes, is_dry=True)
        if not done.files_before or dry_run:
            return done
        from firnmq.lake.jobs.runner import SparkRunner

        with session(master, spark_settings) as spark, task_progress(table.name) as watch:
            rewrite = SparkRunner(spark, watch).rewrite
            return compact_table(table, rewrite, target_bytes=target_bytes)

    with _tables(topic, place, changes=not dry_run) as tables:
        for table in tables:
            done = interruptible(partial(compacted, table))
            if as_json:
                print_json({"table": table.name, **_fields(done)})
            elif not done.files_before:
                click.echo(f"{table.name}: no small files to put together")
            else:
                after = "" if dry_run else f" → {count(done.files_after, 'file')}"
                click.echo(
                    f"{table.name}: {count(done.files_before, 'small file')}{after}, "
                    f"{count(done.rows, 'row')}, {done.bytes_before:,} bytes"
                )


@lake.command()
@topic_argument()
@click.option(
    "--older-than",
    "older_than_ms",
    callback=age_option,
    default="7d",
    show_default=True,
    help="Forget snapshots older than this: 7d, 12h, 0.",
)
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Keep this many newest snapshots, however old.",
)
@click.option(
    "--grace",
    "grace_ms",
    callback=age_option,
    default="1d",
    show_default=True,
    help="Keep files younger than this, even if no snapshot has them.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@place_options
@json_option
def expire(
    topic: str,
    older_than_ms: int,
    keep_last: int,
    grace_ms: int,
    dry_run: bool,
    as_json: bool,
    **place: Any,
) -> None:
    """Remove old snapshots of a topic's table, and the files that no other snapshot uses."""
    from firnmq.lake.tables.maintain import expire as expire_table

    with _tables(topic, place, changes=not dry_run) as tables:
        for table in tables:
            done = expire_table(
                table,
                older_than_ms=older_than_ms,
                keep_last=keep_last,
                grace_ms=grace_ms,
                is_dry=dry_run,
            )
            if as_json:
                print_json({"table": table.name, **_fields(done)})
            else:
                would = "would go" if dry_run else "gone"
                click.echo(
                    f"{table.name}: {count(done.snapshots, 'snapshot')} and "
                    f"{count(done.files, 'file')} of {done.file_bytes:,} bytes {would}; "
                    f"{count(done.snapshots_left, 'snapshot')} left, "
                    f"{count(done.young_files, 'file')} waiting"
                )


@lake.command()
@topic_argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@place_options
@json_option
def status(topics: tuple[str, ...], as_json: bool, **place: Any) -> None:
    """Show how far tables are behind their topics, and how large they are."""
    from firnmq.lake.jobs.status import table_status
    from firnmq.lake.plans.places import make_plan

    with _resolved(place, changes=False) as options:
        for topic in topics:
            found = table_status(make_plan({**options, "topic": topic}), options)
            if as_json:
                print_json(found)
            else:
                _show_status(found)


lake.add_command(sql)


# Work ---------------------------------------------------------------------------------------------


def _check_topic(options: dict[str, str], settings: SyncSettings) -> None:
    """Finds out what is wrong with a topic or its schema, before Spark takes its time."""
    from firnmq.lake.plans.places import make_plan
    from firnmq.lake.plans.plan import Wanted

    settings.kept_schema()
    make_plan(options, Wanted(shards=(), is_durable=True))


def _sync_topic(
    options: dict[str, str],
    settings: SyncSettings,
    spark: Any,
    stop: Event | None,
    committed: Counter[str],
    as_json: bool,
) -> None:
    """With an event, goes on until that is set. Counts the rows that are committed."""
    from firnmq.lake.jobs.runner import SparkRunner
    from firnmq.lake.jobs.sync import TopicSync
    from firnmq.lake.plans.source import OptionsSource

    topic = options["topic"]

    def tell(done: RoundDone) -> None:
        committed[topic] += done.row_count
        if stop is None:
            return  # The progress shows the rounds, and the last line their sum.
        if as_json:
            print_json({"topic": topic, **_fields(done)})
        else:
            click.echo(f"{topic}: {_round_text(done)}")

    with task_progress(topic) as watch:
        work = TopicSync(
            source=OptionsSource(options),
            runner=SparkRunner(spark, watch),
            options=options,
            settings=settings,
        )
        try:
            total = work.run(tell) if stop is None else work.follow(stop, tell)
        finally:
            work.close()
    if as_json:
        print_json({"topic": topic, **_fields(total)})
    else:
        _show_sync(topic, total)


@contextmanager
def _resolved(place: dict[str, Any], *, changes: bool) -> Iterator[dict[str, str]]:
    """The options; a data directory is open as long as they are used."""
    from firnmq.lake.plans.places import resolved

    with resolved(source_options(changes=changes, **place)) as options:
        yield options


@contextmanager
def _tables(topic: str, place: dict[str, Any], *, changes: bool) -> Iterator[list[TopicTable]]:
    """The topic's table, and that of its dead letters."""
    from firnmq.errors import InvalidArgument
    from firnmq.lake.plans.places import make_plan
    from firnmq.lake.plans.plan import Wanted
    from firnmq.lake.tables.catalogs.catalog import DEAD_LETTERS, OpenCatalog
    from firnmq.lake.tables.table import NoTable, find_table

    with _resolved(place, changes=changes) as options:
        plan = make_plan({**options, "topic": topic}, Wanted(shards=()))
        if plan.table is None:
            raise InvalidArgument("catalog", "is not known; give --catalog and --warehouse")
        with OpenCatalog(plan.table, options) as catalog:
            table = find_table(catalog, topic, plan.topic_id)
            if table is None:
                raise NoTable(plan.table.name, within=plan.table.catalog)
            dead = find_table(catalog, topic, plan.topic_id, namespace=DEAD_LETTERS)
            yield [each for each in (table, dead) if each is not None]


# Showing ------------------------------------------------------------------------------------------


def _fields(document: object) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(document, str_keys=True)
    return fields


def _round_text(done: RoundDone | SyncDone) -> str:
    dead = f", {count(done.dead_letter_count, 'dead letter')}" if done.dead_letter_count else ""
    if done.deleted_count:
        dead += f", {count(done.deleted_count, 'deleted row')} taken out"
    return (
        f"{count(done.row_count, 'row')}{dead} in {count(done.file_count, 'file')}, "
        f"{done.file_bytes:,} bytes, {done.seconds:.1f} s"
    )


def _show_sync(topic: str, total: SyncDone) -> None:
    if not total.rounds:
        click.echo(f"{topic}: nothing new")
    else:
        click.echo(f"{topic}: {_round_text(total)}, {count(total.rounds, 'commit')}")
    if total.missing_count:
        click.echo(
            f"warning: {count(total.missing_count, 'offset')} had been dropped by retention before "
            "they were converted; lake.required=true makes retention wait",
            err=True,
        )


def _show_status(found: Any) -> None:
    click.echo(f"table     {found.table} in {found.catalog}")
    if not found.exists:
        click.echo("          is not there yet: firn lake sync makes it")
    else:
        committed = "never" if found.committed_ms is None else time_text(found.committed_ms)
        click.echo(f"files     {found.location}")
        click.echo(f"kind      {found.mode}, by {found.partition}")
        click.echo(
            f"size      {count(found.rows, 'row')}, {count(found.files, 'file')}, "
            f"{found.file_bytes:,} bytes, {count(found.snapshots, 'snapshot')}"
        )
        click.echo(f"committed {committed}")
    deletions = count(found.waiting_deletions, "deletion") if found.waiting_deletions else ""
    click.echo(
        f"behind    {count(found.lag, 'offset')}, {found.waiting_bytes:,} bytes of log"
        f"{', ' * bool(deletions)}{deletions}"
    )
    click.echo()
    print_table(
        ("SHARD", "LOG START", "LOG END", "TABLE END", "LAG"),
        [
            (shard.shard, shard.log_start, shard.log_end, shard.table_end, shard.lag)
            for shard in found.shards
        ],
    )
