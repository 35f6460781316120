"""`firn serve`: a node for Kafka clients."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from firnmq.cli.console import data_option

if TYPE_CHECKING:
    from firnmq.server.node import Node


@click.command()
@data_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=9092, show_default=True, help="Port; 0 takes any free one.")
@click.option(
    "--advertised-host", default=None, help="What clients are told to connect to, if not --host."
)
@click.option(
    "--allow-insecure",
    is_flag=True,
    help="Listen beyond this machine although there is neither TLS nor a password.",
)
def serve(
    data: Path, host: str, port: int, advertised_host: str | None, allow_insecure: bool
) -> None:
    """Serve a data directory to Kafka clients until stopped.

    Stop it with Ctrl-C or SIGTERM: requests that have begun are answered first.
    """
    import asyncio

    import uvloop

    from firnmq.brokers.kafka.config import KafkaConfig
    from firnmq.config import load_store_config
    from firnmq.errors import InvalidArgument
    from firnmq.server.node import Node
    from firnmq.server.node import serve as run

    if host not in ("127.0.0.1", "::1", "localhost"):
        if not allow_insecure:
            raise InvalidArgument(
                "--host",
                f"{host} can be reached from elsewhere and nothing protects it; "
                "add --allow-insecure if that is meant",
            )
        click.echo(f"warning: anyone who reaches {host} can read and write everything", err=True)
    config = KafkaConfig(host=host, port=port, advertised_host=advertised_host)
    node = Node(data, store_config=load_store_config(), kafka=config)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(node, lambda started: _announce(started, data)))


def _announce(node: Node, data: Path) -> None:
    address = node.broker.address
    click.echo(f"kafka     {address.host}:{address.port}")
    click.echo(f"data      {data.resolve()}")
    click.echo("durable   acknowledged means fsynced, unless a topic says otherwise")
    click.echo(f"try       echo hello | kcat -P -b {address.host}:{address.port} -t greetings")
