"""One data directory of several processes: its parts, and the configuration of each process."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from firnmq.errors import CannotListen, InvalidArgument, PortsTaken
from firnmq.nodefile import META_NAME, PROCESS_NAME, process_count
from firnmq.server.settings import NodeConfig
from firnmq.server.sockets import new_socket

PROCESSES_MAX = 64
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One process of a machine, as it knows itself and the others."""

    directory: Path
    """Of the whole machine."""
    process: int
    """From 1 on."""
    count: int
    first_node: int
    """The node of process 1; the others follow."""
    listening: socket.socket | None
    """The HTTP listener of all processes; None if they have none."""

    @property
    def path(self) -> Path:
        """The process's own data directory."""
        return process_directory(self.directory, self.process)

    @property
    def node(self) -> int:
        return self.first_node + self.process - 1

    @property
    def nodes(self) -> dict[int, int]:
        """All processes by their nodes."""
        return {self.first_node + each: each + 1 for each in range(self.count)}


def process_directory(directory: Path, process: int) -> Path:
    return directory / f"{PROCESS_NAME}{process}"


def wanted_processes(text: str) -> int:
    """The number of processes that an option says: a number, or one for each core."""
    if text == "auto":
        return min(len(os.sched_getaffinity(0)), PROCESSES_MAX)
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= PROCESSES_MAX:
        raise InvalidArgument("processes", f"must be 1 to {PROCESSES_MAX} or auto, not {text!r}")
    return int(text)


def check_count(directory: Path, wanted: int) -> None:
    """InvalidArgument if the directory has more processes: each of them has shards of its own."""
    present = process_count(directory)
    if wanted < present:
        raise InvalidArgument(
            "processes",
            f"{directory} has {present}, and each keeps shards that no other one has; serve it "
            f"with --processes {present}. To have fewer, copy the topics to another directory "
            "while both are served",
        )


def check_settings(config: NodeConfig, count: int) -> None:
    """InvalidArgument for settings that several processes cannot have."""
    if config.cluster.enabled:
        text = "the processes of a machine are a cluster of their own; leave [cluster] out"
        raise InvalidArgument("cluster.enabled", text)
    kafka = config.kafka
    for name, port in (("port", kafka.port), ("advertised_port", kafka.advertised_port)):
        if port and port + count - 1 > _PORT_MAX:
            text = f"{count} processes take ports {port} to {port + count - 1}, above {_PORT_MAX}"
            raise InvalidArgument(f"kafka.{name}", text)
    config_of(config, Path(), count, 0)  # What a node of a cluster cannot have is refused.


def config_of(config: NodeConfig, directory: Path, process: int, port: int) -> NodeConfig:
    """The configuration of one process, whose Kafka port is given."""
    kafka, tiering, at = config.kafka, config.tiering, process - 1
    advertised = kafka.advertised_port
    return dataclasses.replace(
        config,
        kafka=dataclasses.replace(
            kafka,
            port=port,
            advertised_port=advertised + at if advertised else advertised,
            node_id=kafka.node_id + at,
        ),
        tiering=dataclasses.replace(
            tiering,
            cache_directory=(
                None
                if tiering.cache_directory is None
                else process_directory(tiering.cache_directory, process)
            ),
        ),
        cluster=dataclasses.replace(
            config.cluster,
            enabled=True,
            meta_file=directory / META_NAME,
            replication_factor=1,  # The processes of one machine are lost together.
            host="127.0.0.1",
            port=0,
            advertised_host=None,
        ),
    )


class KafkaPorts:
    """Consecutive ports, which no program gets that asks for any free one while a process of ours
    starts again. Close it when done."""

    def __init__(self, host: str, first: int, count: int) -> None:
        """PortsTaken if not all are free. 0: any free ports, which need not be consecutive."""
        self.ports: list[int] = []
        taken: list[int] = []
        with ExitStack() as opened:
            for port in range(first, first + count) if first else [0] * count:
                # Bound and not listening: the process binds it as well, and others cannot.
                held = opened.enter_context(new_socket(host))
                try:
                    held.bind((host, port))
                except OSError as error:
                    if error.errno != errno.EADDRINUSE:
                        raise CannotListen("kafka", host, port, error) from error
                    taken.append(port)
                else:
                    self.ports.append(held.getsockname()[1])
            if taken:
                raise PortsTaken(host, taken, first, count)
            self._held = opened.pop_all()

    def close(self) -> None:
        self._held.close()
