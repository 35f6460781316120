"""Three nodes of ours and three Kafka brokers in the same run, on the same disk: three replicas,
two of which must be in sync, acks=all, records of 1 KiB. Two processors serve six servers and the
client, so that the rates are those of a small machine; CPU time per GiB is disturbed far less.
"""

import atexit
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from benchmarks.harness import (
    SCRATCH_ROOT,
    Bar,
    Better,
    Measured,
    Run,
    benchmark,
    median,
    percentile,
)
from benchmarks.kafka_client import Client
from benchmarks.replicated_peers import FirnCluster, KafkaCluster, Three
from benchmarks.workload import VALUE_BYTES

_RECORDS = 60_000
_PARTITIONS = 3
_GIBIBYTE = 1024**3
_FAILOVERS = 3
_OURS_CACHE = {"durability": "os", "index.key": "false", "index.tag": "false"}
_OURS_FSYNC = {"durability": "fsync", "index.key": "false", "index.tag": "false"}
_PEER = {"min.insync.replicas": "2"}
_PEER_FSYNC = {**_PEER, "flush.messages": "1"}
_TIMEOUT_S = 60.0

_running: tuple[Three, Three] | None = None


def _clusters() -> tuple[Three, Three]:
    """Ours and the peer's, started by the first benchmark that needs them."""
    global _running
    if _running is None:
        SCRATCH_ROOT.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="replicated-", dir=SCRATCH_ROOT))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        peer, ours = KafkaCluster(root / "peer"), FirnCluster(root / "ours")
        for cluster in (peer, ours):
            atexit.register(cluster.stop)
            cluster.start()
        _wait_for_three(ours)
        _wait_for_three(peer)
        _running = ours, peer
    return _running


def _wait_for_three(cluster: Three) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    deadline = time.monotonic() + _TIMEOUT_S
    while len(admin.list_topics(timeout=_TIMEOUT_S).brokers) < len(cluster.servers):
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster did not come together")
        time.sleep(0.2)


def _produced(
    run: Run, ours_options: dict[str, str], peer_options: dict[str, str]
) -> tuple[Measured, dict[str, float]]:
    """Records per second, and the CPU seconds per GiB of both clusters."""
    ours, peer = _clusters()
    costs: dict[str, list[float]] = {"ours": [], "peer": []}

    def one_round(cluster: Three, options: dict[str, str], name: str) -> float:
        client = Client(cluster.address)
        topic = client.create(_PARTITIONS, options, 3)
        try:
            before = cluster.cpu_seconds
            seconds = client.produce(topic, _PARTITIONS, _RECORDS)
            taken = cluster.cpu_seconds - before
        finally:
            client.delete(topic)
        costs[name].append(taken * _GIBIBYTE / (_RECORDS * VALUE_BYTES))
        return _RECORDS / seconds

    measured = run.alternate(
        ours=lambda: one_round(ours, ours_options, "ours"),
        baseline=lambda: one_round(peer, peer_options, "peer"),
    )
    middles = {f"{name}_cpu_s_per_gib": median(figures) for name, figures in costs.items()}
    return dataclasses.replace(measured, extra={**measured.extra, **middles}), middles


@benchmark("replicated_produce", unit="records/s", bar=Bar.ratio_at_least(1.5))
def replicated_produce(run: Run) -> Measured:
    """Both acknowledge what is in the page caches of the replicas in sync."""
    return _produced(run, _OURS_CACHE, _PEER)[0]


@benchmark("replicated_produce_fsync", unit="records/s", bar=Bar.ratio_at_least(2.0))
def replicated_produce_fsync(run: Run) -> Measured:
    """Both acknowledge what the replicas in sync have synced."""
    return _produced(run, _OURS_FSYNC, _PEER_FSYNC)[0]


@benchmark("replicated_cpu", unit="s/GiB", better=Better.LOWER, bar=Bar.ratio_at_most(0.6))
def replicated_cpu(run: Run) -> Measured:
    """CPU time of all three servers, page cache on both sides."""
    _, costs = _produced(run, _OURS_CACHE, _PEER)
    return Measured(value=costs["ours_cpu_s_per_gib"], baseline=costs["peer_cpu_s_per_gib"])


