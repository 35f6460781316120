"""What one client writes the others read, byte for byte."""

from __future__ import annotations

import pytest

from tests.integration.kafka.clients import CLIENTS, CODECS, Client
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import odd_rows


@pytest.mark.parametrize("codec", CODECS)
def test_all_read_what_one_wrote(
    client: Client, codec: str, node: NodeProcess, make_topic: MakeTopic
) -> None:
    if codec not in client.codecs():
        pytest.skip(f"{client.name} has no package for {codec} here")
    topic = make_topic(node)
    rows = list(filter(client.can_write, odd_rows()))
    with client.writer(node.address, codec=codec) as writer:
        writer.write(topic, rows)
    readers = [reader for reader in CLIENTS if codec in reader.codecs()]
    assert len(readers) >= 2
    for reader in readers:
        seen = reader.read(node.address, topic, len(rows))
        assert [each.row for each in seen] == rows, reader.name
        assert [each.offset for each in seen] == list(range(len(rows)))
