"""What a command says on standard error: errors with a hint, warnings; as JSON where asked for."""

from __future__ import annotations

import errno
import os
import re

import click

from firnmq.cli.errors import hint_for
from firnmq.cli.node import NodeRefused
from firnmq.cli.variables import COMMAND_VARIABLES
from firnmq.errors import InvalidArgument, StorageTypeNotFound

PIPE_CLOSED = 141
"""Exit code when the reader of a pipe has gone, as of a program that SIGPIPE ends."""
AS_JSON = "firnmq.as_json"
"""Key of the click context's meta: whether the command was given --json, for its errors too."""
_PRINTING = ("click.utils", "firnmq.cli.records")
_WRONG_USAGE = (InvalidArgument, StorageTypeNotFound)
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
_FROM_KUBERNETES = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_(TCP|UDP)")
"""A service that is called `firn` puts such variables into the containers beside it."""


def colours() -> bool | None:
    """What click is told: never with NO_COLOR, else only on a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def report_error(error: BaseException, *, as_json: bool, hint: str | None = None) -> None:
    """One line that says what was wrong, and one that says what to do about it."""
    message, hint = _message(error), hint or _hint(error)
    if as_json:
        import msgspec

        kind = error.kind if isinstance(error, NodeRefused) else type(error).__name__
        document = {"error": kind, "message": message, "hint": hint}
        click.echo(msgspec.json.encode(document), err=True)
        return
    _labelled("error", "red", message)
    if hint is not None:
        _labelled("hint", "cyan", hint)


def is_wrong_usage(error: BaseException) -> bool:
    """Whether what the user gave was wrong in itself, as the command or the node found."""
    if isinstance(error, NodeRefused):
        return error.kind in {kind.__name__ for kind in _WRONG_USAGE}
    return isinstance(error, _WRONG_USAGE)


def report_warning(message: str) -> None:
    _labelled("warning", "yellow", message)


def warn_of_unknown_variables() -> None:
    """A misspelt variable would be ignored in silence."""
    given = {
        name: value
        for name, value in os.environ.items()
        if name.startswith("FIRN_") and name not in COMMAND_VARIABLES
    }
    if not given:
        return  # The settings need not be loaded, which takes a while.
    from difflib import get_close_matches

    from firnmq.server.settings import unknown_variables

    for name, setting in unknown_variables(given).items():
        if _FROM_KUBERNETES.search(name) or given[name].startswith(("tcp://", "udp://")):
            continue
        known = [*sorted(COMMAND_VARIABLES), *([setting] if setting else [])]
        closest = get_close_matches(name, known, n=1, cutoff=0.8)
        advice = f"; did you mean {closest[0]}?" if closest else ""
        report_warning(f"{name} is set, but there is no such setting{advice}")


def discard_output() -> None:
    """What is left of standard output can be written nowhere; the interpreter would try to."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)


def _is_of_output(error: OSError) -> bool:
    """Whether the error comes from the code that prints; it names no file."""
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return at is not None and at.tb_frame.f_globals.get("__name__") in _PRINTING


def _labelled(label: str, colour: str, message: str) -> None:
    click.echo(
        f"{click.style(f'{label}:', fg=colour, bold=True)} {message}", err=True, color=colours()
    )


def _message(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, OSError) and error.strerror and _is_of_output(error):
        discard_output()
        return f"standard output: {error.strerror.lower()}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{os.fsdecode(error.filename)}: {error.strerror.lower()}"
    return str(error)


def _hint(error: BaseException) -> str | None:
    if isinstance(error, OSError) and error.errno in _NOT_WRITABLE:
        return (
            "check who owns it and whether its file system is read-only, or choose another "
            "directory with --data or FIRN_DATA"
        )
    return hint_for(error)
