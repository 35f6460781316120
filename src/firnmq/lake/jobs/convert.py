"""What an executor does: reads a split, writes its rows as Parquet files, says what it wrote.

A task is repeatable. It writes nothing but files whose names hold a digest of their bytes, and they
mean nothing until the driver commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from firnmq.lake import workers
from firnmq.lake.plans.plan import Split
from firnmq.lake.reading.marks import LastRow, Mark
from firnmq.lake.reading.reader import read_split
from firnmq.lake.tables.catalogs.catalog import warehouse_store
from firnmq.lake.tables.files.names import converted_path
from firnmq.lake.tables.files.parquet import DataFile, Made, PartitionedWriter
from firnmq.lake.tables.files.placing import Placing

if TYPE_CHECKING:
    from firnmq.lake.typed import Parser


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the writer of its files has to know it."""

    location: str
    partition: str
    schema: bytes
    """An Arrow schema with the columns' ids, serialised."""


class Typing(msgspec.Struct, frozen=True, kw_only=True):
    """The schema that values are parsed by, and where those go that do not fit it."""

    document: str
    kind: str
    dead_letters: Target
    writers: dict[int, str] = {}


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One split to convert."""

    split: Split
    target: Target
    options: dict[str, str]
    typing: Typing | None = None


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a task."""

    shard: int
    start_offset: int
    end_offset: int
    files: tuple[DataFile, ...]
    dead_letters: tuple[DataFile, ...] = ()
    missing_count: int = 0
    """Offsets that retention dropped after the split was planned and before it was read."""
    mark: Mark | None = None
    """Of the last record, if there was one."""


@workers.task()
def run_task(raw: bytes) -> bytes:
    """A task in, its conversion out, both as Spark carries them."""
    task = msgspec.msgpack.decode(raw, type=Task)
    return msgspec.msgpack.encode(convert(task))


def convert(task: Task) -> Conversion:
    split = task.split
    files: list[DataFile] = []
    dead: list[DataFile] = []
    missing: list[int] = []
    last = LastRow()
    rows = last.passing(
        read_split(split, options=task.options, lost=lambda start, end: missing.append(end - start))
    )
    if task.typing is None:
        _write(task, task.target, rows, files)
    else:
        _write_typed(task, task.typing, rows, files, dead)
    return Conversion(
        shard=split.shard,
        start_offset=split.start_offset,
        end_offset=split.end_offset,
        files=tuple(files),
        dead_letters=tuple(dead),
        missing_count=sum(missing),
        mark=last.mark,
    )


def _write(
    task: Task, target: Target, rows: Iterable[pa.RecordBatch], files: list[DataFile]
) -> None:
    with _files(task, target, files) as write:
        for batch in rows:
            write(batch)


def _write_typed(
    task: Task,
    typing: Typing,
    rows: Iterator[pa.RecordBatch],
    files: list[DataFile],
    dead: list[DataFile],
) -> None:
    from firnmq.lake.typed import Parser, typed_rows

    parser: Parser = Parser.from_document(typing.document, typing.kind, writers=typing.writers)
    with (
        _files(task, task.target, files) as write,
        _files(task, typing.dead_letters, dead) as write_misfits,
    ):
        for batch in rows:
            parsed = typed_rows(batch, parser)
            write(parsed.rows)
            write_misfits(parsed.misfits)


@contextmanager
def _files(
    task: Task, target: Target, files: list[DataFile]
) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """What writes rows of the task's split to a table's store; at the end the files are noted."""
    split = task.split

    def path(made: Made, number: int) -> str:
        return converted_path(
            partition=made.partition,
            shard=split.shard,
            start_offset=split.start_offset,
            end_offset=split.end_offset,
            number=number,
            digest=made.digest,
        )

    schema = pa.ipc.read_schema(pa.BufferReader(target.schema))
    store = warehouse_store(target.location, task.options)
    try:
        with Placing(store, split.shard, path) as placing:
            writer = PartitionedWriter(schema, target.partition, placing.put)
            yield writer.write
            writer.close()
        files += placing.files
    finally:
        store.close()
