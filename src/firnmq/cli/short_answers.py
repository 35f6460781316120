"""A node's answers to short `firn read` commands, for the launcher (launcher.c).

The node parses the arguments and formats the records with the code of the command. It answers only
if the command succeeds within a second and prints little. Otherwise the launcher runs the command
in a process of its own, which also reports errors.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from io import BytesIO
from pathlib import Path

import click

from firnmq.cli.commands.read import printer_of, query_of, read
from firnmq.cli.target import typed_target
from firnmq.errors import FirnError
from firnmq.server.admin.parts import Records
from firnmq.server.documents import CommandLine
from firnmq.server.reading import Reading, reading_of

RECORDS_MAX = 100
"""The event loop formats them, between two requests of other clients."""
_BYTES_MAX = 1024 * 1024
_TIMEOUT_S = 1.0
"""A longer reading is streamed, so that it ends if its reader goes away."""


async def answer_read(line: CommandLine, records: Records) -> bytes | None:
    """What `firn read` prints; None if it must run in a process of its own."""
    out = BytesIO()
    try:
        # Without --help, which would print to the node's own standard output.
        with read.make_context("read", list(line.arguments), help_option_names=[]) as context:
            if typed_target() != (None, None if line.data is None else Path(line.data)):
                return None  # The launcher took something else for the target.
            options = context.params
            wanted = reading_of(query_of(options))
            printer = printer_of(options, out, is_terminal=line.is_terminal)
        if not _is_short(wanted):
            return None
        async with (
            asyncio.timeout(_TIMEOUT_S),
            aclosing(records(options["topic"], wanted)) as pages,
        ):
            async for page in pages:
                printer.show_lines([[each for each in page.split(b"\n") if each]])
                if out.tell() > _BYTES_MAX:
                    return None
    except (FirnError, OSError, click.ClickException):  # TimeoutError is an OSError.
        return None
    return out.getvalue()


def _is_short(wanted: Reading) -> bool:
    if wanted.follow:
        return False
    is_newest = wanted.key is not None and not wanted.all_versions
    return is_newest or (wanted.limit is not None and wanted.limit <= RECORDS_MAX)
