"""Kafka clients on this server and on Apache Kafka, in the same run with the same program.

Both servers run for the whole set, so that the peer's compiler has warmed up; memory and start are
measured on servers of their own. Records are 1 KiB. Topics of ours have no index unless said.
"""

import atexit
import dataclasses
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
from benchmarks.kafka_peer import (
    ApacheKafka,
    Firn,
    Server,
    cpu_seconds,
    peak_anonymous_bytes,
)
from benchmarks.workload import VALUE_BYTES

_BULK_RECORDS = 200_000
_SINGLE_RECORDS = 20_000
_CONSUMED_RECORDS = 250_000
_LATENCY_RATES = (200, 2_000)
_LATENCY_SECONDS = {200: 2.5, 2_000: 1.5}
_AT_CEILING = 0.95
"""A rate this close to the client's ceiling is the client's limit, not the server's."""
_GIBIBYTE = 1024**3
_MEBIBYTE = 1024**2

_DEFAULT: dict[str, str] = {}
_CACHE = {"durability": "os", "index.key": "false", "index.tag": "false"}
_FSYNC = {"durability": "fsync", "index.key": "false", "index.tag": "false"}
_INDEXED_FSYNC = {"durability": "fsync", "index.key": "true", "index.tag": "true"}
_PEER_CACHE: dict[str, str] = {}
_PEER_FSYNC = {"flush.messages": "1"}


@dataclass(frozen=True, slots=True)
class Side:
    """A server that runs, and the client that loads it."""

    server: Server
    client: Client

    @contextmanager
    def topic(self, partitions: int, options: dict[str, str]) -> Iterator[str]:
        name = self.client.create(partitions, options)
        try:
            yield name
        finally:
            self.client.delete(name)


_sides: tuple[Side, Side] | None = None


def _started(server: Server) -> Side:
    server.start()
    return Side(server, Client(server.address))


def running_sides() -> tuple[Side, Side]:
    """Ours and the peer, started by the first benchmark that needs them."""
    global _sides
    if _sides is None:
        SCRATCH_ROOT.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix="kafka-", dir=SCRATCH_ROOT))
        atexit.register(shutil.rmtree, root, ignore_errors=True)
        peer, ours = _servers(root)
        for server in (peer, ours):
            atexit.register(server.stop)
        _sides = _started(ours), _started(peer)
    return _sides


def _servers(root: Path) -> tuple[ApacheKafka, Firn]:
    for name in ("peer", "ours"):
        (root / name).mkdir()
    # The peer first: where it cannot be had, nothing else needs to be made.
    return ApacheKafka(root / "peer"), Firn(root / "ours")


@contextmanager
def _own_pair(run: Run) -> Iterator[tuple[Side, Side]]:
    """Servers for one benchmark that must not have served before."""
    peer, ours = _servers(run.scratch())
    try:
        yield _started(ours), _started(peer)
    finally:
        ours.stop()
        peer.stop()


class _Costs:
    """The servers' CPU time per record, beside the rates: other programs disturb it far less."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._microseconds: dict[str, list[float]] = defaultdict(list)

    def of(self, side: Side, load: Callable[[], float]) -> float:
        """Does the load, notes what it cost the server and returns the load's figure."""
        before = cpu_seconds(side.server.pid)
        figure = load()
        taken = cpu_seconds(side.server.pid) - before
        self._microseconds[f"{side.server.name}_cpu_us"].append(taken * 1e6 / self._count)
        return figure

    def added_to(self, measured: Measured) -> Measured:
        middles = {name: median(figures) for name, figures in self._microseconds.items()}
        return dataclasses.replace(measured, extra={**measured.extra, **middles})


# Produce -----------------------------------------------------------------------------------------

_Load = Callable[[Client, str], float]
"""Loads a topic and returns seconds."""


def _produced(
    run: Run,
    options: dict[str, str],
    peer_options: dict[str, str],
    load: _Load,
    *,
    count: int = _BULK_RECORDS,
    partitions: int = 1,
) -> Measured:
    """Records per second of a load on fresh topics with these options."""
    ours, peer = running_sides()

    def one_round(side: Side, wanted: dict[str, str]) -> float:
        with side.topic(partitions, wanted) as topic:
            return costs.of(side, lambda: count / load(side.client, topic))

    costs = _Costs(count)
    measured = run.alternate(
        ours=lambda: one_round(ours, options), baseline=lambda: one_round(peer, peer_options)
    )
    return costs.added_to(measured)


def _plain_load(partitions: int) -> _Load:
    return lambda client, topic: client.produce(topic, partitions, _BULK_RECORDS)


@benchmark("kafka_produce_1", unit="records/s", bar=Bar.ratio_at_least(1.5))
def kafka_produce_1(run: Run) -> Measured:
    """One partition; both acknowledge what is in the page cache."""
    return _produced(run, _CACHE, _PEER_CACHE, _plain_load(1))


