"""The command group, and what becomes of errors: a line on standard error and exit code 1.

Modules of this package import nothing but click at the top, so that `--help` and `--version` come
at once; stores, tables and progress bars are loaded by the commands that need them.
"""

from __future__ import annotations

from typing import Any

import click

from firnmq.cli.demo import demo
from firnmq.cli.dump import dump
from firnmq.cli.errors import hint_for
from firnmq.cli.read import read
from firnmq.cli.segments import segments
from firnmq.cli.serve import serve
from firnmq.cli.topic import topic
from firnmq.cli.verify import verify
from firnmq.cli.write import write
from firnmq.errors import FirnError


class FirnGroup(click.Group):
    """A group that reports our errors by their text, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click ends quietly when the reader of a pipe has gone.
        except (FirnError, OSError) as error:
            click.echo(f"error: {error}", err=True)
            hint = hint_for(error)
            if hint is not None:
                click.echo(f"hint: {hint}", err=True)
            ctx.exit(1)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from importlib.metadata import version

        click.echo(f"firn {version('firnmq')}")
        ctx.exit()


@click.group(cls=FirnGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def main() -> None:
    """Topics, records and segments of a FirnMQ data directory.

    One process at a time can have a data directory open: while a program of yours uses it, these
    commands say so and change nothing.

    Exit codes: 0 all well, 1 an error or a finding, 2 wrong usage.
    """


for command in (demo, dump, read, segments, serve, topic, verify, write):
    main.add_command(command)
