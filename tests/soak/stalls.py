"""How long one request keeps a node from answering others: `python -m tests.soak.stalls`.

A node in a process of its own gets the largest requests that can be made for every API, one after
the other, while another process asks for ApiVersions all the time. Printed is the longest time in
which that process got no answer. The machine must have nothing else to do: what else runs counts.
Last, eight clients at once produce a batch with as many keys as one may have to a topic with a key
index.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import UUID

from firnmq.brokers.kafka.protocol import ApiKey, Message, RequestHeader, decode_response
from firnmq.brokers.kafka.protocol import encode_request as encoded
from firnmq.brokers.kafka.protocol.messages import admin, metadata, produce_fetch
from firnmq.record import NewRecord, encode
from firnmq.testing.large_requests import LargeRequest, large_requests
from tests.integration.kafka.nodes import NodeProcess

_TOPIC, _GROUP = "wide", "group"
_PARTITIONS = 1_000
_INDEXED = "indexed"
_BATCHES, _KEYS = 8, 100_000
_SHUFFLING_FACTOR = 618_033_988_749
_PROBE_S = 0.002
_ANSWER_S_MAX = 20.0


def probe(port: int, control: Connection) -> None:
    """Asks again and again; tells the longest wait since it was last asked for it."""
    with socket.create_connection(("127.0.0.1", port)) as client:
        frame = _frame(ApiKey.API_VERSIONS, 0, metadata.ApiVersionsRequest())
        worst_s = 0.0
        while True:
            began_s = time.perf_counter()
            client.sendall(frame)
            _receive(client)
            worst_s = max(worst_s, time.perf_counter() - began_s)
            if control.poll():
                if not control.recv():
                    return
                control.send(worst_s)
                worst_s = 0.0
            time.sleep(_PROBE_S)


def _frame(api_key: int, version: int, message: Message) -> bytes:
    header = RequestHeader(api_key=api_key, api_version=version, correlation_id=1, client_id="me")
    return b"".join(encoded(header, message))  # type: ignore[arg-type]


def _receive(client: socket.socket) -> bytes:
    """The next answer without its size; empty if the node has closed the connection."""
    try:
        head = client.recv(4, socket.MSG_WAITALL)
        if len(head) < 4:
            return b""
        left = int.from_bytes(head, "big")
        parts = []
        while left:
            part = client.recv(min(left, 1 << 20))
            if not part:
                return b""
            parts.append(part)
            left -= len(part)
        return b"".join(parts)
    except (TimeoutError, ConnectionError):
        return b""


class _Client:
    def __init__(self, port: int) -> None:
        self._port = port

    def ask(self, api_key: int, version: int, message: Message) -> Message:
        answer, _ = self.send(_frame(api_key, version, message))
        return decode_response(api_key, version, answer)[1]

    def send(self, frame: bytes) -> tuple[bytes, float]:
        """The answer, and how long it took."""
        began_s = time.perf_counter()
        with socket.create_connection(("127.0.0.1", self._port), _ANSWER_S_MAX) as client:
            try:
                client.sendall(frame)
            except ConnectionError:
                return b"", time.perf_counter() - began_s
            answer = _receive(client)
            return answer, time.perf_counter() - began_s


def _memory_mib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) // 1024
    return 0


def _prepare(client: _Client) -> UUID:
    topic = admin.CreatableTopic(name=_TOPIC, num_partitions=_PARTITIONS, replication_factor=1)
    client.ask(ApiKey.CREATE_TOPICS, 7, admin.CreateTopicsRequest(topics=[topic]))
    wanted = metadata.MetadataRequestTopic(name=_TOPIC)
    answer = client.ask(ApiKey.METADATA, 12, metadata.MetadataRequest(topics=[wanted]))
    assert isinstance(answer, metadata.MetadataResponse)
    return answer.topics[0].topic_id


def _requests(count: int, only: str, topic_id: UUID) -> Iterator[LargeRequest]:
    for request in large_requests(count, topic=_TOPIC, topic_id=topic_id, group=_GROUP):
        if only.lower() in request.label.lower():
            yield request


def _indexed_frames(client: _Client) -> list[bytes]:
    """Produce requests, one per partition, each with a batch of distinct keys in no order."""
    options = [admin.CreatableTopicConfig(name="index.key", value="true")]
    topic = admin.CreatableTopic(
        name=_INDEXED, num_partitions=_BATCHES, replication_factor=1, configs=options
    )
    client.ask(ApiKey.CREATE_TOPICS, 7, admin.CreateTopicsRequest(topics=[topic]))
    frames = []
    for partition in range(_BATCHES):
        keys = [b"key-%012d" % (at * _SHUFFLING_FACTOR % 10**12) for at in range(_KEYS)]
        records = encode([NewRecord(key=key, value=b"v") for key in keys], now_ms=1)
        data = produce_fetch.PartitionProduceData(index=partition, records=bytes(records))
        produced = produce_fetch.TopicProduceData(name=_INDEXED, partition_data=[data])
        request = produce_fetch.ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[produced])
        frames.append(_frame(ApiKey.PRODUCE, 9, request))
    return frames


def _produce_at_once(client: _Client, frames: list[bytes]) -> tuple[int, float]:
    began_s = time.perf_counter()
    with ThreadPoolExecutor(len(frames)) as pool:
        answers = [answer for answer, _ in pool.map(client.send, frames)]
    for answer in answers:
        found = decode_response(ApiKey.PRODUCE, 9, answer)[1]
        assert isinstance(found, produce_fetch.ProduceResponse)
        assert found.responses[0].partition_responses[0].error_code == 0, found
    return sum(map(len, answers)), time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=49_000, help="elements of each request")
    parser.add_argument("--only", default="", help="requests whose label has this")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        node = NodeProcess(Path(directory) / "data")
        node.start()
        control, other = multiprocessing.Pipe()
        try:
            client = _Client(node.port)
            topic_id = _prepare(client)
            prober = multiprocessing.Process(target=probe, args=(node.port, other), daemon=True)
            prober.start()
            print(f"{'stall ms':>9} {'took ms':>9} {'answer':>11} {'peak MiB':>9}  request")
            for request in _requests(options.count, options.only, topic_id):
                control.send(True)
                control.recv()
                answer, took_s = client.send(request.frame)
                control.send(True)
                print(
                    f"{control.recv() * 1000:9.1f} {took_s * 1000:9.0f} {len(answer):11,} "
                    f"{_memory_mib(node.pid):9,}  {request.label} ({len(request.frame):,} bytes)",
                    flush=True,
                )
            if options.only.lower() in _INDEXED:
                frames = _indexed_frames(client)
                for _ in range(3):
                    control.send(True)
                    control.recv()
                    answer_bytes, took_s = _produce_at_once(client, frames)
                    control.send(True)
                    print(
                        f"{control.recv() * 1000:9.1f} {took_s * 1000:9.0f} {answer_bytes:11,} "
                        f"{_memory_mib(node.pid):9,}  {_BATCHES} batches of {_KEYS:,} keys",
                        flush=True,
                    )
            control.send(False)
            prober.join()
        finally:
            node.close()


if __name__ == "__main__":
    main()
