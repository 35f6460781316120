"""Options that all `firn lake` commands share: which topic, from where, and whose table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from firnmq.cli.errors import NoDataDirectory
from firnmq.cli.target import (
    chosen_directory,
    chosen_target,
    is_node_named,
    is_target_typed,
    kafka_address,
    target_options,
)
from firnmq.errors import InvalidArgument

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

F = TypeVar("F", bound=Callable[..., Any])


MASTER_DEFAULT = "local[*,4]"
"""Every core of this machine; a task whose worker dies is tried again."""


def age_option(_: click.Context, param: click.Parameter, text: str) -> int:
    """How long ago, in milliseconds."""
    from firnmq.lake.tables.maintain import age_ms

    try:
        return age_ms(text)
    except InvalidArgument as error:
        raise click.BadParameter(error.reason, param=param) from None


_OPTIONS = (
    click.option(
        "--server",
        metavar="HOST:PORT",
        envvar="FIRN_BOOTSTRAP",
        show_envvar=True,
        help="Kafka address of a node whose HTTP listener this machine cannot reach.",
    ),
    click.option(
        "--store", metavar="URL", help="Object store to read without a node: s3://bucket/prefix."
    ),
    click.option("--cluster", help="Which cluster of the object store, if it has several."),
    click.option(
        "--catalog",
        metavar="URL",
        help="sqlite:////path/catalog.db, or a REST catalog.  [default: the node's]",
    ),
    click.option(
        "--warehouse",
        metavar="URL",
        help="Folder of the tables: file:///path or s3://bucket/prefix; with a REST catalog, "
        "the name of one of its warehouses.  [default: the node's]",
    ),
    click.option(
        "--option",
        "-o",
        "others",
        metavar="NAME=VALUE",
        multiple=True,
        help="Any other option of the data source, such as store.endpoint or warehouse.region.",
    ),
    click.option(
        "--option-file",
        "option_file",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        envvar="FIRN_OPTION_FILE",
        show_envvar=True,
        help="File with such options, one per line: for secrets, since ps shows the command line.",
    ),
    click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path, dir_okay=False, exists=True),
        envvar="FIRN_CONFIG",
        show_envvar=True,
        help="A node's TOML file: how to reach the object store (section tiering), and where the "
        "tables are if no node says it (section lake).",
    ),
)
_SPARK_OPTIONS = (
    click.option(
        "--master",
        default=MASTER_DEFAULT,
        show_default=True,
        help="Where Spark runs: local[2], spark://host:7077, yarn, k8s://…",
    ),
    click.option(
        "--spark-conf",
        "spark_settings",
        metavar="NAME=VALUE",
        multiple=True,
        help="A setting of the Spark session.",
    ),
)


def place_options(function: F) -> F:
    """Adds the options that say where topic and table are, as keyword `place`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return target_options(function)


def spark_options(function: F) -> F:
    for option in reversed(_SPARK_OPTIONS):
        function = option(function)
    return function


def source_options(
    *,
    changes: bool,
    server: str | None,
    store: str | None,
    cluster: str | None,
    catalog: str | None,
    warehouse: str | None,
    others: tuple[str, ...],
    option_file: Path | None,
    config_path: Path | None,
) -> dict[str, str]:
    """The options as the data source has them, without the topic. `changes`: whether the command
    changes something, a table for example."""
    given = {"catalog": catalog, "warehouse": warehouse, "cluster": cluster}
    options = _of_tiering(config_path)
    if store is not None:
        options["store"] = store
    elif server is not None and not _is_overruled("server"):
        if is_node_named():
            options |= _of_node(changes=changes)
        options["bootstrap"] = server
    else:
        options |= _of_target(changes=changes)
    if "data" in options and config_path is not None:
        options["config"] = str(config_path)
    elif "store" in options:
        options |= _of_lake(config_path)
    options |= {name: value for name, value in given.items() if value is not None}
    if option_file is not None:
        from firnmq.lake.plans.option_file import options_in

        options |= _checked(options_in(option_file))
    options |= _checked(pairs(others, "--option"))
    is_named = options.get("catalog", "").startswith(("http://", "https://"))
    if not is_named and "://" not in options.get("warehouse", "://"):
        raise InvalidArgument(
            "warehouse", f"{options['warehouse']!r} is not like file:///path or s3://bucket/prefix"
        )
    return options


def _is_overruled(option: str) -> bool:
    """Whether an option comes from the environment, and the command line names a target."""
    source = click.get_current_context().get_parameter_source(option)
    return source is ParameterSource.ENVIRONMENT and is_target_typed()


def _of_target(*, changes: bool) -> dict[str, str]:
    """A node with its addresses, or a data directory that this process serves temporarily."""
    if chosen_target(changes=changes) is not None:
        return _of_node(changes=changes)
    data = chosen_directory()
    if not (data / "db").is_dir():
        raise NoDataDirectory(str(data))
    return {"data": str(data)}


def _of_node(*, changes: bool) -> dict[str, str]:
    target = chosen_target(changes=changes)
    assert target is not None
    found = {"admin": target.url, "bootstrap": target.kafka or kafka_address(target)}
    if target.token is not None:
        found["admin.token"] = target.token
    return found


def _checked(options: dict[str, str]) -> dict[str, str]:
    """Refuses names that do not exist. Most commands have none to check, and need no Spark."""
    if options:
        from firnmq.lake.spark.options import check_names

        check_names(options)
    return options


def pairs(texts: tuple[str, ...], option: str) -> dict[str, str]:
    """NAME=VALUE, several times."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
        found[name.strip()] = value.strip()
    return found


def _of_tiering(path: Path | None) -> dict[str, str]:
    """How to reach the object store, by a node's own settings and environment."""
    from firnmq.config import load_tiering_config

    tiering = load_tiering_config(path=path)
    names = ("endpoint", "region", "access_key", "secret_key", "session_token")
    found = {f"store.{name}": getattr(tiering, name, None) for name in names}
    options = {name: value for name, value in found.items() if value is not None}
    if tiering.allow_http:
        options["store.allow_http"] = "true"
    return options


def _of_lake(path: Path | None) -> dict[str, str]:
    """Where the tables are, which no node is there to say."""
    from firnmq.config import load_lake_config

    lake = load_lake_config(path=path)
    found = {"catalog": lake.catalog, "warehouse": lake.warehouse}
    return {name: value for name, value in found.items() if value is not None}


@contextmanager
def _starting(master: str) -> Iterator[None]:
    """Shows what is waited for, and for how long, if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(f"starting Spark on {master} (takes half a minute)", total=None)
        yield


@contextmanager
def session(master: str, settings: tuple[str, ...]) -> Iterator[SparkSession]:
    """A Spark session for one command."""
    from firnmq.lake.jobs.session import spark_session

    quiet = {"spark.ui.enabled": "false"}
    if master.startswith("local"):
        quiet["spark.python.daemon.module"] = "firnmq.lake.daemon"
    chosen = {**quiet, **pairs(settings, "--spark-conf")}
    with _starting(master):
        spark = spark_session("firn lake", master=master, settings=chosen, is_quiet=True)
    try:
        yield spark
    finally:
        spark.stop()
