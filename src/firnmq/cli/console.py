"""What all commands share: their options, opening the store, and writing to the terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from firnmq.cli.errors import NoDataDirectory

if TYPE_CHECKING:
    from firnmq.server import Store

F = TypeVar("F", bound=Callable[..., Any])

_PROGRESS_AFTER_S = 1.0
"""Shorter work needs no progress bar."""

data_option = click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="FIRN_DATA",
    default=Path("firn-data"),
    show_default="./firn-data",
    show_envvar=True,
    help="Data directory.",
)
config_option = click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FIRN_CONFIG",
    show_envvar=True,
    help="TOML file with the section tiering, for work on a data directory.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of text, with the same fields."
)


@contextmanager
def opened(
    data: Path,
    config_path: Path | None = None,
    *,
    create: bool = False,
    background: bool = True,
) -> Iterator[Store]:
    """The store in a data directory, which must be there unless it may be made. The object store
    is that of the file, by default the one that FIRN_CONFIG names, or of FIRN_TIERING_URL."""
    refuse_node()
    if not create and not (data / "db").is_dir():
        raise NoDataDirectory(str(data))
    from firnmq.config import load_store_config, load_tiering_config
    from firnmq.server import LocalStore, Store
    from firnmq.server.tier import existing_object_store

    node_file = os.environ.get("FIRN_CONFIG")
    if config_path is None and node_file:
        config_path = Path(node_file)
    # What is in the object store is read, but a short command begins no upload.
    local = LocalStore(
        data,
        config=load_store_config(),
        background=background,
        tiering=load_tiering_config(path=config_path),
        moves=False,
        open_objects=existing_object_store,
    )
    with Store(local) as store:
        yield store


def refuse_node() -> None:
    """Ends a command that works on a data directory but was told to go through a node."""
    root = click.get_current_context().find_root()
    if root.get_parameter_source("node") is ParameterSource.COMMANDLINE:
        raise click.UsageError(
            "this command works on a data directory; with --node there are config, delete, group, "
            "produce, segments, status, tail, tier, topic and user"
        )


def print_json(document: object) -> None:
    """One JSON document on one line."""
    import msgspec

    click.echo(msgspec.json.encode(document))


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns as wide as they need to be; numbers to the right. Never wraps, so it can be cut."""
    cells = [["" if cell is None else _cell(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    is_number = [
        bool(rows) and all(isinstance(row[at], int) for row in rows if row[at] is not None)
        for at in range(len(headings))
    ]
    for line in (headings, *cells):
        padded = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, is_number, strict=True)
        ]
        click.echo("  ".join(padded).rstrip())


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        return str(value)
    return f"{value:,}"


def count(number: int, thing: str) -> str:
    """`1 record`, `2 records`, `2 batches`, `2 copies`."""
    if thing.endswith("py"):
        plural = f"{thing.removesuffix('y')}ies"
    else:
        plural = thing + ("es" if thing.endswith("ch") else "s")
    return f"{number:,} {thing if number == 1 else plural}"


def safe_text(raw: bytes | str | None) -> str:
    """Bytes for a terminal: text as it is, everything that could command the terminal escaped."""
    if raw is None:
        return "-"
    text = raw.decode("utf-8", "backslashreplace") if isinstance(raw, bytes) else raw
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # A byte that was not UTF-8, carried as a surrogate.
        return f"\\x{ord(character) - 0xDC00:02x}"
    return character.encode("unicode_escape").decode("ascii")


def time_text(timestamp_ms: int) -> str:
    """A timestamp as ISO 8601 in UTC; one that no calendar has, as its number."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def progress_bar(title: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with the amount done so far.

    Shows a bar on standard error once the work has taken a moment, if that is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from time import monotonic

    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn(title),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=total)
    began, is_shown = monotonic(), False

    def update(done: int) -> None:
        nonlocal is_shown
        if not is_shown and monotonic() - began >= _PROGRESS_AFTER_S:
            bar.start()
            is_shown = True
        bar.update(task, completed=done)

    try:
        yield update
    finally:
        bar.stop()