@benchmark("replicated_memory", unit="MiB", better=Better.LOWER, bar=Bar.ratio_at_most(0.2))
def replicated_memory(run: Run) -> Measured:
    """Resident memory of all three servers, without the page cache, after they were loaded."""
    ours, peer = _clusters()
    _produced(run, _OURS_CACHE, _PEER)
    mebibyte = 1024**2
    return Measured(value=ours.anonymous_bytes / mebibyte, baseline=peer.anonymous_bytes / mebibyte)


@benchmark("replicated_latency", unit="ms", better=Better.LOWER, bar=Bar.ratio_at_most(0.8))
def replicated_latency(run: Run) -> Measured:
    """200 records/s, one by one, page cache on both sides: the worse ratio of p50 and p99."""
    ours, peer = _clusters()
    found = {}
    for name, cluster, options in (("ours", ours, _OURS_CACHE), ("peer", peer, _PEER)):
        client = Client(cluster.address)
        topic = client.create(1, options, 3)
        latencies = _latencies_ms(cluster.address, topic)
        client.delete(topic)
        found[name] = percentile(latencies, 50), percentile(latencies, 99)
    ratios = [mine / theirs for mine, theirs in zip(found["ours"], found["peer"], strict=True)]
    return Measured(
        value=found["ours"][0],
        baseline=found["peer"][0],
        ratio=max(ratios),
        extra={"p99": found["ours"][1], "peer_p99": found["peer"][1]},
    )


def _latencies_ms(address: str, topic: str) -> list[float]:
    producer = Producer({"bootstrap.servers": address, "linger.ms": 0, "log_level": 0})
    found: list[float] = []
    value = b"v" * VALUE_BYTES
    for number in range(700):
        due_s = time.perf_counter() + 0.005
        sent_s = time.perf_counter()
        producer.produce(
            topic,
            value,
            on_delivery=lambda error, message, sent_s=sent_s: found.append(  # type: ignore[misc]
                (time.perf_counter() - sent_s) * 1000
            ),
        )
        while (left := due_s - time.perf_counter()) > 0:
            producer.poll(left)
        if number == 100:  # Both sides have found their ways.
            found.clear()
    producer.flush(_TIMEOUT_S)
    return found


@benchmark("failover_gap", unit="s", better=Better.LOWER, bar=Bar.value_at_most(5.0))
def failover_gap(run: Run) -> Measured:
    """Time without acknowledged writes after kill -9 of a leader, defaults on both sides. The bar
    also asks for no more than the peer's."""
    ours, peer = _clusters()
    mine = [_gap_s(ours, _OURS_FSYNC) for _ in range(_FAILOVERS)]
    theirs = [_gap_s(peer, _PEER) for _ in range(_FAILOVERS)]
    return Measured(
        value=median(mine),
        baseline=median(theirs),
        also_holds=median(mine) <= median(theirs),
        extra={"worst": max(mine), "peer_worst": max(theirs)},
    )


def _gap_s(cluster: Three, options: dict[str, str]) -> float:
    client = Client(cluster.address)
    topic = client.create(1, options, 3)
    admin = AdminClient({"bootstrap.servers": cluster.address, "log_level": 0})
    leader = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic].partitions[0].leader
    producer = Producer(
        {
            "bootstrap.servers": cluster.address,
            "linger.ms": 0,
            "log_level": 0,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 50,
            "topic.metadata.refresh.interval.ms": 200,
            "reconnect.backoff.max.ms": 200,
        }
    )
    acknowledged: list[float] = []

    def produce_for(seconds: float, is_over: Callable[[], bool]) -> None:
        until_s = time.perf_counter() + seconds
        while time.perf_counter() < until_s and not is_over():
            if len(producer) < 100:
                producer.produce(
                    topic,
                    b"v",
                    partition=0,
                    on_delivery=lambda error, _: (
                        None if error else acknowledged.append(time.perf_counter())
                    ),
                )
            producer.poll(0.01)

    produce_for(2.0, lambda: False)
    cluster.servers[leader].kill()
    killed_s = time.perf_counter()
    produce_for(_TIMEOUT_S, lambda: bool(acknowledged) and acknowledged[-1] > killed_s + 0.2)
    after = [each for each in acknowledged if each > killed_s + 0.2]
    before = max(each for each in acknowledged if each <= killed_s + 0.2)
    cluster.servers[leader].start()
    _wait_for_three(cluster)
    time.sleep(2)
    producer.flush(_TIMEOUT_S)
    client.delete(topic)
    return after[0] - before
