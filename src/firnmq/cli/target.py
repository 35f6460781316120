"""What a command works on: a running node or a data directory. One rule for all commands.

1. `--node URL`, before or after the command: that node.
2. `--data DIR`: that directory, through its node if a node serves it.
3. `FIRN_NODE`, then `FIRN_DATA`: likewise.
4. Otherwise `./firn-data`, through its node if a node serves it. If there is no such directory and
   a node answers at the default address, that node, which the command tells on standard error. A
   command that changes something is refused there: the user named neither node nor directory.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from firnmq.cli.errors import (
    DirectoryServed,
    NoDataDirectory,
    NodeNeeded,
    NodeNotNamed,
    NodeWithoutHttp,
)
from firnmq.cli.node import (
    NODE_DEFAULT,
    NodeClient,
    NodeRefused,
    NodeUnreachable,
    token_for,
    token_in,
)
from firnmq.errors import SeveralProcesses
from firnmq.nodefile import NodeAddress, node_serving, process_count, reachable_host

if TYPE_CHECKING:
    from firnmq.server import Store

F = TypeVar("F", bound=Callable[..., Any])

DATA_DEFAULT = Path("firn-data")
_META = "firnmq.target"
_TOLD = "firnmq.target.told"
_LOOK_S = 2.0


class _Given(NamedTuple):
    value: Any
    is_typed: bool
    """Whether it stands on the command line; the environment counts less."""


class Served(NamedTuple):
    """A node to work through."""

    url: str
    token: str | None
    kafka: str | None
    """Its Kafka address, if a data directory named it."""


def _note(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Keeps what an option says, whichever command or group of the line it stands at."""
    assert param.name is not None
    if value is None:
        return
    is_typed = ctx.get_parameter_source(param.name) is ParameterSource.COMMANDLINE
    notes: dict[str, _Given] = ctx.meta.setdefault(_META, {})
    before = notes.get(param.name)
    if before is None or is_typed >= before.is_typed:
        notes[param.name] = _Given(value, is_typed)


def _data_option(text: str) -> Callable[[F], F]:
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="FIRN_DATA",
        show_envvar=True,
        expose_value=False,
        callback=_note,
        help=f"{text}  [default: ./firn-data]",
    )


_OPTIONS = (
    _data_option("Data directory; if a node serves it, through that node."),
    click.option(
        "--node",
        metavar="URL",
        envvar="FIRN_NODE",
        show_envvar=True,
        expose_value=False,
        callback=_note,
        help=f"Running node, such as {NODE_DEFAULT}, instead of a data directory.",
    ),
)


