"""The command group, and what becomes of errors: a line on standard error and exit code 1.

A command's module is loaded when the command is asked for. Such modules import nothing but click at
the top, so that `--help` and `--version` come at once; stores, tables and progress bars are loaded
by the commands that need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from firnmq.cli.console import done_so_far
from firnmq.cli.errors import NoAnswer
from firnmq.cli.reports import (
    AS_JSON,
    PIPE_CLOSED,
    colours,
    discard_output,
    is_wrong_usage,
    report_error,
    warn_of_unknown_variables,
)
from firnmq.cli.target import target_options
from firnmq.errors import FirnError
from firnmq.interrupts import STOPPED, raising_interrupts, release_termination, stopped_text

COMMANDS = {
    "acl": "Add, remove and list rules about which Kafka clients may do what.",
    "cluster": "Run nodes that share their topics, and show their state.",
    "completion": "Print a script that makes a shell complete commands, options and topics.",
    "config": "Show and change the options of topics on a running node.",
    "delete": "Delete records of a topic; no read shows them from then on.",
    "demo": "Show a durable write, four kinds of read and a check, and how long each takes.",
    "dump": "Show the batches of a segment file.",
    "group": "List, describe, move and delete the consumer groups of a running node.",
    "lake": "Convert topics into tables, maintain the tables, and query them with SQL.",
    "node": "List the nodes of a cluster.",
    "produce": "Store a value, or the records of a file, and print their offsets.",
    "read": "Print records by offset, key, tag or time, and follow a topic.",
    "recover": "Create a data directory from an object store, after its node was lost.",
    "segments": "Show a topic's segments: their offsets, bytes, states and checksums.",
    "serve": "Serve a data directory to Kafka clients until stopped.",
    "shard": "Move shards between the nodes of a cluster.",
    "status": "Show where a running node listens, what it holds and how busy it is.",
    "tier": "Show, upload and check the segments in the object store, and estimate costs.",
    "topic": "Create, list, describe and delete topics.",
    "user": "Add, remove and list users.",
    "verify": "Check all batches, checksums, segments and indexes of a data directory.",
}
"""What `--help` says of each command, which loads none of them. The name is that of a module in
`commands` and of the command in that module."""


class FirnGroup(click.Group):
    """Loads a command when it is asked for, and reports our errors without a traceback."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.color = colours()
        ctx.meta[AS_JSON] = "--json" in args[: _end_of_options(args)]
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        try:
            return super().parse_args(ctx, args)
        except BrokenPipeError:
            discard_output()
            ctx.exit(PIPE_CLOSED)
        except OSError as error:  # The help could not be printed.
            report_error(error, as_json=False)
            ctx.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name != "serve":  # It releases SIGTERM itself, once its handler is set.
            release_termination()
        module = import_module(f"firnmq.cli.commands.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            # click itself knows only the commands that are loaded.
            closest = get_close_matches(name, COMMANDS, n=1)
            if closest:
                raise click.UsageError(
                    f"No such command {name!r}. Did you mean {closest[0]!r}?", ctx
                )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        as_json = ctx.meta[AS_JSON]
        try:
            with raising_interrupts():
                warn_of_unknown_variables()
                return super().invoke(ctx)
        except BrokenPipeError:
            discard_output()
            ctx.exit(PIPE_CLOSED)
        except (FirnError, OSError) as error:
            report_error(error, as_json=as_json)
            ctx.exit(2 if is_wrong_usage(error) else 1)
        except click.UsageError as error:
            if isinstance(error, click.NoSuchOption) and error.option_name == "--partition":
                text = "No such option '--partition'. Did you mean '--shard'?"  # Kafka's word.
                error = click.UsageError(text, error.ctx)
            if not as_json:
                raise error from None
            report_error(error, as_json=True)
            ctx.exit(error.exit_code)
        except (KeyboardInterrupt, click.Abort) as error:  # A prompt turns Ctrl-C into Abort.
            if isinstance(error.__context__, EOFError):
                report_error(NoAnswer(), as_json=as_json)
                ctx.exit(1)
            click.echo(stopped_text(done_so_far()), err=True, nl=False)
            ctx.exit(STOPPED)


def _end_of_options(args: list[str]) -> int:
    return args.index("--") if "--" in args else len(args)


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from firnmq.version import __version__

        click.echo(f"firn {__version__}")
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
@target_options
def main() -> None:
    """Topics, records and segments of a FirnMQ node or data directory.

    A command works on the data directory that --data or FIRN_DATA names, ./firn-data otherwise. If
    a node serves the directory, the command goes through that node by itself. --node or FIRN_NODE
    names a node instead. Both options may stand before or after the command.

    Exit codes: 0 all well, 1 an error or a finding, 2 a wrong option, argument or setting, 130
    stopped by Ctrl-C, 141 the reader of a pipe has gone (`firn read t | head`).
    """
