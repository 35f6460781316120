"""`firn status`: how a running node is."""

from __future__ import annotations

import click

from firnmq.cli.console import json_option, print_json, print_table, time_text
from firnmq.cli.node import running_node


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show where a running node listens, what it holds and how busy it is."""
    found = running_node().get("node")
    if as_json:
        print_json(found)
        return
    found["started_ms"] = time_text(found["started_ms"])
    found["sasl_mechanisms"] = ", ".join(found["sasl_mechanisms"])
    print_table(
        ("WHAT", "VALUE"),
        [(name.removesuffix("_ms"), str(value)) for name, value in found.items()],
    )
