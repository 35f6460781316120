"""Rows into Parquet files: one at a time per partition value, in the order of their offsets.

Runs on executors. A file is made in memory, so that its name can hold a digest of its bytes: equal
names mean equal bytes, and nothing is ever overwritten with something else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from firnmq.errors import InvalidArgument

PARTITIONS: Final = {"day": 86_400_000_000, "hour": 3_600_000_000}
"""Microseconds of the ways to partition a table by time."""

ROW_GROUP_ROWS_MAX: Final = 262_144
ROW_GROUP_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of Arrow memory. A row group is what a reader of Parquet takes or leaves."""

PAGE_BYTES: Final = 1024 * 1024
"""Bytes of values that are encoded together, as one page."""
_PAGE_ROWS_MAX: Final = 8_192

FILE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A file that has grown to this is finished and another one begun."""

HELD_BYTES_MAX: Final = 384 * 1024 * 1024
"""Rows and files in memory per task; beyond it the largest file is finished early."""

IDLE_BYTES_MAX: Final = 32 * 1024 * 1024
"""A file that gets no rows while others get this many is finished, to free its memory. Later rows
of its partition begin another file."""

OPEN_FILES_MAX: Final = 64
"""A split whose timestamps are all over the calendar gets more files instead of more memory."""

_BLOOM_FALSE_POSITIVES: Final = 0.0001
"""About 20 bits per key: a lookup among thousands of files still reads hardly any in vain."""

_RUNS_PER_VALUE_MAX: Final = 8
"""More runs of equal partition values than this, and rows are gathered instead of sliced."""

_ENCODINGS: Final = {
    "offset": "DELTA_BINARY_PACKED",
    "timestamp": "DELTA_BINARY_PACKED",
    "key": "PLAIN",
    "value": "PLAIN",
}
"""Of columns without a dictionary. Deltas of texts in no order take time and, with zstd behind
them, save 1 %."""
_WITHOUT_STATISTICS: Final = ("value", "headers")
"""No query looks for a range of these, and their bounds may be long."""


class DataFile(msgspec.Struct, frozen=True, kw_only=True):
    """A Parquet file of a table, as its writer knows it."""

    path: str
    """Below the table's location."""
    size: int
    row_count: int
    shard: int
    partition_value: int
    """Days or hours since 1970, as Iceberg counts them."""
    footer: bytes
    """A Parquet file without its rows: what the table's statistics are made of."""


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A finished file that has no name yet."""

    partition: str
    """`2026-01-31`, or `2026-01-31T13`."""
    partition_value: int
    content: pa.Buffer
    row_count: int
    footer: bytes

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.content).hexdigest()[:16]


class PartitionedWriter:
    """Takes rows in order and returns each file as soon as it is finished."""

    def __init__(self, schema: pa.Schema, partition: str, deliver: Callable[[Made], None]) -> None:
        if partition not in PARTITIONS:
            raise InvalidArgument("partition", f"{partition!r} is neither day nor hour")
        self._schema = schema
        self._unit = partition
        self._deliver = deliver
        self._open: dict[int, _OpenFile] = {}
        self._taken_bytes = 0
        self._timestamp = schema.get_field_index("timestamp")

    def write(self, batch: pa.RecordBatch) -> None:
        """Rows with the writer's columns, in its order."""
        if not batch.num_rows:
            return
        for value, rows in self._by_partition(batch):
            file = self._open.get(value)
            if file is None:
                if len(self._open) >= OPEN_FILES_MAX:
                    self._finish_largest()
                file = self._open[value] = _OpenFile(self._schema)
            file.add(rows)
            self._taken_bytes += rows.nbytes
            file.taken_bytes = self._taken_bytes
            if file.written_bytes >= FILE_BYTES_MAX:
                self._finish(value)
        self._finish_idle()
        while sum(file.held_bytes for file in self._open.values()) > HELD_BYTES_MAX:
            self._finish_largest()

    def close(self) -> None:
        """Finishes what is open, in the order of time."""
        for value in sorted(self._open):
            self._finish(value)

    def _by_partition(self, batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
        micros = batch.column(self._timestamp).cast(pa.int64()).to_numpy(zero_copy_only=False)
        values = np.floor_divide(micros, PARTITIONS[self._unit])
        first = int(values[0])
        if first == int(values.min()) == int(values.max()):
            yield first, batch
            return
        starts = np.concatenate(([0], np.flatnonzero(values[1:] != values[:-1]) + 1))
        distinct = np.unique(values[starts])
        if len(starts) > _RUNS_PER_VALUE_MAX * len(distinct):
            for value in distinct:
                yield int(value), batch.take(pa.array(np.flatnonzero(values == value)))
            return
        ends = [*starts[1:].tolist(), batch.num_rows]
        for start, end in zip(starts.tolist(), ends, strict=True):
            yield int(values[start]), batch.slice(start, end - start)

    def _finish_idle(self) -> None:
        before = self._taken_bytes - IDLE_BYTES_MAX
        for value in [value for value, file in self._open.items() if file.taken_bytes < before]:
            self._finish(value)

    def _finish_largest(self) -> None:
        self._finish(max(self._open, key=lambda value: self._open[value].held_bytes))

    def _finish(self, value: int) -> None:
        content, row_count, footer = self._open.pop(value).finish()
        self._deliver(
            Made(
                partition=partition_text(value, self._unit),
                partition_value=value,
                content=content,
                row_count=row_count,
                footer=footer,
            )
        )


class _OpenFile:
    """Rows that wait for their row group, and the bytes of the groups before."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._row_count = 0
        self.taken_bytes = 0
        """What the writer had taken in all when this file last got rows."""
        self._sink = pa.BufferOutputStream()
        self._writer: pq.ParquetWriter | None = None

    @property
    def written_bytes(self) -> int:
        return int(self._sink.tell())

    @property
    def held_bytes(self) -> int:
        return self.written_bytes + self._waiting_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        while rows.num_rows:
            part = rows.slice(0, ROW_GROUP_ROWS_MAX - self._waiting_rows)
            rows = rows.slice(part.num_rows)
            self._waiting.append(part)
            self._waiting_rows += part.num_rows
            self._waiting_bytes += part.nbytes
            is_full = self._waiting_rows >= ROW_GROUP_ROWS_MAX
            if is_full or self._waiting_bytes >= ROW_GROUP_BYTES_MAX:
                self._write_group()

    def finish(self) -> tuple[pa.Buffer, int, bytes]:
        """The whole file, how many rows it has, and its footer."""
        self._write_group()
        assert self._writer is not None
        self._writer.close()
        content = self._sink.getvalue()
        return content, self._row_count, _footer(content)

    def _write_group(self) -> None:
        if not self._waiting_rows:
            return
        if self._writer is None:
            # The first group determines the size of the filters: later groups have no more rows.
            row_bytes = self._waiting_bytes // self._waiting_rows
            self._writer = _parquet_writer(
                self._sink, self._schema, key_count=self._waiting_rows, row_bytes=row_bytes
            )
        group = pa.Table.from_batches(self._waiting, schema=self._waiting[0].schema)
        self._writer.write_table(group.cast(self._schema), row_group_size=self._waiting_rows)
        self._row_count += self._waiting_rows
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0


def _parquet_writer(
    sink: pa.NativeFile, schema: pa.Schema, *, key_count: int, row_bytes: int
) -> pq.ParquetWriter:
    leaves = list(_leaves(schema))
    encodings = {name: encoding for name, encoding in _ENCODINGS.items() if name in leaves}
    sorting = [
        pq.SortingColumn(leaves.index(name)) for name in ("shard", "offset") if name in leaves
    ]
    return pq.ParquetWriter(
        sink,
        schema,
        compression="zstd",
        compression_level=1,
        use_dictionary=[leaf for leaf in leaves if leaf not in encodings],
        column_encoding=encodings,
        write_statistics=[
            leaf for leaf in leaves if leaf.partition(".")[0] not in _WITHOUT_STATISTICS
        ],
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options={"key": {"ndv": max(1, key_count), "fpp": _BLOOM_FALSE_POSITIVES}},
        sorting_columns=sorting,
        store_schema=False,
        # Rows that are encoded at once are more than a page needs: one that is filled in several
        # turns is copied each time it grows.
        data_page_size=PAGE_BYTES // 2,
        write_batch_size=min(max(PAGE_BYTES // max(row_bytes, 1), 1), _PAGE_ROWS_MAX),
    )


def _leaves(schema: pa.Schema) -> Iterator[str]:
    """Paths of the columns of a Parquet file, in its order."""
    for field in schema:
        yield from _leaves_of(field.name, field.type)


def _leaves_of(path: str, kind: pa.DataType) -> Iterator[str]:
    if pa.types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _leaves_of(f"{path}.{kind.field(index).name}", kind.field(index).type)
    elif pa.types.is_map(kind):
        yield from _leaves_of(f"{path}.key_value.key", kind.key_type)
        yield from _leaves_of(f"{path}.key_value.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _leaves_of(f"{path}.list.element", kind.value_type)
    else:
        yield path


def _footer(content: pa.Buffer) -> bytes:
    """The end of a Parquet file behind its magic number: enough to read its metadata from."""
    length = int.from_bytes(content[len(content) - 8 : len(content) - 4], "little")
    return b"PAR1" + bytes(content[len(content) - 8 - length :])


def partition_text(value: int, unit: str) -> str:
    """The partition value as its folder is called."""
    moment = np.datetime64(value, "D" if unit == "day" else "h")
    return str(moment)
