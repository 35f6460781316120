"""`firn status`: how a running node is."""

from __future__ import annotations

import click

from firnmq.cli.console import json_option, print_json, print_table, time_text
from firnmq.cli.target import running_node, target_options


@click.command()
@target_options
@json_option
def status(as_json: bool) -> None:
    """Show a node's addresses, contents and load."""
    found = running_node(changes=False).get("node")
    if as_json:
        print_json(found)
        return
    problems, processes = found.pop("problems"), found.pop("processes")
    found["started_ms"] = time_text(found["started_ms"])
    found["sasl_mechanisms"] = ", ".join(found["sasl_mechanisms"])
    rows = [(name.removesuffix("_ms"), _shown(value)) for name, value in found.items()]
    print_table(("WHAT", "VALUE"), rows)
    if processes:
        click.echo()
        columns = [name for name in processes[0] if name != "started_ms"]
        headings = [name.removesuffix("_count").replace("_", " ").upper() for name in columns]
        print_table(headings, [[each[name] for name in columns] for each in processes])
    for each in problems:
        text = f"{each['kind']} since {time_text(each['since_ms'])}: {each['subject']}: "
        click.secho(f"{text}{each['reason']}; {each['effect']}", fg="red")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value in (None, "") else str(value)
