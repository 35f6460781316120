"""The command group, and what becomes of errors: a line on standard error and exit code 1.

A command's module is loaded when the command is asked for. Such modules import nothing but click at
the top, so that `--help` and `--version` come at once; stores, tables and progress bars are loaded
by the commands that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from firnmq.cli.errors import hint_for
from firnmq.cli.node import node_option
from firnmq.errors import FirnError

_COMMANDS = (
    *("config", "delete", "demo", "dump", "group", "lake", "produce", "read", "recover"),
    *("segments", "serve", "status", "tail", "tier", "topic", "user", "verify", "write"),
)
"""Each is the name of a module of this package and of the command in it."""


class FirnGroup(click.Group):
    """Loads a command when it is asked for, and reports our errors without a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, _node_first(args))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"firnmq.cli.{cmd_name}"), cmd_name)
        return command

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


def _node_first(args: list[str]) -> list[str]:
    """The option that says where to work, which may stand behind a command as well."""
    end = args.index("--") if "--" in args else len(args)
    for at, each in enumerate(args[:end]):
        if each == "--node" or each.startswith("--node="):
            after = at + (2 if each == "--node" else 1)
            return [*args[at:after], *args[:at], *args[after:]]
    return args


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
@node_option
def main(node: str | None) -> None:
    """Topics, records and segments of a FirnMQ data directory or of a running node.

    One process at a time can have a data directory open: while a node or a program of yours uses
    it, these commands say so and change nothing. With --node, the commands delete, segments, tier,
    topic and user work through a node; config, group, produce, status and tail always do.

    Exit codes: 0 all well, 1 an error or a finding, 2 wrong usage.
    """
