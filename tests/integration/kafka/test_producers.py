"""What a node keeps of idempotent producers, and for how long."""

from __future__ import annotations

import time
from pathlib import Path

from tests.integration.kafka.clients import READ_TIMEOUT_S, Client
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import numbered

IMPATIENT = {
    "FIRN_PRODUCER_EXPIRATION_MS": "100",
    "FIRN_HOUSEKEEPING_MS": "50",
    "FIRN_STATE_SYNC_MS": "50",
}


def test_a_producer_that_was_forgotten_goes_on(
    client: Client, tmp_path: Path, make_topic: MakeTopic
) -> None:
    node = NodeProcess(tmp_path / "data", IMPATIENT)
    node.start()
    try:
        topic = make_topic(node)
        rows = numbered(30)
        with client.writer(node.address, idempotent=True) as writer:
            for number in range(3):
                assert writer.write(topic, rows[number * 10 :][:10])
                wait_forgotten(node, number + 1)
        seen = client.read(node.address, topic, 30)
        assert [each.row.value for each in seen] == [row.value for row in rows]
        assert [each.offset for each in seen] == list(range(30))
    finally:
        node.close()


def wait_forgotten(node: NodeProcess, count: int) -> None:
    """Returns when the node has told so often that it forgot a producer."""
    deadline = time.monotonic() + READ_TIMEOUT_S
    while node.errors().count("producers_forgotten") < count:
        assert time.monotonic() < deadline, node.errors()
        time.sleep(0.02)
