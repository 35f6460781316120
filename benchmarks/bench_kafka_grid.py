"""Kafka clients over a grid of loads: record size, compression, partitions, producers.

Every topic has the options that it gets if nothing is said: ours syncs before it acknowledges, the
peer does not. Producers are idempotent. In each cell ours must be at least as fast as the peer both
ways, with at most three quarters of its CPU time both ways.
"""

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks.bench_kafka import Side, running_sides
from benchmarks.harness import Bar, Measured, Run, benchmark, median
from benchmarks.kafka_client import Client
from benchmarks.workload import event_values

_SIZES = {"100B": 100, "1K": 1024, "10K": 10 * 1024, "100K": 100 * 1024}
_CODECS = ("none", "lz4", "zstd")
_PARTITIONS = (1, 16, 512)
_PRODUCERS = (1, 8)
_CELL_BYTES = 48 * 1024 * 1024
_CELL_RECORDS_MAX = 160_000
_ROUNDS = 3
_CPU_RATIO_MAX = 0.75
_MISSES_SHOWN = 12


@dataclass(frozen=True, slots=True)
class _Cell:
    size: str
    codec: str
    partitions: int
    producers: int

    @property
    def name(self) -> str:
        return f"{self.size}/{self.codec}/{self.partitions}p/{self.producers}x"

    @property
    def record_count(self) -> int:
        """The same for each producer."""
        count = min(_CELL_BYTES // _SIZES[self.size], _CELL_RECORDS_MAX)
        return count - count % self.producers


class _Figures(NamedTuple):
    """Rates in records/s; the server's CPU seconds."""

    produced: float
    consumed: float
    cpu_in: float
    cpu_out: float


def _cells() -> Iterator[_Cell]:
    for cell in itertools.product(_SIZES, _CODECS, _PARTITIONS, _PRODUCERS):
        yield _Cell(*cell)


@benchmark("kafka_grid", unit="cells", bar=Bar.ratio_at_least(1.0))
def kafka_grid(run: Run) -> Measured:
    """Cells in which ours is as fast as Apache Kafka both ways, with at most 75 % of its CPU."""
    ours, peer = running_sides()
    cells = list(_cells())
    misses: list[str] = []
    for cell in cells:
        rounds: dict[str, list[_Figures]] = {"ours": [], "peer": []}
        for number in range(_ROUNDS):
            turns = [("ours", ours), ("peer", peer)]
            for name, side in turns if number % 2 == 0 else reversed(turns):
                rounds[name].append(_measured(side, cell))
        ratios = [
            median(figures[at] for figures in rounds["ours"])
            / median(figures[at] for figures in rounds["peer"])
            for at in range(len(_Figures._fields))
        ]
        shown = "  ".join(
            f"{name} {ratio:.2f}" for name, ratio in zip(_Figures._fields, ratios, strict=True)
        )
        holds = min(ratios[:2]) >= 1.0 and max(ratios[2:]) <= _CPU_RATIO_MAX
        print(f"  {cell.name:<20} {shown}{'' if holds else '  MISSED'}", flush=True)
        if not holds:
            misses.append(f"{cell.name} ({shown})")
    return Measured(
        value=len(cells) - len(misses),
        baseline=len(cells),
        extra={"missed": "; ".join(misses[:_MISSES_SHOWN])} if misses else {},
    )


def _measured(side: Side, cell: _Cell) -> _Figures:
    values = event_values(_SIZES[cell.size])
    with side.topic(cell.partitions, {}) as topic:
        before = _cpu_seconds(side.server.pid)
        seconds = _produce(side.client, topic, cell, values)
        between = _cpu_seconds(side.server.pid)
        rate = side.client.consume(topic, cell.partitions, cell.record_count)
        after = _cpu_seconds(side.server.pid)
    return _Figures(cell.record_count / seconds, rate, between - before, after - between)


def _produce(client: Client, topic: str, cell: _Cell, values: list[bytes]) -> float:
    """Seconds until everything is acknowledged."""
    each = cell.record_count // cell.producers
    options: dict[str, str | int] = {
        "enable.idempotence": "true",
        "compression.type": cell.codec,
        "linger.ms": 5,
    }
    return client.produce_with(options, topic, cell.partitions, values, [each] * cell.producers)


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process to the nanosecond; /proc counts in hundredths of a second."""
    return time.clock_gettime((~pid << 3) | 2)
