"""Processes that stand for other machines: they take no processor from anybody here."""

from __future__ import annotations

import shutil


def idle_command() -> list[str]:
    """What to put before a command so that it only gets processors that nobody else wants.

    The idle class gives way at once, where the system has it; a process of the lowest niceness
    goes on to the end of its slice, which may be milliseconds.
    """
    if shutil.which("chrt"):
        return ["chrt", "--idle", "0"]
    return ["nice", "-n", "19"]