@benchmark("kafka_produce_16", unit="records/s", bar=Bar.ratio_at_least(1.5))
def kafka_produce_16(run: Run) -> Measured:
    """The same with 16 partitions."""
    return _produced(run, _CACHE, _PEER_CACHE, _plain_load(16), partitions=16)


@benchmark("kafka_produce_fsync", unit="records/s", bar=Bar.ratio_at_least(2.0))
def kafka_produce_fsync(run: Run) -> Measured:
    """One partition; both acknowledge after an fsync.

    The bar is met at twice the peer's rate, or at the client's own ceiling, measured in the same
    run with a broker that keeps nothing.
    """
    ours, _ = running_sides()
    ceilings: list[float] = []

    def load(client: Client, topic: str) -> float:
        if client is ours.client:
            ceilings.append(_BULK_RECORDS / client.produce_nowhere(_BULK_RECORDS))
        return client.produce(topic, 1, _BULK_RECORDS)

    measured = _produced(run, _FSYNC, _PEER_FSYNC, load)
    ceiling = median(ceilings)
    return dataclasses.replace(
        measured,
        holds_instead=measured.value >= _AT_CEILING * ceiling,
        extra={**measured.extra, "client_ceiling": ceiling},
    )


@benchmark("kafka_produce_fsync_vs_cache", unit="records/s", bar=Bar.ratio_at_least(1.0))
def kafka_produce_fsync_vs_cache(run: Run) -> Measured:
    """Ours acknowledges after an fsync, the peer what is in the page cache."""
    return _produced(run, _FSYNC, _PEER_CACHE, _plain_load(1))


@benchmark("kafka_produce_indexed", unit="records/s", bar=Bar.ratio_at_least(1.0))
def kafka_produce_indexed(run: Run) -> Measured:
    """Unique keys and ten tags: ours indexes both and syncs, the peer only keeps them in cache."""
    return _produced(
        run,
        _INDEXED_FSYNC,
        _PEER_CACHE,
        lambda client, topic: client.produce_tagged(topic, _BULK_RECORDS),
    )


@benchmark("kafka_single_record", unit="requests/s", bar=Bar.ratio_at_least(4.0))
def kafka_single_record(run: Run) -> Measured:
    """One record per request, many requests in flight on one connection; page cache."""
    return _produced(
        run,
        _CACHE,
        _PEER_CACHE,
        lambda client, topic: client.produce_one_by_one(topic, _SINGLE_RECORDS),
        count=_SINGLE_RECORDS,
    )


# Consume -----------------------------------------------------------------------------------------


def _consumed(run: Run, partitions: int) -> Measured:
    """Records per second of reading the same topic again and again."""
    ours, peer = running_sides()
    with ours.topic(partitions, _CACHE) as our_topic, peer.topic(partitions, {}) as peer_topic:
        for side, topic in ((ours, our_topic), (peer, peer_topic)):
            side.client.produce(topic, partitions, _CONSUMED_RECORDS)
        costs = _Costs(_CONSUMED_RECORDS)

        def one_round(side: Side, topic: str) -> float:
            return costs.of(side, lambda: side.client.consume(topic, partitions, _CONSUMED_RECORDS))

        measured = run.alternate(
            ours=lambda: one_round(ours, our_topic), baseline=lambda: one_round(peer, peer_topic)
        )
        return costs.added_to(measured)


@benchmark("kafka_consume_1", unit="records/s", bar=Bar.ratio_at_least(1.0))
def kafka_consume_1(run: Run) -> Measured:
    """One partition, from the page cache."""
    return _consumed(run, 1)


@benchmark("kafka_consume_16", unit="records/s", bar=Bar.ratio_at_least(1.0))
def kafka_consume_16(run: Run) -> Measured:
    """The same with 16 partitions and one consumer."""
    return _consumed(run, 16)


# Latency -----------------------------------------------------------------------------------------


def _latency(
    run: Run,
    options: dict[str, str],
    peer_options: dict[str, str],
    producer_options: dict[str, str | int],
) -> Measured:
    """From produce to acknowledged and to consumed, at two rates.

    The figure is the median latency whose ratio is worst of the four. The bar also asks that no
    99th percentile is above the peer's.
    """
    ours, peer = running_sides()
    figures: dict[str, dict[str, list[float]]] = {
        "ours": defaultdict(list),
        "peer": defaultdict(list),
    }

    def one_round(side: Side, wanted: dict[str, str], into: dict[str, list[float]]) -> float:
        for rate in _LATENCY_RATES:
            with side.topic(1, wanted) as topic:
                taken = side.client.latencies(topic, rate, _LATENCY_SECONDS[rate], producer_options)
            for event, latencies in (("ack", taken.acknowledged_ms), ("read", taken.consumed_ms)):
                for percent in (50, 99):
                    name = f"{event}_{rate}_p{percent}"
                    into[name].append(percentile(latencies, percent))
        return into[f"ack_{_LATENCY_RATES[-1]}_p50"][-1]

    run.alternate(
        ours=lambda: one_round(ours, options, figures["ours"]),
        baseline=lambda: one_round(peer, peer_options, figures["peer"]),
        warmups=0,
    )
    middles = {
        name: (median(figures["ours"][name]), median(figures["peer"][name]))
        for name in figures["ours"]
    }
    ratios = {name: value / baseline for name, (value, baseline) in middles.items()}
    worst = max((name for name in ratios if name.endswith("_p50")), key=ratios.__getitem__)
    extra: dict[str, float | int | str] = {"worst": worst}
    for name, (value, baseline) in middles.items():
        extra |= {f"{name}_ms": value, f"{name}_peer_ms": baseline, f"{name}_ratio": ratios[name]}
    return Measured(
        value=middles[worst][0],
        baseline=middles[worst][1],
        also_holds=all(ratio <= 1.0 for name, ratio in ratios.items() if name.endswith("_p99")),
        extra=extra,
    )


