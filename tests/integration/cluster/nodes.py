"""Three real node processes that share their metadata, and what tests ask of them."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

from firnmq.brokers.kafka.protocol import ApiKey, ErrorCode
from firnmq.brokers.kafka.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
)
from firnmq.testing.etcd import EtcdCluster
from tests.integration.kafka.nodes import QUICK, NodeProcess
from tests.integration.kafka.wire import Wire

WAIT_S = 60.0
_POLL_S = 0.05
TTL_MS = 1_500


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S:g} s: {what}"
        time.sleep(_POLL_S)


class Nodes:
    """Numbered from 1 on."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        etcd: EtcdCluster | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        shared = {"FIRN_CLUSTER_ENABLED": "true", "FIRN_CLUSTER_SESSION_TTL_MS": str(TTL_MS)}
        if etcd is None:
            shared["FIRN_CLUSTER_META_FILE"] = str(directory / "cluster.db")
        else:
            shared["FIRN_META_ENDPOINTS"] = ",".join(etcd.endpoints)
        self._shared = {**QUICK, **shared, **(settings or {})}
        self.processes = {
            number: NodeProcess(directory / f"node{number}", self.settings(number))
            for number in range(1, count + 1)
        }
        self.directory = directory

    def settings(self, number: int) -> dict[str, str]:
        return {**self._shared, "FIRN_KAFKA_NODE_ID": str(number)}

    def start(self) -> None:
        for process in self.processes.values():
            process.start()
        self.wait_registered()

    def close(self) -> None:
        for process in self.processes.values():
            process.close()

    def __getitem__(self, number: int) -> NodeProcess:
        return self.processes[number]

    def wait_registered(self, *numbers: int) -> None:
        """Returns once each of these nodes, by default all, lists exactly them."""
        wanted = set(numbers or self.processes)
        for number in wanted:
            wait_until(lambda n=number: self.listed(n) == wanted, f"node {number} lists {wanted}")

    def listed(self, number: int) -> set[int]:
        """The nodes that a node knows to be there."""
        with urlopen(f"{self[number].admin_url}/v1/cluster", timeout=WAIT_S) as answer:
            found = json.load(answer)
        return {each["node"] for each in found["nodes"] if each["state"] != "away"}

    def topics(self, number: int) -> list[dict[str, str]]:
        with urlopen(f"{self[number].admin_url}/v1/topics", timeout=WAIT_S) as answer:
            found: list[dict[str, str]] = json.load(answer)
        return found

    def metadata(self, number: int, topic: str) -> MetadataResponse:
        with closing(Wire(self[number].port)) as wire:
            asked = MetadataRequest(topics=[MetadataRequestTopic(name=topic)])
            answer = wire.ask(ApiKey.METADATA, 8, asked)
        assert isinstance(answer, MetadataResponse)
        return answer

    def leaders(self, number: int, topic: str) -> dict[int, int]:
        """The leader of each partition, as a node tells."""
        (found,) = self.metadata(number, topic).topics
        return {each.partition_index: each.leader_id for each in found.partitions}

    def wait_leaders(self, number: int, topic: str) -> dict[int, int]:
        """The same, once every partition has a leader that is there."""

        def all_there() -> bool:
            (found,) = self.metadata(number, topic).topics
            codes = [each.error_code for each in found.partitions]
            return bool(codes) and set(codes) == {ErrorCode.NONE}

        wait_until(all_there, f"node {number} names the leaders of {topic}")
        return self.leaders(number, topic)

    def partition_led_by(self, number: int, topic: str) -> int:
        leaders = self.leaders(number, topic)
        return next(index for index, leader in leaders.items() if leader == number)

    def pause(self, number: int) -> None:
        os.kill(self[number].pid, signal.SIGSTOP)

    def resume(self, number: int) -> None:
        os.kill(self[number].pid, signal.SIGCONT)

    @property
    def bootstrap(self) -> str:
        return ",".join(process.address for process in self.processes.values())
