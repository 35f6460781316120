"""`firn config`: a topic's options on a running node."""

from __future__ import annotations

import click

from firnmq.cli.console import json_option, print_json, print_table
from firnmq.cli.target import running_node, target_options
from firnmq.cli.topic_argument import topic_argument


@click.group()
@target_options
def config() -> None:
    """Show and change the options of topics on a running node."""


@config.command()
@topic_argument()
@click.argument("option", required=False)
@target_options
@json_option
def get(topic: str, option: str | None, as_json: bool) -> None:
    """Show all options of a topic, or one."""
    found = running_node(changes=False).get("topics", topic, "config")
    if option is not None:
        if option not in found["options"]:
            from firnmq.config import unknown_option

            raise unknown_option(option, found["options"])
        found["options"] = {option: found["options"][option]}
    _show(found, as_json)


@config.command(name="set")
@topic_argument()
@click.argument("changes", nargs=-1, required=True, metavar="OPTION=VALUE...")
@click.option("--dry-run", is_flag=True, help="Check the change, but do not make it.")
@target_options
@json_option
def set_options(topic: str, changes: tuple[str, ...], dry_run: bool, as_json: bool) -> None:
    """Change options of a topic; OPTION= alone puts one back to the node's default."""
    options: dict[str, str | None] = {}
    for change in changes:
        name, equals, value = change.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{change!r} is not OPTION=VALUE")
        options[name] = value or None
    body = {"options": options, "dry_run": dry_run}
    found = running_node(changes=not dry_run).call("PATCH", ("topics", topic, "config"), body)
    found["options"] = {name: found["options"].get(name) for name in options}
    if dry_run and not as_json:
        click.echo("nothing was changed; it could be", err=True)
    _show(found, as_json)


def _show(found: dict[str, dict[str, str | None]], as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    rows = [(name, value or "none") for name, value in found["options"].items()]
    print_table(("OPTION", "VALUE"), rows)
