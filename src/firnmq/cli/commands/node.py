"""`firn node`: the nodes of a cluster."""

from __future__ import annotations

import click

from firnmq.cli.commands.cluster import print_nodes
from firnmq.cli.console import json_option, print_json
from firnmq.cli.target import running_node, target_options


@click.group()
def node() -> None:
    """The nodes of a cluster."""


@node.command(name="list")
@target_options
@json_option
def list_nodes(as_json: bool) -> None:
    """Show every node: where it is, and what it leads."""
    nodes = running_node(changes=False).get("cluster")["nodes"]
    if as_json:
        for each in nodes:
            print_json(each)
        return
    print_nodes(nodes)
