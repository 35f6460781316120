"""What one client writes with any codec and any acknowledgement, it reads back."""

from __future__ import annotations

import random

import pytest

from tests.integration.kafka.clients import ACKS, CODECS, Client, TooLarge
from tests.integration.kafka.conftest import MakeTopic
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.kafka.rows import BASE_MS, Row, numbered, odd_rows

STORAGE_TYPES = ("EngineMemory", "EngineRocksDB", "EngineSegment")
LARGE_BYTES = 950_000


def skip_without(client: Client, codec: str) -> None:
    if codec not in client.codecs():
        pytest.skip(f"{client.name} has no package for {codec} here")


@pytest.mark.parametrize("codec", CODECS)
def test_codecs(client: Client, codec: str, node: NodeProcess, make_topic: MakeTopic) -> None:
    skip_without(client, codec)
    topic = make_topic(node, partitions=3)
    rows = numbered(300, prefix="a value that compresses " * 4, partitions=3)
    for acks in ACKS:
        with client.writer(node.address, codec=codec, acks=acks) as writer:
            writer.write(topic, rows)
    seen = client.read(node.address, topic, 900, partitions=3)
    assert sorted(each.row.value or b"" for each in seen) == sorted(
        3 * [row.value or b"" for row in rows]
    )
    for partition in range(3):
        offsets = [each.offset for each in seen if each.row.partition == partition]
        assert offsets == list(range(300))


@pytest.mark.parametrize("storage_type", STORAGE_TYPES)
def test_every_storage_type_keeps_every_record(
    client: Client, storage_type: str, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, storage_type=storage_type)
    rows = list(filter(client.can_write, odd_rows()))
    with client.writer(node.address, codec="gzip", idempotent=True) as writer:
        offsets = writer.write(topic, rows)
    assert offsets == list(range(len(rows)))
    seen = client.read(node.address, topic, len(rows))
    assert [each.row for each in seen] == rows
    assert client.bounds(node.address, topic) == (0, len(rows))


def test_large_records(client: Client, node: NodeProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(node)
    noise = random.Random(7).randbytes(LARGE_BYTES)
    rows = [Row(value=noise[i:] + noise[:i]) for i in range(12)]
    with client.writer(node.address) as writer:
        writer.write(topic, rows)
    assert [each.row for each in client.read(node.address, topic, 12)] == rows


def test_too_large_records_are_refused_and_the_connection_stays(
    client: Client, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node, max_message_bytes=65_536, max_record_bytes=65_536)
    with client.writer(node.address) as writer:
        assert writer.write(topic, [Row(value=b"first")]) == [0]
        for _ in range(3):
            with pytest.raises(TooLarge):
                writer.write(topic, [Row(value=bytes(100_000))])
        assert writer.write(topic, [Row(value=b"second")]) == [1]
    assert [each.row.value for each in client.read(node.address, topic, 2)] == [b"first", b"second"]


def test_many_partitions(client: Client, node: NodeProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(node, partitions=50)
    rows = numbered(500, partitions=50)
    with client.writer(node.address, idempotent=True) as writer:
        writer.write(topic, rows)
    seen = client.read(node.address, topic, 500, partitions=50)
    assert sorted((each.row.partition, each.offset) for each in seen) == [
        (partition, offset) for partition in range(50) for offset in range(10)
    ]


def test_positions(client: Client, node: NodeProcess, make_topic: MakeTopic) -> None:
    topic = make_topic(node)
    address = node.address
    assert client.bounds(address, topic) == (0, 0)
    assert client.offset_at(address, topic, BASE_MS) is None
    with client.writer(address, codec="gzip") as writer:
        for begin in (0, 40, 80):
            writer.write(topic, numbered(120)[begin : begin + 40])
    assert client.bounds(address, topic) == (0, 120)
    for timestamp_ms, offset in (
        (0, 0),
        (BASE_MS, 0),
        (BASE_MS + 57, 57),
        (BASE_MS + 80, 80),
        (BASE_MS + 119, 119),
        (BASE_MS + 120, None),
    ):
        assert client.offset_at(address, topic, timestamp_ms) == offset
    # Offset 57 lies inside a batch, whose earlier records the client must not show.
    seen = client.read(address, topic, 63, start=57)
    assert [each.offset for each in seen] == list(range(57, 120))


def test_a_reader_at_the_end_sees_what_comes_next(
    client: Client, node: NodeProcess, make_topic: MakeTopic
) -> None:
    topic = make_topic(node)
    with client.writer(node.address) as writer:
        writer.write(topic, numbered(10, prefix="old"))
        news = numbered(10, prefix="new")
        seen = client.read_from_end(node.address, topic, 10, lambda: writer.write(topic, news))
    assert [each.row for each in seen] == news
    assert [each.offset for each in seen] == list(range(10, 20))
