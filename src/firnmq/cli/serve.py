"""`firn serve`: a node for Kafka clients."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import data_option

if TYPE_CHECKING:
    from firnmq.server.node import Node
    from firnmq.server.settings import NodeConfig


@click.command()
@data_option
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FIRN_CONFIG",
    show_envvar=True,
    help="TOML file with the sections store, kafka, groups, topic_defaults, admin, security, log, "
    "tiering, lake.",
)
@click.option("--host", default=None, help="Address for Kafka clients.  [default: 127.0.0.1]")
@click.option("--port", type=int, default=None, help="Its port; 0: any free.  [default: 9092]")
@click.option(
    "--advertised-host", default=None, help="What clients are told to connect to, if not --host."
)
@click.option("--admin-host", default=None, help="Address for HTTP.  [default: 127.0.0.1]")
@click.option(
    "--admin-port",
    type=int,
    default=None,
    help="Its port; 0: any free.  [default: 9644, or any if --port is 0]",
)
@click.option("--no-admin", is_flag=True, help="No HTTP listener.")
@click.option(
    "--allow-insecure",
    is_flag=True,
    help="Listen beyond this machine although TLS or authentication is missing.",
)
@click.option("--log-json", is_flag=True, help="Logs as JSON, one document per line.")
def serve(data: Path, config_path: Path | None, **options: Any) -> None:
    """Serve a data directory to Kafka clients until stopped.

    Settings come from the options, then from FIRN_* variables such as FIRN_KAFKA_PORT, then from
    the file. Stop the node with Ctrl-C or SIGTERM: requests that have begun are answered first.
    """
    import asyncio
    import gc

    gc.disable()  # Loading makes much and drops little: collecting meanwhile costs a third of it.

    import uvloop

    from firnmq.server.logs import configure_logs
    from firnmq.server.node import Node
    from firnmq.server.node import serve as run
    from firnmq.server.settings import load_node_config

    config = _overlaid(load_node_config(config_path), options)
    for exposure in config.exposures():
        click.echo(f"warning: {exposure}", err=True)
    configure_logs(config.log)
    node = Node(data, config)

    def ready(started: Node) -> None:
        _announce(started, data)
        gc.freeze()  # What is there now stays, so it need not be looked at again.
        gc.enable()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(node, ready))


def _overlaid(config: NodeConfig, options: dict[str, Any]) -> NodeConfig:
    """The configuration with what the command line says."""
    kafka = _given(options, host="host", port="port", advertised_host="advertised_host")
    admin = _given(options, host="admin_host", port="admin_port")
    if options["port"] == 0:
        admin.setdefault("port", 0)
    if options["no_admin"]:
        admin["enabled"] = False
    security, log = config.security, config.log
    if options["allow_insecure"]:
        security = dataclasses.replace(security, allow_insecure=True)
    if options["log_json"]:
        log = dataclasses.replace(log, json=True)
    return dataclasses.replace(
        config,
        kafka=dataclasses.replace(config.kafka, **kafka),
        admin=dataclasses.replace(config.admin, **admin),
        security=security,
        log=log,
    )


def _given(options: dict[str, Any], **names: str) -> dict[str, Any]:
    """Fields with the values of those options that were given."""
    return {
        field: options[option] for field, option in names.items() if options[option] is not None
    }


def _announce(node: Node, data: Path) -> None:
    """Says where the node is; the first line comes once Kafka clients can connect."""
    address, config = node.broker.address, node.config
    host = f"[{address.host}]" if ":" in address.host else address.host
    guards = ["TLS"] if config.security.tls_certificate is not None else []
    guards += [f"SASL {name}" for name in config.security.sasl_mechanisms]
    click.echo(f"kafka     {host}:{address.port}" + (f" ({', '.join(guards)})" if guards else ""))
    if node.admin is not None:
        click.echo(f"admin     {node.admin.url}")
    click.echo(f"data      {data.resolve()}")
    click.echo(f"durable   {_DURABLE[config.kafka.topic_defaults.durability.value]}")
    if guards:
        click.echo("try       firn user --help")
    else:
        click.echo(f"try       echo hello | kcat -P -b {host}:{address.port} -t greetings")


_DURABLE = {
    "fsync": "acknowledged means fsynced, unless a topic says otherwise",
    "interval": "acknowledged means written; synced soon after, unless a topic says otherwise",
    "os": "acknowledged means written; synced when the system likes, unless a topic says otherwise",
}
