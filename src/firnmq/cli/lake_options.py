"""Options that all `firn lake` commands share: which topic, from where, and whose table."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from firnmq.cli.errors import NoDataDirectory
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
        "--bootstrap",
        "server",
        metavar="HOST:PORT",
        envvar="FIRN_BOOTSTRAP",
        show_envvar=True,
        help="Kafka address of a running node.",
    ),
    click.option(
        "--store", metavar="URL", help="Object store to read without a node: s3://bucket/prefix."
    ),
    click.option("--cluster", help="Which cluster of the object store, if it has several."),
    click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FIRN_DATA",
        default=Path("firn-data"),
        show_default="./firn-data",
        show_envvar=True,
        help="Data directory, where neither --server nor --store is given.",
    ),
    click.option(
        "--catalog",
        metavar="URL",
        help="sqlite:////path/catalog.db, or a REST catalog.  [default: the node's]",
    ),
    click.option(
        "--warehouse",
        metavar="URL",
        help="Folder of the tables: file:///path or s3://bucket/prefix; with a REST catalog, "
        "its name for one of its own.  [default: the node's]",
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
    return function


def spark_options(function: F) -> F:
    for option in reversed(_SPARK_OPTIONS):
        function = option(function)
    return function


def source_options(
    *,
    server: str | None,
    store: str | None,
    cluster: str | None,
    data: Path,
    catalog: str | None,
    warehouse: str | None,
    others: tuple[str, ...],
    config_path: Path | None,
) -> dict[str, str]:
    """The options as the data source has them, without the topic."""
    given = {"catalog": catalog, "warehouse": warehouse, "cluster": cluster}
    options = _of_tiering(config_path)
    if server is not None:
        options["bootstrap"] = server
    elif store is not None:
        options["store"] = store
    elif (data / "db").is_dir():
        options["data"] = str(data)
    else:
        raise NoDataDirectory(str(data))
    admin = click.get_current_context().find_root().params.get("node")
    if admin is not None and server is not None:
        options["admin"] = admin
    if "data" in options and config_path is not None:
        options["config"] = str(config_path)
    elif "store" in options:
        options |= _of_lake(config_path)
    options |= {name: value for name, value in given.items() if value is not None}
    options |= _checked(pairs(others, "--option"))
    is_named = options.get("catalog", "").startswith(("http://", "https://"))
    if not is_named and "://" not in options.get("warehouse", "://"):
        raise InvalidArgument(
            "warehouse", f"{options['warehouse']!r} is not like file:///path or s3://bucket/prefix"
        )
    return options


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
    """Says what is waited for, if standard error is a terminal."""
    with ExitStack() as stack:
        if sys.stderr.isatty():
            from rich.console import Console

            stack.enter_context(Console(stderr=True).status(f"Spark starts on {master} …"))
        yield


def _is_no_interrupt(record: logging.LogRecord) -> bool:
    """Py4J logs a stack for Ctrl-C, which is no error; what others log does not come by here."""
    return not (record.exc_info and record.exc_info[0] is KeyboardInterrupt)


@contextmanager
def session(master: str, settings: tuple[str, ...]) -> Iterator[SparkSession]:
    """A Spark session for one command."""
    from firnmq.lake.jobs.session import spark_session

    quiet = {"spark.ui.enabled": "false"}
    if master.startswith("local"):
        quiet |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    chosen = {**quiet, **pairs(settings, "--spark-conf")}
    logging.getLogger().addFilter(_is_no_interrupt)
    with _starting(master):
        spark = spark_session("firn lake", master=master, settings=chosen, is_quiet=True)
    try:
        yield spark
    finally:
        spark.stop()