def target_options(function: F) -> F:
    """Adds `--data` and `--node`. The command asks this module what they mean."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def directory_option(function: F) -> F:
    """Adds `--data` alone, to commands that no node can carry out."""
    return _data_option("Data directory; no node may be serving it.")(function)


def chosen_directory() -> Path:
    """The data directory of the command line, whether or not a node serves it."""
    given = _given("data")
    return DATA_DEFAULT if given is None else given.value


def typed_target() -> tuple[str | None, Path | None]:
    """The node and the data directory that the command line itself names, not the environment."""
    node, data = (
        given.value if given is not None and given.is_typed else None
        for given in (_given("node"), _given("data"))
    )
    return node, data


def is_target_typed() -> bool:
    return typed_target() != (None, None)


def is_node_named() -> bool:
    """Whether the command line or the environment names a node."""
    return _given("node") is not None


def kafka_address(target: Served) -> str:
    """Where a node has its Kafka listener, as the node tells."""
    from urllib.parse import urlsplit

    client = NodeClient(target.url, target.token)
    try:
        host, _, port = str(client.get("node")["kafka"]).rpartition(":")
    finally:
        client.close()
    if reachable_host(host) != host:  # A wildcard: the host that answers HTTP answers Kafka too.
        host = urlsplit(target.url if "//" in target.url else f"//{target.url}").hostname or host
    return f"{reachable_host(host)}:{port}"


def chosen_target(*, changes: bool, is_silent: bool = False) -> Served | None:
    """The node to work through; None if the command is to open the data directory itself.
    `changes`: whether the command changes something. A command tells if it takes a node that the
    user did not name, unless it `is_silent`."""
    node, data = _given("node"), _given("data")
    if node is not None and data is not None:
        if node.is_typed and data.is_typed:
            raise click.UsageError("--node and --data cannot be used together")
        if data.is_typed:
            node = None
    if node is not None:
        return Served(node.value, token_for(node.value, chosen_directory()), None)
    directory = chosen_directory()
    address = node_serving(directory)
    if address is not None:
        return _served(directory, address)
    if data is None and not directory.exists():
        return _unnamed_node(changes=changes, is_silent=is_silent)
    return None


def _unnamed_node(*, changes: bool, is_silent: bool) -> Served | None:
    """The node at the default address, if there is one. No user named it, so it gets no token."""
    client = NodeClient(NODE_DEFAULT)
    client.set_timeout(_LOOK_S)
    try:
        where = f" (data {client.get('node')['data']})"
    except NodeUnreachable:
        return None  # Another program may have the port.
    except NodeRefused:
        where = ""  # It asks for a token, as it will for the command.
    finally:
        client.close()
    if changes:
        raise NodeNotNamed(NODE_DEFAULT, where, str(DATA_DEFAULT))
    meta = click.get_current_context().meta
    if not is_silent and not meta.get(_TOLD):
        click.echo(f"through {NODE_DEFAULT}{where}", err=True)
        meta[_TOLD] = True
    return Served(NODE_DEFAULT, None, None)


def chosen_node(*, changes: bool, is_silent: bool = False) -> NodeClient | None:
    """A client of that node, closed when the command ends."""
    target = chosen_target(changes=changes, is_silent=is_silent)
    if target is None:
        return None
    client = NodeClient(target.url, target.token)
    click.get_current_context().call_on_close(client.close)
    return client


def running_node(*, changes: bool) -> NodeClient:
    """The node, for commands that only a node can answer."""
    node = chosen_node(changes=changes)
    if node is None:
        raise NodeNeeded(str(chosen_directory()))
    return node


def unserved_directory() -> Path:
    """The data directory, for commands that open it themselves."""
    node = _given("node")
    if node is not None and node.is_typed:
        raise click.UsageError("this command works on a data directory, not through a node")
    directory = chosen_directory()
    address = node_serving(directory)
    if address is not None:
        raise DirectoryServed(str(directory), address.pid)
    return directory


@contextmanager
def opened(
    config_path: Path | None = None, *, create: bool = False, background: bool = True
) -> Iterator[Store]:
    """The store in the data directory, which must be there unless it may be made. The object store
    is that of the file, by default the one that FIRN_CONFIG names, or of FIRN_TIERING_URL."""
    data = unserved_directory()
    count = process_count(data)
    if count:
        raise SeveralProcesses(str(data), count)
    if not create and not (data / "db").is_dir():
        raise NoDataDirectory(str(data))
    from firnmq.config import load_store_config, load_tiering_config
    from firnmq.disk.private import private_umask
    from firnmq.server import LocalStore, Store
    from firnmq.server.tier import existing_object_store

    node_file = os.environ.get("FIRN_CONFIG")
    if config_path is None and node_file:
        config_path = Path(node_file)
    with private_umask():
        # What is in the object store is read, but a short command begins no upload.
        local = LocalStore(
            data,
            config=load_store_config(),
            background=background,
            tiering=load_tiering_config(path=config_path),
            moves=False,
            open_objects=existing_object_store,
        )
        with Store(local) as store:
            yield store


def _given(name: str) -> _Given | None:
    notes: dict[str, _Given] = click.get_current_context().meta.get(_META, {})
    return notes.get(name)


def _served(directory: Path, address: NodeAddress) -> Served:
    if address.http is None:
        raise NodeWithoutHttp(str(directory), address.kafka)
    if address.token_file is None:
        return Served(address.http, None, address.kafka)
    token = token_in(Path(address.token_file), directory) or token_for(address.http, directory)
    return Served(address.http, token, address.kafka)
