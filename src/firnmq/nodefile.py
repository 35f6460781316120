"""`node.json` in a data directory: where the node that serves the directory can be reached.

A node writes the file when it serves and removes it when it stops. A file that a crash left behind
is recognised by the directory's lock: it is free, or held by a process that the file does not name.
This module imports nothing but the standard library, because short commands read the file.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import NamedTuple

NAME = "node.json"
LOCK_NAME = "LOCK"
META_NAME = "meta.db"
PROCESS_NAME = "process"
"""Directories of a machine's processes: `process1` and so on, below the directory they share."""
_LOCK_TEXT = "process {pid}\n"
_LOCK_TEXT_BYTES_MAX = 64
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class NodeAddress(NamedTuple):
    """How processes on the same machine reach a node."""

    http: str | None
    """URL of the HTTP listener; None if the node has none."""
    kafka: str
    """Host and port of the Kafka listener."""
    pid: int
    token_file: str | None = None
    """File with the bearer token of the HTTP listener; None if requests need no token."""


def reachable_host(host: str) -> str:
    """The host to connect to on this machine; in brackets if it is an IPv6 address."""
    host = _WILDCARDS.get(host.strip("[]"), host)
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT; an IPv6 host loses its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def joined_address(host: str, port: int) -> str:
    """HOST:PORT, with brackets around an IPv6 host."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_node_file(directory: str | os.PathLike[str], address: NodeAddress) -> None:
    """Replaces the file as a whole. Only the directory's owner may read it."""
    path = os.path.join(directory, NAME)
    draft = f"{path}.new"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(draft, flags, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        json.dump(address._asdict(), file)
    os.replace(draft, path)


def remove_node_file(directory: str | os.PathLike[str]) -> None:
    try:
        os.unlink(os.path.join(directory, NAME))
    except FileNotFoundError:
        pass


def process_count(directory: str | os.PathLike[str]) -> int:
    """How many processes a data directory belongs to; 0 if it is a single node's, or none yet."""
    count = 0
    while os.path.isdir(os.path.join(directory, f"{PROCESS_NAME}{count + 1}")):
        count += 1
    return count


def lock_text(pid: int) -> bytes:
    """What the holder of a directory's lock writes into it."""
    return _LOCK_TEXT.format(pid=pid).encode("ascii")


def node_serving(directory: str | os.PathLike[str]) -> NodeAddress | None:
    """The node that serves the directory now; None if no node does."""
    try:
        with open(os.path.join(directory, NAME), encoding="utf-8") as file:
            found = json.load(file)
        address = NodeAddress(**found)
    except (OSError, ValueError, TypeError):
        return None
    return address if _is_locked_by(directory, address.pid) else None


def is_locked(directory: str | os.PathLike[str]) -> bool:
    """Whether a process has the directory open."""
    return _lock_holder(directory) is not None


def _is_locked_by(directory: str | os.PathLike[str], pid: int) -> bool:
    return _lock_holder(directory) == lock_text(pid)


def _lock_holder(directory: str | os.PathLike[str]) -> bytes | None:
    """What the holder of the lock has written into it; None if nothing holds it."""
    try:
        lock = os.open(os.path.join(directory, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        # A shared lock for an instant: DirectoryLock tries more than once, so that this instant
        # keeps no node from starting.
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(lock, _LOCK_TEXT_BYTES_MAX, 0)
    finally:
        os.close(lock)
    return None
