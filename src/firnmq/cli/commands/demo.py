"""`firn demo`: a store in a scratch directory, every kind of read, on all three engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import click

from firnmq.cli.console import count, json_option, print_json, safe_text
from firnmq.cli.program import program

if TYPE_CHECKING:
    from firnmq.record import NewRecord
    from firnmq.server import Store, TopicHandle

T = TypeVar("T")

_RECORD_COUNT = 10_000
_STATIONS = 50
_FIRST_MS = 1_900_000_000_000
_SEGMENT_BYTES = 256 * 1024
_ENGINES = {
    "EngineSegment": "files, synced before each acknowledgement",
    "EngineRocksDB": "a RocksDB database, synced in the same way",
    "EngineMemory": "memory, gone when the process ends",
}


class _Step(NamedTuple):
    engine: str
    step: str
    outcome: str
    microseconds: float


@click.command()
@json_option
def demo(as_json: bool) -> None:
    """Show a durable write, four kinds of read and a check, and how long each takes.

    Works in a scratch directory that is removed at the end.
    """
    with _scratch() as directory:
        if as_json:
            for step in _all_steps(directory):
                print_json(step._asdict())
            return
        _show(directory)
    click.echo(f"{directory} is removed")
    click.echo(f"Kafka clients reach such a store through a node: {program()} serve")


@contextmanager
def _scratch() -> Iterator[Path]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="firn-demo-") as name:
        yield Path(name)


def _show(directory: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"[bold]FirnMQ[/bold] in the scratch directory {directory}")
    table: Table | None = None
    engine = ""
    for step in _all_steps(directory):
        if step.engine != engine:
            if table is not None:
                console.print(table)
            engine = step.engine
            title = f"{engine}: {_ENGINES[engine]}"
            table = Table(title=title, title_justify="left", expand=False)
            table.add_column("step", style="cyan", no_wrap=True)
            table.add_column("outcome")
            table.add_column("took", justify="right", no_wrap=True)
        assert table is not None
        table.add_row(step.step, step.outcome, _duration(step.microseconds))
    console.print(table)
    console.print("Each time is that of one call, without a warm-up.")


def _duration(microseconds: float) -> str:
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    return f"{microseconds / 1000:.1f} ms"


def _all_steps(directory: Path) -> Iterator[_Step]:
    from firnmq.disk.private import private_umask
    from firnmq.server import open_store

    with private_umask(), open_store(directory) as store:
        for engine in _ENGINES:
            yield from _steps(store, engine)


def _steps(store: Store, engine: str) -> Iterator[_Step]:
    name = f"weather-{engine}"
    options = {"storage.type": engine, "segment.bytes": _SEGMENT_BYTES}
    _, took = _timed(lambda: store.create_topic(name, options=options))
    topic = store.topic(name)
    yield _Step(engine, "create a topic", name, took)
    records = _readings()
    written, took = _timed(lambda: topic.append(records[0]))
    yield _Step(engine, "write one record", f"stored at offset {written[0].base_offset}", took)
    written, took = _timed(lambda: topic.append(records[1:]))
    what = f"{count(len(records) - 1, 'record')} in one append"
    yield _Step(engine, "write many", what, took)
    yield from _reads(engine, topic)
    found, took = _timed(lambda: store.local.verifier.verify(topic.topic.shard_name(0)))
    what = (
        f"{count(found.segment_count, 'segment')}, {count(found.batch_count, 'batch')}, "
        f"{count(found.record_count, 'record')}: {count(len(found.findings), 'finding')}"
    )
    yield _Step(engine, "verify all of it", what, took)


def _reads(engine: str, topic: TopicHandle) -> Iterator[_Step]:
    offset = _RECORD_COUNT // 2
    page, took = _timed(lambda: topic.read(offset, max_records=3))
    values = ", ".join(safe_text(record.value) for record in page)
    yield _Step(engine, f"read from offset {offset}", values, took)
    key = f"station-{_STATIONS // 2}"
    newest, took = _timed(lambda: topic.read_by_key(key))
    outcome = f"newest is offset {newest.offset}: {safe_text(newest.value)}"
    yield _Step(engine, f"read by key {key}", outcome, took)
    page, took = _timed(lambda: topic.read_by_tag("storm", max_records=5))
    offsets = ", ".join(str(record.offset) for record in page)
    yield _Step(engine, "read by tag storm", f"first at offsets {offsets}", took)
    since = _FIRST_MS + 1000 * (_RECORD_COUNT - 100)
    found, took = _timed(lambda: topic.offset_at(since))
    yield _Step(engine, "read by time", f"100 s before the end is offset {found}", took)


def _readings() -> list[NewRecord]:
    from firnmq.record import NewRecord

    return [
        NewRecord(
            key=f"station-{number % _STATIONS}".encode(),
            value=f"{number % 37 - 20} degrees".encode(),
            tags=("storm",) if number % 997 == 0 else (),
            timestamp_ms=_FIRST_MS + 1000 * number,
        )
        for number in range(_RECORD_COUNT)
    ]


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    from time import perf_counter

    began = perf_counter()
    result = work()
    return result, (perf_counter() - began) * 1e6
