"""`firn cluster`: nodes on this machine for trying, and how a cluster is."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import count, json_option, print_json, print_table, time_text
from firnmq.cli.node import NodeClient
from firnmq.cli.target import running_node, target_options
from firnmq.cli.topic_argument import topic_argument
from firnmq.nodefile import node_serving

if TYPE_CHECKING:
    from firnmq.server.processes.supervisor import Program

_KAFKA_PORT, _HTTP_PORT, _ETCD_PORT = 9092, 9644, 2379


@click.group()
def cluster() -> None:
    """Nodes that share one set of topics: start some for trying, and see how they are."""


@cluster.command()
@target_options
@json_option
def status(as_json: bool) -> None:
    """Show the nodes of a cluster, as one of them knows them."""
    found = running_node(changes=False).get("cluster")
    if as_json:
        print_json(found)
        return
    click.echo(
        f"cluster {found['cluster_id']}: {found['shard_count']} shards, metadata in "
        f"{found['meta']} at revision {found['revision']}"
    )
    print_nodes(found["nodes"])
    _print_replication(found["replication"])


def _print_replication(found: dict[str, Any]) -> None:
    if not found["shard_count"]:
        return
    controller = "no node" if found["controller"] is None else f"node {found['controller']}"
    click.echo(
        f"{found['shard_count']} shards with replicas: {found['under_replicated']} lack some, "
        f"{found['offline']} have no leader, {found['lossy_segments']} segments may have lost "
        f"records; the last replica is {found['lag_records']} records behind; {controller} controls"
    )
    rows = [
        (
            each["topic"],
            each["shard"],
            "none" if each["leader"] is None else each["leader"],
            " ".join(map(str, each["replicas"])),
            " ".join(map(str, each["in_sync"])),
        )
        for each in found["shards"]
    ]
    if rows:
        print_table(("TOPIC", "SHARD", "LEADER", "REPLICAS", "IN SYNC"), rows)


def print_nodes(nodes: list[dict[str, Any]]) -> None:
    headings = (
        "NODE",
        "STATE",
        "INCARNATION",
        "SINCE",
        "LEADS",
        "BYTES",
        "GROUP SLOTS",
        "KAFKA",
        "HTTP",
    )
    rows = [
        (
            each["node"],
            f"{each['state']}, cordoned" if each["cordoned"] else each["state"],
            each["incarnation"] or "",
            time_text(each["registered_ms"]) if each["registered_ms"] else "",
            each["leaders"],
            "" if each["stored_bytes"] is None else each["stored_bytes"],
            each["coordinator_slots"],
            each["kafka"],
            each["http"],
        )
        for each in nodes
    ]
    print_table(headings, rows)


@cluster.command("accept-loss")
@topic_argument()
@click.argument("shard", type=click.IntRange(min=0))
@target_options
@json_option
def accept_loss(topic: str, shard: int, as_json: bool) -> None:
    """Let a shard go on although records may be lost.

    For a shard that has no leader because too few of its replicas have kept their disks. It goes on
    from the longest one that is there, once every replica has answered. Records that were
    acknowledged may be missing then, and the segment is marked lossy.
    """
    path = ("topics", topic, "shards", str(shard), "loss")
    found = running_node(changes=True).call("PUT", path, None)
    if as_json:
        print_json(found)
    else:
        click.echo(f"node {found['controller']} seals shard {shard} of {topic} with what is left")


@cluster.command()
@click.option("--dry-run", is_flag=True, help="Only say what would move.")
@target_options
@json_option
def rebalance(dry_run: bool, as_json: bool) -> None:
    """Spread the leaders of shards evenly over the nodes.

    Shards move by themselves as their segments fill; this does it now. Nothing is copied: segments
    stay where they are, and new ones are made by the new leaders.
    """
    client = running_node(changes=True)
    if dry_run:
        found = client.call("POST", ("cluster", "rebalance"), {"dry_run": True})
        if as_json:
            print_json(found)
            return
        for each in found["moves"]:
            click.echo(
                f"shard {each['shard']} of {each['topic']}: node {each['source']} to "
                f"node {each['target']}"
            )
        click.echo(f"{count(found['left_count'], 'shard')} would move")
        return
    moved, failures = rebalanced(client)
    if as_json:
        print_json({"moved_count": moved, "failures": failures})
    else:
        click.echo(f"{count(moved, 'shard')} moved")
        for failure in failures:
            click.echo(failure, err=True)
    if failures:
        raise click.exceptions.Exit(1)


def rebalanced(client: NodeClient, node: int | None = None) -> tuple[int, list[str]]:
    """Has leaders spread, those of one node alone if it is given, until nothing is left to move or
    nothing moves; how many have moved, and why the last ones have not."""
    moved = 0
    while True:
        found = client.call("POST", ("cluster", "rebalance"), {"node": node})
        failed = [each for each in found["moves"] if each["error"] is not None]
        done = len(found["moves"]) - len(failed)
        moved += done
        if not found["left_count"] or not done:
            return moved, [
                f"shard {each['shard']} of {each['topic']}: {each['error']}" for each in failed
            ]


@cluster.command()
@click.option(
    "--nodes",
    "node_count",
    type=click.IntRange(1, 16),
    default=3,
    show_default=True,
    help="How many.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("firn-cluster"),
    show_default=True,
    help="Where the nodes' data directories, logs and metadata are.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65000),
    default=_KAFKA_PORT,
    show_default=True,
    help="Kafka port of the first node, the others follow; 0: any free ones, other ones each time.",
)
@click.option(
    "--etcd", is_flag=True, help="Metadata in etcd, which is started as well, instead of SQLite."
)
def up(node_count: int, directory: Path, port: int, etcd: bool) -> None:
    """Run a cluster of real nodes on this machine until Ctrl-C.

    A node that ends is started again. Shards have one copy: while a node is away, so are the shards
    that it leads.
    """
    directory.mkdir(parents=True, exist_ok=True)
    etcd_port = None
    if etcd:
        etcd_port, peer_port = (_ETCD_PORT, _ETCD_PORT + 1) if port else _free_ports(2)
    from firnmq.config import LogConfig
    from firnmq.server.logs import configure_logs
    from firnmq.server.processes.supervisor import Supervisor

    configure_logs(LogConfig(level="error"))
    programs = [_node(directory, number, port, etcd_port) for number in range(1, node_count + 1)]
    if etcd_port is not None:
        programs.insert(0, _etcd(directory, etcd_port, peer_port))
    say = partial(click.echo, err=True)
    stopped = Supervisor(programs, say).run(
        partial(_announce, directory, node_count), lambda: click.echo("stopping")
    )
    for failure in stopped.failures:
        say(failure)
    click.echo(f"stopped   everything that was acknowledged is stored in {directory.resolve()}")


def _free_ports(count: int) -> list[int]:
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _node(directory: Path, number: int, port: int, etcd_port: int | None) -> Program:
    from firnmq.server.processes.supervisor import Program

    kafka = 0 if port == 0 else port + number - 1
    http = 0 if port == 0 else _HTTP_PORT + number - 1
    environment = dict(os.environ)
    data = directory / f"node{number}"
    command = [sys.executable, "-m", "firnmq", "serve", "--data", str(data)]
    command += ["--node-id", str(number), "--port", str(kafka), "--admin-port", str(http)]
    if etcd_port is not None:
        environment |= {
            "FIRN_CLUSTER_ENABLED": "true",
            "FIRN_META_ENDPOINTS": f"127.0.0.1:{etcd_port}",
        }
    else:
        command += ["--cluster-meta", str(directory / "cluster.db")]

    def is_ready(pid: int) -> bool:
        address = node_serving(data)
        return address is not None and address.pid == pid

    return Program(
        name=f"node {number}",
        command=command,
        is_ready=is_ready,
        environment=environment,
        log=directory / f"node{number}.log",
    )


def _etcd(directory: Path, port: int, peer_port: int) -> Program:
    from firnmq.server.processes.supervisor import Program

    command = [sys.executable, "-m", "firnmq", "serve", "--role", "meta"]
    command += ["--data", str(directory / "etcd")]
    environment = os.environ | {
        "FIRN_ETCD_CLIENT_PORT": str(port),
        "FIRN_ETCD_PEER_PORT": str(peer_port),
    }
    return Program(
        name="etcd",
        command=command,
        is_ready=lambda _: True,  # Nodes wait for it.
        environment=environment,
        log=directory / "etcd.log",
    )


def _announce(directory: Path, node_count: int) -> None:
    """Says where the nodes are."""
    bootstrap = []
    for number in range(1, node_count + 1):
        data = directory / f"node{number}"
        address = node_serving(data)
        if address is not None:  # It may just have ended.
            click.echo(
                f"node {number}    kafka {address.kafka}   admin {address.http}   data {data}"
            )
            bootstrap.append(address.kafka)
    click.echo(f"bootstrap {','.join(bootstrap)}")
    click.echo(f"status    firn cluster status --data {directory / 'node1'}")
    click.echo("stop      Ctrl-C")
