"""Producing to this server and to other servers of streams, where they are installed.

Every server is loaded over one socket by the barest client of its protocol with records of 1 KiB,
10,000 of them on the way at most, each acknowledged. What acknowledged means is the same on both
sides of a row: in the page cache, or synced. Where a protocol has batches they hold 60 records.
"""

from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Bar, Measured, Run, benchmark
from benchmarks.kafka_client import Client
from benchmarks.kafka_peer import Firn
from benchmarks.stream_peers import Nats, RabbitMq, Redis, produce_firn
from benchmarks.workload import values

_RECORDS = 50_000
_UNINDEXED = {"index.key": "false", "index.tag": "false"}

_Peer = Nats | RabbitMq | Redis


def _compared(run: Run, make_peer: Callable[[Path], _Peer], durability: str) -> Measured:
    """Records per second of ours and of the peer, in alternating rounds on fresh streams."""
    root = run.scratch()
    for name in ("peer", "ours"):
        (root / name).mkdir()
    # The peer first: where it cannot be had, nothing else needs to be made.
    peer, ours = make_peer(root / "peer"), Firn(root / "ours")
    payload = values(_RECORDS)

    def round_of_ours() -> float:
        topic = client.create(1, {**_UNINDEXED, "durability": durability})
        try:
            return _RECORDS / produce_firn(ours, topic, payload)
        finally:
            client.delete(topic)

    try:
        peer.start()
        ours.start()
        client = Client(ours.address)
        return run.alternate(ours=round_of_ours, baseline=lambda: _RECORDS / peer.produce(payload))
    finally:
        ours.stop()
        peer.stop()


@benchmark("peer_nats", unit="records/s", bar=Bar.none())
def peer_nats(run: Run) -> Measured:
    """JetStream's file store against durability=os."""
    return _compared(run, Nats, "os")


@benchmark("peer_rabbitmq", unit="records/s", bar=Bar.none())
def peer_rabbitmq(run: Run) -> Measured:
    """A RabbitMQ stream against durability=os."""
    return _compared(run, RabbitMq, "os")


@benchmark("peer_redis", unit="records/s", bar=Bar.none())
def peer_redis(run: Run) -> Measured:
    """A Redis stream that is synced every second against durability=os."""
    return _compared(run, lambda directory: Redis(directory, "everysec"), "os")


@benchmark("peer_redis_fsync", unit="records/s", bar=Bar.none())
def peer_redis_fsync(run: Run) -> Measured:
    """A Redis stream that is synced before it is answered against durability=fsync."""
    return _compared(run, lambda directory: Redis(directory, "always"), "fsync")
