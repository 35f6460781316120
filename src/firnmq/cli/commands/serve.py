"""`firn serve`: a node for Kafka clients."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from firnmq.cli.console import tell_when_stopped
from firnmq.cli.processes import Served, check_processes, hidden_options, place_of, serve_processes
from firnmq.cli.program import program
from firnmq.cli.reports import report_warning
from firnmq.cli.target import (
    DATA_DEFAULT,
    chosen_directory,
    directory_option,
    unserved_directory,
)
from firnmq.interrupts import STOPPED, release_termination
from firnmq.nodefile import joined_address

if TYPE_CHECKING:
    from firnmq.server.node import Node
    from firnmq.server.processes.place import Place
    from firnmq.server.settings import NodeConfig

_PORT = click.IntRange(0, 65535)
_STOPPING = "stopping  requests that have begun are answered first"


@click.command()
@directory_option
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    envvar="FIRN_CONFIG",
    show_envvar=True,
    help="TOML file with the sections store, kafka, groups, transactions, topic_defaults, admin, "
    "security, log, tiering, lake, meta, cluster.",
)
@click.option("--host", default=None, help="Address for Kafka clients.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=_PORT,
    default=None,
    help="Port for Kafka clients; 0: any free.  [default: 9092]",
)
@click.option(
    "--advertised-host", default=None, help="Address that clients connect to, if not --host."
)
@click.option("--admin-host", default=None, help="Address for HTTP.  [default: 127.0.0.1]")
@click.option(
    "--admin-port",
    type=_PORT,
    default=None,
    help="Port for HTTP; 0: any free.  [default: 9644, or any if --port is 0]",
)
@click.option(
    "--cluster-meta",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    help="Be a node of the cluster whose metadata is in this file, which all nodes share.",
)
@click.option(
    "--node-id",
    type=click.IntRange(min=1),
    default=None,
    help="The node's number in its cluster, its own for good.  [default: 1]",
)
@click.option(
    "--processes",
    metavar="N|auto",
    default="1",
    show_default=True,
    help="Serve with N processes, each a whole node with a port of its own from --port on, and one "
    "HTTP address; auto: one for each core.",
)
@hidden_options
@click.option("--no-admin", is_flag=True, help="No HTTP listener.")
@click.option(
    "--allow-insecure",
    is_flag=True,
    help="Listen on other addresses than loopback without TLS or authentication.",
)
@click.option("--check", is_flag=True, help="Check the settings and the ports, and end.")
@click.option("--log-json", is_flag=True, help="Logs as JSON, one document per line.")
@click.option(
    "--role",
    type=click.Choice(["node", "meta"]),
    default="node",
    show_default=True,
    help="node: serve the directory to Kafka clients. meta: run a member of etcd in it, with the "
    "sections meta, etcd, security, log.",
)
def serve(config_path: Path | None, role: str, check: bool, **options: Any) -> None:
    """Serve a data directory to Kafka clients until stopped.

    Settings come from the options, then from FIRN_* variables such as FIRN_KAFKA_PORT, then from
    the file. Stop the node with Ctrl-C or SIGTERM: requests that have begun are answered first.
    The exit code is 130 after Ctrl-C and 0 after SIGTERM.
    """
    if role == "meta":
        if check:
            raise click.UsageError("--check is for --role node")
        _serve_meta(config_path, options)
        return
    # Until the node's own handler takes over, nothing is open that would have to be closed.
    signal.signal(signal.SIGTERM, partial(_end_at_once, _stopped(chosen_directory())))
    release_termination()

    from firnmq.server.logs import configure_logs
    from firnmq.server.processes.place import check_count, wanted_processes
    from firnmq.server.settings import load_node_config

    tell_when_stopped(lambda: "the node was not ready yet; everything stored before is there")
    count = wanted_processes(options.pop("processes"))
    config = _overlaid(load_node_config(config_path), options)
    data = chosen_directory()
    place = place_of(options, data, config.kafka.node_id)
    if place is None:
        for exposure in config.exposures():
            report_warning(exposure)
        unserved_directory()
        check_count(data, count)
    configure_logs(config.log, process=None if place is None else place.process)
    if check:
        _check_ports(config) if count == 1 else check_processes(config, data, count)
        click.echo("checked   the settings and the ports")
    elif count == 1 or place is not None:
        _serve_node(config, data, place)
    else:
        options["config_path"] = config_path
        announce = partial(_announce_processes, config, data)
        ended = serve_processes(config, data, count, options, announce, _say)
        click.get_current_context().exit(ended)


def _serve_node(config: NodeConfig, data: Path, place: Place | None) -> None:
    """Serves a directory, or as one of several processes a part of it."""
    import asyncio
    import gc

    gc.disable()  # Imports allocate much and free little: collecting costs a third of the time.

    import uvloop

    from firnmq.cli.short_answers import answer_read
    from firnmq.disk.private import private_umask
    from firnmq.server.descriptors import raise_descriptor_limit
    from firnmq.server.node import Node
    from firnmq.server.node import serve as run
    from firnmq.server.short_collections import ShortCollections

    path = data
    if place is not None:
        from firnmq.server.processes.place import config_of

        config, path = config_of(config, data, place.process, config.kafka.port), place.path
    raise_descriptor_limit()
    node = Node(path, config, answer_read, place)

    def ready(started: Node) -> None:
        if place is None:
            _announce_node(started, data)
        gc.freeze()  # What is there now stays, so it need not be looked at again.
        gc.callbacks.append(ShortCollections())
        gc.enable()

    with private_umask(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        ended_by = runner.run(run(node, ready, partial(_begin_stopping, _STOPPING)))
    _say(_stopped(data))
    if ended_by is signal.SIGINT:
        click.get_current_context().exit(STOPPED)


def _stopped(data: Path) -> str:
    return f"stopped   everything that was acknowledged is stored in {data.resolve()}"


def _check_ports(config: NodeConfig) -> None:
    """CannotListen if another program has a port of the node, or both."""
    from firnmq.errors import CannotListen
    from firnmq.server.sockets import taken_port

    kafka, admin = config.kafka, config.admin
    error = taken_port("kafka", kafka.host, kafka.port)
    other = taken_port("admin", admin.host, admin.port) if admin.enabled else None
    if error is not None and other is not None:
        raise CannotListen(error.setting, error.host, error.port, error.cause, other=other)
    found = error or other
    if found is not None:
        raise found


def _serve_meta(config_path: Path | None, options: dict[str, Any]) -> None:
    """Role meta: no Kafka and no HTTP, so their options are refused."""
    if options.pop("processes") != "1":
        raise click.UsageError("--processes is for --role node")
    for name, value in options.items():
        if value not in (None, False) and name not in ("allow_insecure", "log_json"):
            text = f"--{name.replace('_', '-')} is for --role node"
            raise click.UsageError(text)
    stopped = f"stopped   the metadata is in {chosen_directory().resolve()}"
    signal.signal(signal.SIGTERM, partial(_end_at_once, stopped))
    release_termination()

    import asyncio

    from firnmq.disk.private import private_umask
    from firnmq.server.logs import configure_logs

    try:
        from firnmq.server.meta_role import MetaNode
    except ImportError as error:
        raise click.UsageError(
            f"{error.name} is not installed: pip install 'firnmq[etcd]'"
        ) from error
    from firnmq.server.meta_settings import load_meta_role_config
    from firnmq.server.node import serve as run

    config = load_meta_role_config(config_path)
    security, log = config.security, config.log
    if options["allow_insecure"]:
        security = dataclasses.replace(security, allow_insecure=True)
    if options["log_json"]:
        log = dataclasses.replace(log, json=True)
    config = dataclasses.replace(config, security=security, log=log)
    for exposure in config.exposures():
        report_warning(exposure)
    configure_logs(config.log)
    data = unserved_directory()

    def ready(started: MetaNode) -> None:
        if started.member is not None:
            _say(f"etcd      {config.etcd.client_endpoint}, peers {config.etcd.peer_endpoint}")
        if config.service.enabled:
            _say(f"service   {config.service.host}:{config.service.port}")
        _say(f"data      {data.resolve()}")
        _say("stop      Ctrl-C")

    with private_umask(), asyncio.Runner() as runner:
        ended_by = runner.run(
            run(MetaNode(data, config), ready, partial(_begin_stopping, "stopping"))
        )
    _say(stopped)
    if ended_by is signal.SIGINT:
        click.get_current_context().exit(STOPPED)


def _overlaid(config: NodeConfig, options: dict[str, Any]) -> NodeConfig:
    """The configuration with what the command line says."""
    names = {"host": "host", "port": "port", "advertised_host": "advertised_host"}
    kafka = _given(options, **names, node_id="node_id")
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
    cluster = config.cluster
    if options["cluster_meta"] is not None:
        cluster = dataclasses.replace(cluster, enabled=True, meta_file=options["cluster_meta"])
    return dataclasses.replace(
        config,
        cluster=cluster,
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


def _begin_stopping(line: str) -> None:
    from firnmq.server.stopping import begin_stop_deadline

    begin_stop_deadline()
    _say(line)


def _end_at_once(line: str, *_: object) -> None:
    try:
        os.write(1, f"{line}\n".encode())
    finally:
        os._exit(0)


def _say(line: str) -> None:
    """The node may outlive the program that reads its output."""
    try:
        click.echo(line)
    except BrokenPipeError:
        pass


def _announce_node(node: Node, data: Path) -> None:
    """Says where the node is; the first line comes once Kafka clients can connect."""
    address, admin = node.broker.address, node.admin
    token = None if admin is None or admin.token is None else admin.token.path.resolve()
    kafka = joined_address(address.host, address.port)
    _announce(Served([kafka], None if admin is None else admin.url, token), node.config, data)


def _announce_processes(config: NodeConfig, data: Path, served: Served) -> None:
    _announce(served, config, data)


def _announce(served: Served, config: NodeConfig, data: Path) -> None:
    guards = ["TLS"] if config.security.tls_certificate is not None else []
    guards += [f"SASL {name}" for name in config.security.sasl_mechanisms]
    kafka = ",".join(served.kafka)
    _say(f"kafka     {kafka}" + (f" ({', '.join(guards)})" if guards else ""))
    if served.admin is not None:
        _say(f"admin     {served.admin}")
        if served.token is not None:
            _say(f"token     {served.token}")
    _say(f"data      {data.resolve()}")
    if len(served.kafka) > 1:
        _say(f"processes {len(served.kafka)}")
    if config.tiering.url is not None:
        _say(f"store     {config.tiering.url}")
    _say(f"durable   {_DURABLE[config.kafka.topic_defaults.durability.value]}")
    _say("try       in another terminal, in this directory:")
    for command in _next_commands(served, data, guarded=bool(guards)):
        _say(f"  {command}")
    _say("stop      Ctrl-C")


def _next_commands(served: Served, data: Path, *, guarded: bool) -> list[str]:
    """Commands that work beside the node as they are printed."""
    firn = program()
    commands = []
    if served.admin is not None:
        target = "" if data == DATA_DEFAULT else f" --data {shlex.quote(str(data))}"
        commands += [
            f"{firn} topic create greetings{target}",
            f"{firn} produce greetings hello --key ann{target}",
            f"{firn} read greetings --key ann{target}",
        ]
    if not guarded:
        commands.append(f"echo hello | kcat -P -b {served.kafka[0]} -t greetings")
    return commands or [f"{firn} serve --help"]


_DURABLE = {
    "fsync": "acknowledged means fsynced, unless a topic says otherwise",
    "interval": "acknowledged means written; synced soon after, unless a topic says otherwise",
    "os": "acknowledged means written; synced when the system likes, unless a topic says otherwise",
}
