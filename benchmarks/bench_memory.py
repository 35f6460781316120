"""The memory engine in the user's own process: latency of one append and of one read."""

import random

import firnmq
from benchmarks.harness import Bar, Better, Measured, Run, benchmark, median
from benchmarks.workload import VALUE_BYTES, p50, p99, timed, values
from firnmq.server import TopicHandle

_CALLS = 5_000
_ROUNDS = 5
_MICROSECONDS = 1_000_000


def _latency(rounds: list[list[float]]) -> Measured:
    return Measured(
        value=median(map(p50, rounds)) * _MICROSECONDS,
        extra={"p99_us": median(map(p99, rounds)) * _MICROSECONDS},
    )


def _append_all(topic: TopicHandle) -> list[float]:
    return timed([lambda value=value: topic.append(value) for value in values(_CALLS)])  # type: ignore[misc]


@benchmark("memory_append", unit="µs", bar=Bar.value_at_most(100), better=Better.LOWER)
def memory_append(run: Run) -> Measured:
    """One record of 1 KiB per call."""
    with firnmq.open(run.scratch()) as store:
        topic = store.create_topic("t", options={"storage.type": "EngineMemory"})
        _append_all(topic)
        return _latency([_append_all(topic) for _ in range(_ROUNDS)])


@benchmark("memory_read", unit="µs", bar=Bar.value_at_most(100), better=Better.LOWER)
def memory_read(run: Run) -> Measured:
    """One record of 1 KiB at a random offset per call."""
    with firnmq.open(run.scratch()) as store:
        topic = store.create_topic("t", options={"storage.type": "EngineMemory"})
        _append_all(topic)
        source = random.Random(1)

        def read() -> None:
            (record,) = topic.read(source.randrange(_CALLS), max_records=1).records()
            assert len(record.value or b"") == VALUE_BYTES

        timed([read] * _CALLS)
        return _latency([timed([read] * _CALLS) for _ in range(_ROUNDS)])
