"""Three nodes of ours, and three Kafka brokers, on one machine."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kafka_peer import (
    JVM_OPTIONS,
    Server,
    anonymous_bytes,
    cpu_seconds,
    fetch_kafka,
    find_program,
    free_port,
    server_properties,
)

NODES = (1, 2, 3)


class FirnNode(Server):
    name = "firn"

    def __init__(self, directory: Path, number: int, meta_file: Path) -> None:
        super().__init__(directory)
        self._environment = {
            **os.environ,
            "FIRN_KAFKA_NODE_ID": str(number),
            "FIRN_CLUSTER_ENABLED": "true",
            "FIRN_CLUSTER_META_FILE": str(meta_file),
        }

    def command(self) -> list[str]:
        data = self.directory / "data"
        serve = ["serve", "--data", str(data), "--port", str(self.port), "--admin-port", "0"]
        variables = [f"{name}={value}" for name, value in self._environment.items()]
        return ["env", *variables, sys.executable, "-m", "firnmq", *serve]


class KafkaBroker(Server):
    """One of three brokers that are controllers as well."""

    name = "kafka"

    def __init__(
        self, directory: Path, number: int, controllers: Sequence[int], cluster_id: str
    ) -> None:
        super().__init__(directory)
        self._java, self._classpath = find_program("java"), f"{fetch_kafka()}/*"
        voters = ",".join(
            f"{node}@127.0.0.1:{port}" for node, port in zip(NODES, controllers, strict=True)
        )
        changes = {
            "node.id": number,
            "controller.quorum.voters": voters,
            "offsets.topic.replication.factor": 3,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
        }
        controller_port = controllers[number - 1]
        self._properties = directory / "server.properties"
        self._properties.write_text(
            server_properties(directory / "data", self.port, controller_port, changes),
            encoding="utf-8",
        )
        arguments = ["format", "-t", cluster_id, "-c", str(self._properties)]
        tool = [self._java, "-cp", self._classpath, "kafka.tools.StorageTool", *arguments]
        subprocess.run(tool, check=True, capture_output=True)

    def command(self) -> list[str]:
        main = ["kafka.Kafka", str(self._properties)]
        return [self._java, *JVM_OPTIONS, "-cp", self._classpath, *main]


class Three(ABC):
    """Three servers that are one cluster."""

    def __init__(self, directory: Path) -> None:
        self.servers: dict[int, Server] = {}
        for number in NODES:
            (directory / str(number)).mkdir(parents=True)
        for number in NODES:
            self.servers[number] = self._made(directory, number)

    @abstractmethod
    def _made(self, directory: Path, number: int) -> Server: ...

    def start(self) -> None:
        try:
            for server in self.servers.values():
                server.launch()
            for server in self.servers.values():
                server.wait_listening()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()

    @property
    def address(self) -> str:
        return ",".join(server.address for server in self.servers.values())

    @property
    def cpu_seconds(self) -> float:
        return sum(cpu_seconds(server.pid) for server in self.servers.values())

    @property
    def anonymous_bytes(self) -> int:
        return sum(anonymous_bytes(server.pid) for server in self.servers.values())


class FirnCluster(Three):
    def _made(self, directory: Path, number: int) -> Server:
        return FirnNode(directory / str(number), number, directory / "cluster.db")


class KafkaCluster(Three):
    def __init__(self, directory: Path) -> None:
        self._controllers = [free_port() for _ in NODES]
        tool = [find_program("java"), "-cp", f"{fetch_kafka()}/*", "kafka.tools.StorageTool"]
        made = subprocess.run([*tool, "random-uuid"], check=True, capture_output=True, text=True)
        self._cluster_id = made.stdout.strip()
        super().__init__(directory)

    def _made(self, directory: Path, number: int) -> Server:
        return KafkaBroker(directory / str(number), number, self._controllers, self._cluster_id)
