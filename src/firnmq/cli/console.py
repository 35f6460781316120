"""What all commands share: their options, opening the store, and writing to the terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from firnmq.errors import InvalidArgument
from firnmq.interrupts import ending_blocked_calls

F = TypeVar("F", bound=Callable[..., Any])

_AGE_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DONE = "firnmq.done"
_PROGRESS_AFTER_S = 1.0
"""Shorter work needs no progress bar."""

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


def print_json(document: object) -> None:
    """One JSON document on one line."""
    import msgspec

    click.echo(msgspec.json.encode(document))


_IDENTIFIERS = frozenset(
    {"SHARD", "SEGMENT", "START", "END", "OFFSET", "BEFORE", "AFTER", "COMMITTED", "EPOCH", "ID"}
)
"""Columns whose numbers name something: they are shown as a command takes them, without commas."""


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, grouped: bool = True
) -> None:
    """Columns as wide as they need to be; numbers to the right. Never wraps: scripts may parse it.

    Counts and sizes have commas, unless `grouped` is False.
    """
    plain = [not grouped or heading in _IDENTIFIERS for heading in headings]
    cells = [
        ["" if cell is None else _cell(cell, plain[at]) for at, cell in enumerate(row)]
        for row in rows
    ]
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
        text = "  ".join(padded).rstrip()
        click.echo(click.style(text, bold=True) if line is headings else text)


def _cell(value: object, is_plain: bool) -> str:
    if is_plain or isinstance(value, bool) or not isinstance(value, int):
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
    from datetime import UTC, datetime

    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_time(option: str, text: str) -> int:
    """Milliseconds from digits, from ISO 8601 (UTC unless it names a zone) or from an age."""
    if text.isdecimal() and text.isascii():
        return int(text)
    unit_ms = _AGE_UNITS_MS.get(text[-1:])
    if unit_ms is not None and text[:-1].isdecimal() and text.isascii():
        from time import time

        return int(time() * 1000) - int(text[:-1]) * unit_ms
    from datetime import UTC, datetime

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            option, f"{text!r} is neither milliseconds, an age such as 2h, nor 2031-05-04T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


def tell_when_stopped(text: Callable[[], str]) -> None:
    """Ctrl-C prints what the function says is done or stored, on one line."""
    click.get_current_context().meta[_DONE] = text


def done_so_far() -> str | None:
    """What the command said is done."""
    text: Callable[[], str] | None = click.get_current_context().meta.get(_DONE)
    return None if text is None else text()


@contextmanager
def asking_store() -> Iterator[None]:
    """Around requests to an object store that the main thread waits for: Ctrl-C ends the command
    even if the store does not answer. Only for work that may be killed anywhere."""
    text: Callable[[], str] | None = click.get_current_context().meta.get(_DONE)
    with ending_blocked_calls(lambda: None if text is None else text()):
        yield


def confirm(question: str) -> None:
    """Ends the command unless the answer is yes."""
    if not click.confirm(question):
        click.echo("nothing was changed", err=True)
        click.get_current_context().exit(1)


@contextmanager
def activity(title: str) -> Iterator[Callable[[str], None]]:
    """Gives a function to call with what is being done now, which a spinner on standard error
    shows if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status(title) as spinner:
        yield lambda text: spinner.update(f"{title}: {text}")


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
