"""`firn shard`: which node leads a shard."""

from __future__ import annotations

import click

from firnmq.cli.console import json_option, print_json
from firnmq.cli.target import running_node, target_options
from firnmq.cli.topic_argument import topic_argument


@click.group()
def shard() -> None:
    """The shards of a cluster's topics."""


@shard.command()
@topic_argument()
@click.argument("shard", type=click.IntRange(min=0))
@click.option("--to", type=int, required=True, metavar="NODE", help="The node to lead it.")
@target_options
@json_option
def move(topic: str, shard: int, to: int, as_json: bool) -> None:
    """Have another node lead a shard.

    Its next segment is made there. Nothing is copied: the segments that there are stay where they
    are, and are read from there. Producers and consumers go on by themselves.
    """
    path = ("topics", topic, "shards", str(shard), "leader")
    moved = running_node(changes=True).call("PUT", path, {"node": to})
    if as_json:
        print_json(moved)
    elif moved["source"] == to:
        click.echo(f"node {to} leads shard {shard} of {topic} already")
    else:
        click.echo(f"node {to} leads shard {shard} of {topic}; node {moved['source']} did before")
