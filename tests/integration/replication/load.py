"""What clients do to a replicated topic while its nodes have faults."""

from __future__ import annotations

from tests.integration.cluster.nodes import Nodes, wait_until
from tests.integration.replication.clients import LoggedProducer, LoggedReader, check


class Load:
    """Producers and a reader, stopped and checked at the end."""

    def __init__(self, nodes: Nodes, topic: str, partition_count: int) -> None:
        self.nodes = nodes
        self._partition_count = partition_count
        where = self._where = nodes.bootstrap, topic, partition_count
        self.producers = [
            LoggedProducer(*where, "idempotent", is_idempotent=True),
            LoggedProducer(*where, "plain", is_idempotent=False),
        ]
        self.reader = LoggedReader(*where)

    def wait_progress(self, count: int = 50) -> None:
        """Returns once every partition has acknowledged more than until now."""
        before = [self._counts(index) for index in range(self._partition_count)]

        def has_grown() -> bool:
            return all(
                now > was + count
                for index in range(self._partition_count)
                for now, was in zip(self._counts(index), before[index], strict=True)
            )

        wait_until(has_grown, "every partition takes records")

    def _counts(self, partition: int) -> list[int]:
        return [producer.count_of(partition) for producer in self.producers]

    def close(self) -> None:
        for producer in self.producers:
            producer.stop()
        self.reader.stop()

    def check(self) -> None:
        assert not any(producer.failed for producer in self.producers)
        check(*self._where, self.producers, self.reader)
