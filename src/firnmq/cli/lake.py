"""`firn lake`: topics as Iceberg tables."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import count, json_option, print_json, print_table, time_text
from firnmq.cli.errors import PackageMissing
from firnmq.cli.lake_options import (
    age_option,
    place_options,
    session,
    source_options,
    spark_options,
)
from firnmq.cli.lake_sql import sql
from firnmq.errors import DirectoryInUse, FirnError, TopicNotFound

if TYPE_CHECKING:
    from firnmq.lake.jobs.runner import Watch
    from firnmq.lake.jobs.sync import RoundDone, SyncDone, SyncSettings
    from firnmq.lake.tables.table import TopicTable

_MIB = 1024 * 1024
_PACKAGES = frozenset(
    {"fastavro", "kafka", "obstore", "pandas", "py4j", "pyiceberg", "pyspark", "sqlalchemy"}
)
"""What `firnmq[lake]` brings and these commands import."""


class _LakeGroup(click.Group):
    """Says which packages are missing, and what becomes of work that is stopped."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _PACKAGES:
                raise
            raise PackageMissing(package, "lake") from None
        except FirnError as error:
            hint = _hint_for(error)
            if hint is None:
                raise
            click.echo(f"error: {error}\nhint: {hint}", err=True)
            ctx.exit(1)
        except KeyboardInterrupt:
            if ctx.invoked_subcommand == "sync":
                click.echo("stopped; the next sync goes on after the last commit", err=True)
                ctx.exit(1)
            raise


def _hint_for(error: FirnError) -> str | None:
    """What to do about errors that mean something else here than for other commands."""
    from firnmq.lake.plans.wire import NodeUnreachable

    match error:
        case NodeUnreachable():
            return "firn serve starts a node; --server or FIRN_BOOTSTRAP says where it is"
        case DirectoryInUse():
            return "if a node has it open, go through the node: --server HOST:PORT"
        case TopicNotFound():
            return "firn topic list shows the topics; with --node URL, those of a node"
        case _:
            return None


@click.group(cls=_LakeGroup)
def lake() -> None:
    """Topics as tables: convert, look after, ask. Needs pip install 'firnmq[lake]'."""


