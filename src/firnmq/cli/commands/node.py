"""`firn node`: the nodes of a cluster."""

from __future__ import annotations

from typing import Any

import click

from firnmq.cli.commands.cluster import print_nodes, rebalanced
from firnmq.cli.console import count, json_option, print_json
from firnmq.cli.node import NodeClient
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


@node.command()
@click.argument("number", type=int)
@target_options
@json_option
def cordon(number: int, as_json: bool) -> None:
    """Have a node get no shards any more. It keeps those that it has."""
    found = _cordon(running_node(changes=True), number, cordoned=True)
    if as_json:
        print_json(found)
    else:
        click.echo(f"node {number} gets no shards any more")
        _print_stays(found)


@node.command()
@click.argument("number", type=int)
@target_options
@json_option
def uncordon(number: int, as_json: bool) -> None:
    """Have a node get shards again."""
    found = _cordon(running_node(changes=True), number, cordoned=False)
    if as_json:
        print_json(found)
    else:
        click.echo(f"node {number} gets shards again")


@node.command()
@click.argument("number", type=int)
@target_options
@json_option
def drain(number: int, as_json: bool) -> None:
    """Cordon a node and give what it leads to others, as far as that can move.

    What it holds stays: sealed segments that no other node has, shards of memory and RocksDB, and
    the groups and transactional ids that it coordinates. The command says how much that is.
    """
    client = running_node(changes=True)
    _cordon(client, number, cordoned=True)
    moved, failures = rebalanced(client, number)
    found = _cordon(client, number, cordoned=True)
    if as_json:
        print_json(found | {"moved_count": moved, "failures": failures})
    else:
        click.echo(f"node {number} gets no shards any more; {count(moved, 'shard')} moved away")
        for failure in failures:
            click.echo(failure, err=True)
        _print_stays(found)
    if failures or found["movable_count"]:
        raise click.exceptions.Exit(1)


def _cordon(client: NodeClient, number: int, *, cordoned: bool) -> dict[str, Any]:
    path = ("cluster", "nodes", str(number))
    found: dict[str, Any] = client.call("PUT", path, {"cordoned": cordoned})
    return found


def _print_stays(found: dict[str, Any]) -> None:
    """Says what a node still has."""
    if found["movable_count"]:
        click.echo(f"leads       {count(found['movable_count'], 'shard')} that can move")
    if found["pinned_count"]:
        shown = ", ".join(found["pinned"][:5])
        more = " …" if found["pinned_count"] > 5 else ""
        click.echo(f"stays       {count(found['pinned_count'], 'shard')}: {shown}{more}")
    if found["held_segments"]:
        click.echo(
            f"stays       {count(found['held_segments'], 'sealed segment')} of "
            f"{found['held_bytes']:,} bytes, which no other node has"
        )
    if found["coordinator_slots"]:
        click.echo(f"stays       {count(found['coordinator_slots'], 'slot')} of groups")
