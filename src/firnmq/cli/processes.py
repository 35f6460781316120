"""`firn serve --processes N`: the process that supervises the others, and how they are started."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from firnmq.interrupts import STOPPED
from firnmq.nodefile import joined_address

if TYPE_CHECKING:
    from firnmq.server.processes.place import Place
    from firnmq.server.processes.supervisor import Program
    from firnmq.server.settings import NodeConfig

_PASSED = {
    "config_path": "--config",
    "host": "--host",
    "advertised_host": "--advertised-host",
    "admin_host": "--admin-host",
    "node_id": "--node-id",
}
_PASSED_FLAGS = {
    "no_admin": "--no-admin",
    "allow_insecure": "--allow-insecure",
    "log_json": "--log-json",
}
_PREDECESSOR_S = 35.0
"""How long processes are waited for whose supervisor has died: they stop by their own deadline."""
_LOOK_S = 0.1
_FAILED = 1


class Served(NamedTuple):
    """What there is to tell once all processes serve."""

    kafka: list[str]
    """HOST:PORT of each process."""
    admin: str | None
    """URL of the HTTP listener of all."""
    token: Path | None


def place_of(options: dict[str, Any], directory: Path, first_node: int) -> Place | None:
    """The process that hidden options say this is; None if it is the command of a user."""
    process, count, descriptor = (options.pop(each) for each in ("process", "of", "http_fd"))
    if process is None:
        return None
    from firnmq.server.processes.place import Place

    listening = None
    if descriptor is not None:
        listening = socket.socket(fileno=descriptor)
        listening.setblocking(False)
    return Place(
        directory=directory,
        process=process,
        count=count,
        first_node=first_node,
        listening=listening,
    )


def check_processes(config: NodeConfig, directory: Path, count: int) -> None:
    """Raises what would keep the processes from starting; changes nothing."""
    from firnmq.server.processes.place import KafkaPorts, check_count, check_settings
    from firnmq.server.sockets import open_listener

    check_count(directory, count)
    check_settings(config, count)
    KafkaPorts(config.kafka.host, config.kafka.port, count).close()
    if config.admin.enabled:
        open_listener(config.admin).close()


def serve_processes(
    config: NodeConfig,
    directory: Path,
    count: int,
    options: dict[str, Any],
    announce: Callable[[Served], None],
    say: Callable[[str], None],
) -> int:
    """Runs the processes until Ctrl-C or SIGTERM; the exit code."""
    from firnmq.disk import DirectoryLock
    from firnmq.server.admin.http.token import admin_token, check_token_file
    from firnmq.server.processes.place import KafkaPorts, check_count, check_settings
    from firnmq.server.processes.supervisor import Supervisor
    from firnmq.server.sockets import open_listener

    check_settings(config, count)
    with ExitStack() as opened:
        opened.callback(DirectoryLock(directory).release)
        check_count(directory, count)
        _wait_for_predecessors(directory, say)
        ports = KafkaPorts(config.kafka.host, config.kafka.port, count)
        opened.callback(ports.close)
        listening, token = None, None
        if config.admin.enabled:
            check_token_file(config.admin)
            listening = opened.enter_context(open_listener(config.admin))
        _prepare(config, directory, count)
        if listening is not None:
            token = admin_token(directory, config.admin, config.security)
        where = None if token is None else token.path.resolve()

        def ready() -> None:
            addresses = [joined_address(config.kafka.host, port) for port in ports.ports]
            admin = None if listening is None else listening.getsockname()[1]
            _write_address(opened, directory, config, ports.ports[0], admin, where)
            host = joined_address(config.admin.host, admin or 0)
            announce(Served(addresses, None if admin is None else f"http://{host}", where))

        programs = [
            _program(directory, process, count, port, listening, options)
            for process, port in enumerate(ports.ports, 1)
        ]
        stopping = "stopping  requests that have begun are answered first"
        stopped = Supervisor(programs, say).run(ready, partial(say, stopping))
    for failure in stopped.failures:
        say(failure)
    where = directory.resolve()
    say(f"stopped   {count} processes; everything that was acknowledged is stored in {where}")
    if stopped.failures:
        return _FAILED
    return STOPPED if stopped.by is signal.SIGINT else 0


def _wait_for_predecessors(directory: Path, say: Callable[[str], None]) -> None:
    """Returns once no process of an earlier start has a part of the directory open."""
    from firnmq.errors import DirectoryInUse
    from firnmq.nodefile import is_locked, process_count
    from firnmq.server.processes.place import process_directory

    waits_until, has_told = time.monotonic() + _PREDECESSOR_S, False
    for process in range(1, process_count(directory) + 1):
        path = process_directory(directory, process)
        while is_locked(path):
            if not has_told:
                say(f"waiting   for process {process} of an earlier start, which is stopping")
                has_told = True
            if time.monotonic() > waits_until:
                raise DirectoryInUse(str(path), "a process of an earlier start")
            time.sleep(_LOOK_S)


def _prepare(config: NodeConfig, directory: Path, count: int) -> None:
    """Makes the processes' directories. If a single node has served the directory so far, the first
    process gets what it has."""
    from firnmq.clock import SystemClock
    from firnmq.disk.private import private_umask
    from firnmq.server.processes.growth import check_growth, grow, make_directories

    kafka = config.kafka
    with private_umask():
        check_growth(directory, kafka.node_id)
        make_directories(directory, count)
        grow(directory, kafka.node_id, kafka.cluster_id, SystemClock())


def _program(
    directory: Path,
    process: int,
    count: int,
    port: int,
    listening: socket.socket | None,
    options: dict[str, Any],
) -> Program:
    from firnmq.nodefile import node_serving
    from firnmq.server.processes.place import process_directory
    from firnmq.server.processes.supervisor import Program

    command = [sys.executable, "-m", "firnmq", "serve", "--data", str(directory)]
    for name, option in _PASSED.items():
        if options[name] is not None:
            command += [option, str(options[name])]
    command += [flag for name, flag in _PASSED_FLAGS.items() if options[name]]
    command += ["--port", str(port), "--process", str(process), "--of", str(count)]
    if listening is not None:
        command += ["--http-fd", str(listening.fileno())]
    path = process_directory(directory, process)

    def is_ready(pid: int) -> bool:
        address = node_serving(path)
        return address is not None and address.pid == pid

    return Program(
        name=f"process {process}",
        command=command,
        is_ready=is_ready,
        descriptors=() if listening is None else (listening.fileno(),),
    )


def _write_address(
    opened: ExitStack,
    directory: Path,
    config: NodeConfig,
    port: int,
    admin_port: int | None,
    token: Path | None,
) -> None:
    """Writes the node file, in which commands find the address of all processes."""
    from firnmq.nodefile import NodeAddress, reachable_host, remove_node_file, write_node_file

    host = reachable_host(config.admin.host)
    address = NodeAddress(
        http=None if admin_port is None else f"http://{host}:{admin_port}",
        kafka=f"{reachable_host(config.kafka.host)}:{port}",
        pid=os.getpid(),
        token_file=None if token is None else str(token),
    )
    write_node_file(directory, address)
    opened.callback(remove_node_file, directory)


def hidden_options(function: Any) -> Any:
    """What the supervisor tells the processes that it starts."""
    for name in ("--process", "--of", "--http-fd"):
        function = click.option(name, type=int, default=None, hidden=True)(function)
    return function
