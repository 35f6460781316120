"""Records through a node: by key, tag and time, and streamed as fast as the client reads."""

from __future__ import annotations

import itertools
import json
import socket
import zlib
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.integration.admin.serving import TIMEOUT_S, Served

SHARDS = 4
_names = (f"read{number}" for number in itertools.count())


@pytest.fixture
def indexed(node: Served) -> str:
    """A topic with several shards whose keys and tags are indexed."""
    name = next(_names)
    options = {"index.key": True, "index.tag": True, "segment.bytes": 65536}
    wanted = {"topic": name, "shard_count": SHARDS, "options": options}
    answer = node.call("POST", "/v1/topics", wanted)
    assert answer.status == 200, answer
    return name


def send(node: Served, topic: str, partitioner: str, values: dict[bytes, bytes]) -> set[int]:
    """Produces a value for each key; the partitions they went to."""
    places: set[int] = set()

    def note(error: object, message: Any) -> None:
        assert error is None
        places.add(message.partition())

    settings = {"bootstrap.servers": node.kafka, "partitioner": partitioner}
    producer = confluent_kafka.Producer(settings)
    for key, value in values.items():
        producer.produce(topic, value, key=key, headers=[("tag", b"sent")], on_delivery=note)
    assert producer.flush(TIMEOUT_S) == 0
    return places


@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent_random", "fnv1a_random"])
def test_a_key_is_found_whichever_partitioner_wrote_it(
    node: Served, indexed: str, documents, partitioner: str
) -> None:
    values = {b"user-%d" % number: b"%d" % number for number in range(40)}
    assert send(node, indexed, partitioner, values) == set(range(SHARDS))
    for key, value in values.items():
        (found,) = node.lines(f"/v1/topics/{indexed}/records?key={key.decode()}")
        assert (found["key"], found["value"]) == (key.decode(), value.decode())
    (found,) = documents("read", indexed, "--key", "user-7")
    assert found["value"] == "7"


def test_a_key_that_several_clients_wrote(node: Served, indexed: str, documents) -> None:
    """1. Two clients put the same key into different shards. 2. The later one is the newest, and
    `--all` shows both."""
    key = next(
        f"user-{number}"
        for number in itertools.count()
        if zlib.crc32(b"user-%d" % number) % SHARDS != 1
    )
    documents("produce", indexed, "old", "--key", key, "--timestamp-ms", "1000")
    documents("produce", indexed, "new", "--key", key, "--shard", "1", "--timestamp-ms", "2000")
    assert [each["value"] for each in documents("read", indexed, "--key", key)] == ["new"]
    both = documents("read", indexed, "--key", key, "--all")
    assert sorted(each["value"] for each in both) == ["new", "old"]
    early = documents("read", indexed, "--key", key, "--all", "--until", "1500")
    assert [each["value"] for each in early] == ["old"]


def test_reads_have_no_limit(node: Served, indexed: str, documents, run) -> None:
    """Every way to read gives exact counts, over many pages and segments."""
    count = 12_000
    lines = "".join(
        json.dumps(
            {
                "key": f"k{number % 10}",
                "value": "x" * 50,
                "tags": ["even"] if number % 2 == 0 else [],
                "timestamp_ms": 1000 + number,
            }
        )
        + "\n"
        for number in range(count)
    )
    assert run("produce", indexed, "--input", "json", stdin=lines).exit_code == 0
    assert len(documents("read", indexed)) == count
    assert len(documents("read", indexed, "-n", "7001")) == 7001
    assert len(documents("read", indexed, "--tag", "even")) == count // 2
    assert len(documents("read", indexed, "--key", "k3", "--all")) == count // 10
    window = ("--since", "3000", "--until", "9000")
    assert len(documents("read", indexed, *window)) == 6000
    assert len(documents("read", indexed, "--tag", "even", *window)) == 3000
    assert len(documents("read", indexed, "--key", "k3", "--all", *window)) == 600
    out = run("read", indexed, "-f", "%k\n").stdout.split()
    assert len(out) == count
    assert run("read", indexed, "--offset", "end").stdout == ""


class Raw:
    """A client that takes what it is sent only when it is told to."""

    def __init__(self, node: Served, path: str) -> None:
        host, _, port = node.url.removeprefix("http://").rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        self.socket.settimeout(TIMEOUT_S)
        self.socket.connect((host, int(port)))
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def take_all(self) -> int:
        total = 0
        while piece := self.socket.recv(1 << 20):
            total += len(piece)
            if piece.endswith(b"0\r\n\r\n"):
                break
        return total


def resident_kib(node: Served) -> int:
    status = Path(f"/proc/{node.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def test_clients_that_do_not_read_hold_little_memory(tmp_path: Path) -> None:
    """1. A topic has 64 MiB. 2. Eight clients ask for all of it and read nothing. 3. The node has
    read a page or two for each, not the topic. 4. A client that then reads gets everything."""
    node = Served(tmp_path / "data")
    try:
        node.call("POST", "/v1/topics", {"topic": "t"})
        path = "/v1/topics/t/records"
        body = {"records": [{"value": "x" * 64 * 1024}] * 64}
        for _ in range(16):
            assert node.call("POST", path, body).status == 200
        node.lines(f"{path}?max=1")
        before = resident_kib(node)
        clients = [Raw(node, path) for _ in range(8)]
        for client in clients:
            assert client.socket.recv(15) == b"HTTP/1.1 200 OK"
        node.lines(f"{path}?offset=-1000")  # Gives the others time to send what they can.
        held_kib = resident_kib(node) - before
        assert held_kib < 8 * 24 * 1024, "all of it would be 512 MiB"
        assert clients[0].take_all() > 64 * 1024 * 1024
        for client in clients:
            client.socket.close()
    finally:
        assert node.stop() == 0


def test_a_follower_that_goes_away_is_forgotten_and_a_node_that_stops_ends_the_stream(
    tmp_path: Path,
) -> None:
    node = Served(tmp_path / "data")
    try:
        node.call("POST", "/v1/topics", {"topic": "t"})
        gone = Raw(node, "/v1/topics/t/records?follow=true")
        assert gone.socket.recv(15) == b"HTTP/1.1 200 OK"
        gone.socket.close()
        staying = Raw(node, "/v1/topics/t/records?follow=true")
        assert staying.socket.recv(15) == b"HTTP/1.1 200 OK"
    finally:
        assert node.stop() == 0
    staying.take_all()  # It ends: the node closed the stream.
    staying.socket.close()
    assert not [line for line in node.log if "error" in line.lower()], node.log