@benchmark("kafka_latency", unit="ms", bar=Bar.ratio_at_most(0.8), better=Better.LOWER)
def kafka_latency(run: Run) -> Measured:
    """From produce to acknowledged and to consumed, at two rates; page cache on both sides."""
    return _latency(run, _CACHE, _PEER_CACHE, {})


@benchmark("kafka_latency_fsync", unit="ms", bar=Bar.ratio_at_most(0.7), better=Better.LOWER)
def kafka_latency_fsync(run: Run) -> Measured:
    """The same of an idempotent producer; both acknowledge after an fsync. A topic of ours has the
    options that it gets if nothing is said."""
    return _latency(run, _DEFAULT, _PEER_FSYNC, {"enable.idempotence": "true"})


# What a server costs ------------------------------------------------------------------------------


def _in_and_out(side: Side, options: dict[str, str]) -> tuple[float, float]:
    """CPU seconds of the server while records came in, and while they went out."""
    with side.topic(4, options) as topic:
        before = cpu_seconds(side.server.pid)
        side.client.produce(topic, 4, _CONSUMED_RECORDS)
        between = cpu_seconds(side.server.pid)
        side.client.consume(topic, 4, _CONSUMED_RECORDS)
        return between - before, cpu_seconds(side.server.pid) - between


@benchmark("kafka_cpu", unit="CPU s/GiB", bar=Bar.ratio_at_most(0.55), better=Better.LOWER)
def kafka_cpu(run: Run) -> Measured:
    """The server's CPU time for each GiB that is produced and then consumed; 4 partitions."""
    ours, peer = running_sides()
    moved = _CONSUMED_RECORDS * VALUE_BYTES / _GIBIBYTE
    parts: dict[str, list[float]] = defaultdict(list)

    def one_round(side: Side, options: dict[str, str]) -> float:
        seconds_in, seconds_out = _in_and_out(side, options)
        parts[f"{side.server.name}_in"].append(seconds_in / moved)
        parts[f"{side.server.name}_out"].append(seconds_out / moved)
        return (seconds_in + seconds_out) / moved

    measured = run.alternate(
        ours=lambda: one_round(ours, _CACHE), baseline=lambda: one_round(peer, _PEER_CACHE)
    )
    middles = {name: median(figures) for name, figures in parts.items()}
    return Measured(
        value=measured.value, baseline=measured.baseline, extra={**measured.extra, **middles}
    )


@benchmark("kafka_memory", unit="MiB", bar=Bar.ratio_at_most(0.2), better=Better.LOWER)
def kafka_memory(run: Run) -> Measured:
    """Peak anonymous resident memory while records come in and go out; fresh servers."""
    with _own_pair(run) as (ours, peer):

        def one_round(side: Side, options: dict[str, str]) -> float:
            with peak_anonymous_bytes(side.server.pid) as peak:
                _in_and_out(side, options)
            return peak[0] / _MEBIBYTE

        return run.alternate(
            ours=lambda: one_round(ours, _CACHE),
            baseline=lambda: one_round(peer, _PEER_CACHE),
            warmups=0,
        )


@benchmark("kafka_ready", unit="s", bar=Bar.ratio_at_most(0.2), better=Better.LOWER)
def kafka_ready(run: Run) -> Measured:
    """From the start of the process, on a directory with one topic, to its first acknowledgement.

    Both were stopped cleanly before.
    """
    with _own_pair(run) as (ours, peer):
        topics = {
            ours.server.name: ours.client.create(1, _CACHE),
            peer.server.name: peer.client.create(1, _PEER_CACHE),
        }

        def one_round(side: Side) -> float:
            side.server.stop()
            started = time.perf_counter()
            side.server.start()
            side.client.first_produce(topics[side.server.name])
            return time.perf_counter() - started

        return run.alternate(
            ours=lambda: one_round(ours), baseline=lambda: one_round(peer), warmups=0
        )