@lake.command()
@click.argument("topics", nargs=-1, metavar="[TOPIC]...")
@click.option("--follow", is_flag=True, help="Go on until stopped, instead of catching up once.")
@click.option("--sealed", is_flag=True, help="Only sealed segments: fewer, larger files, later.")
@click.option(
    "--partition",
    type=click.Choice(["day", "hour"]),
    show_default="day",
    help="Of a table that is made: by day or hour of the record's timestamp.",
)
@click.option(
    "--schema",
    "schema_path",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="JSON Schema or Avro schema: values become columns, misfits dead letters.",
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
    """Convert what of the topics is not in their tables yet, exactly once.

    May be killed, repeated and run several times at once. With --follow, one topic. Without
    topics, those that the file given with --config has in [lake.topics.NAME].
    """
    from firnmq.cli.lake_topics import TopicChoices

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
    with _resolved(place) as options:
        for topic in choices.topics:
            _check_topic({**options, "topic": topic}, settings[topic])
        with session(master, spark_settings) as spark:
            for topic in choices.topics:
                named = {**options, "topic": topic}
                _sync_topic(named, settings[topic], spark, follow, as_json)


@lake.command()
@click.argument("topic")
@click.option(
    "--target-bytes",
    type=click.IntRange(min=1),
    default=256 * _MIB,
    show_default=True,
    help="How large a file should be; one of less than three quarters of it is small.",
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
    """Put small files of a topic's table together. Syncs and readers may go on meanwhile."""
    from firnmq.lake.tables.maintain import compact as compact_table

    with _tables(topic, place) as tables, ExitStack() as stack:
        spark = None
        for table in tables:
            done = compact_table(table, lambda _: [], target_bytes=target_bytes, is_dry=True)
            if done.files_before and not dry_run:
                from firnmq.lake.jobs.runner import SparkRunner

                spark = spark or stack.enter_context(session(master, spark_settings))
                with _progress(table.name) as watch:
                    rewrite = SparkRunner(spark, watch).rewrite
                    done = compact_table(table, rewrite, target_bytes=target_bytes)
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
@click.argument("topic")
@click.option(
    "--older-than",
    "older_than_ms",
    callback=age_option,
    default="7d",
    show_default=True,
    help="Snapshots of this age go: 7d, 12h, 0.",
)
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Newest snapshots that stay, however old.",
)
@click.option(
    "--grace",
    "grace_ms",
    callback=age_option,
    default="1d",
    show_default=True,
    help="Files younger than this stay, though no snapshot has them.",
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
    """Forget old snapshots of a topic's table and remove files that none of the others has."""
    from firnmq.lake.tables.maintain import expire as expire_table

    with _tables(topic, place) as tables:
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
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...")
@place_options
@json_option
def status(topics: tuple[str, ...], as_json: bool, **place: Any) -> None:
    """Show how far tables are behind their topics, and how large they are."""
    from firnmq.lake.jobs.status import table_status
    from firnmq.lake.plans.places import make_plan

    with _resolved(place) as options:
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
    options: dict[str, str], settings: SyncSettings, spark: Any, follow: bool, as_json: bool
) -> None:
    from firnmq.lake.jobs.runner import SparkRunner
    from firnmq.lake.jobs.sync import TopicSync
    from firnmq.lake.plans.source import OptionsSource

    topic = options["topic"]

    def tell(done: RoundDone) -> None:
        if follow and as_json:
            print_json({"topic": topic, **_fields(done)})
        elif follow or sys.stderr.isatty():
            click.echo(f"{topic}: {_round_text(done)}", err=not follow)

    with _progress(topic) as watch:
        work = TopicSync(
            source=OptionsSource(options),
            runner=SparkRunner(spark, watch),
            options=options,
            settings=settings,
        )
        try:
            if follow:
                with _stopping() as stop:
                    total = work.follow(stop, tell)
            else:
                total = work.run(tell)
        finally:
            work.close()
    if as_json:
        print_json({"topic": topic, **_fields(total)})
    else:
        _show_sync(topic, total)


@contextmanager
def _resolved(place: dict[str, Any]) -> Iterator[dict[str, str]]:
    """The options; a data directory is open as long as they are used."""
    from firnmq.lake.plans.places import resolved

    with resolved(source_options(**place)) as options:
        yield options


@contextmanager
def _tables(topic: str, place: dict[str, Any]) -> Iterator[list[TopicTable]]:
    """The topic's table, and that of its dead letters."""
    from firnmq.errors import InvalidArgument
    from firnmq.lake.plans.places import make_plan
    from firnmq.lake.plans.plan import Wanted
    from firnmq.lake.tables.catalog import DEAD_LETTERS, OpenCatalog
    from firnmq.lake.tables.table import NoTable, find_table

    with _resolved(place) as options:
        plan = make_plan({**options, "topic": topic}, Wanted(shards=()))
        if plan.table is None:
            raise InvalidArgument("catalog", "is not known; give --catalog and --warehouse")
        with OpenCatalog(plan.table, options) as catalog:
            table = find_table(catalog, topic, plan.topic_id)
            if table is None:
                raise NoTable(plan.table.name, within=plan.table.catalog)
            dead = find_table(catalog, topic, plan.topic_id, namespace=DEAD_LETTERS)
            yield [each for each in (table, dead) if each is not None]


@contextmanager
def _stopping() -> Iterator[Event]:
    """An event that Ctrl-C or SIGTERM sets, so that the round under way is finished."""
    stop = Event()
    before = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _progress(title: str) -> Iterator[Watch | None]:
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
