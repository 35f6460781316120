"""What an executor does to files of a table: writes several as one, or one without some rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firnmq.lake import workers
from firnmq.lake.tables.catalogs.catalog import warehouse_store
from firnmq.lake.tables.files.key_filter import read_footer
from firnmq.lake.tables.files.names import compacted_path
from firnmq.lake.tables.files.parquet import DataFile, Made, PartitionedWriter
from firnmq.lake.tables.files.placing import Placing

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore

_ROWS_AT_ONCE: Final = 65_536
_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""One request: a store's time-out is for each."""


class Removal(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Rows of a shard that have to go."""

    shard: int
    holes: tuple[int, ...] = ()
    """Offsets."""
    keys: tuple[tuple[bytes, int, int], ...] = ()
    """Keys, each with the offsets [first, end) whose rows go."""


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one shard and partition to be put together, in the order of their offsets; or one
    file from which rows are to be removed."""

    number: int
    run: str
    """The compaction or removal: no other one writes the names that this one writes."""
    location: str
    partition: str
    shard: int
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    options: dict[str, str]
    removals: tuple[Removal, ...] = ()
    positions: tuple[int, ...] = ()
    """With removals: rows of the file that another engine has deleted, counted from 0."""


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it; no files where they have different columns and stay as they are, where no
    row had to go, and where all of them had to."""

    number: int
    files: tuple[DataFile, ...]
    removed_count: int = 0


@workers.task()
def run_rewrite(raw: bytes) -> bytes:
    """As Spark carries them."""
    return msgspec.msgpack.encode(rewrite(msgspec.msgpack.decode(raw, type=Rewrite)))


def rewrite(work: Rewrite) -> Rewritten:
    def path(made: Made, number: int) -> str:
        return compacted_path(
            partition=made.partition,
            shard=work.shard,
            run=f"{work.run}-{work.number:05d}",
            number=number,
            digest=made.digest,
        )

    store = warehouse_store(work.location, work.options)
    try:
        sources = list(zip(work.paths, work.sizes, strict=True))
        schemas = [
            read_footer(store, each, size).schema.to_arrow_schema() for each, size in sources
        ]
        if any(not each.equals(schemas[0], check_metadata=True) for each in schemas):
            return Rewritten(number=work.number, files=())
        removed_count = 0
        with Placing(store, work.shard, path) as placing:
            writer = PartitionedWriter(schemas[0], work.partition, placing.put)
            for source_path, size in sources:
                content = pa.py_buffer(read_whole(store, source_path, size))
                removed_count += _write_left(content, work, writer)
            writer.close()
    finally:
        store.close()
    return Rewritten(number=work.number, files=tuple(placing.files), removed_count=removed_count)


def _write_left(content: pa.Buffer, work: Rewrite, writer: PartitionedWriter) -> int:
    """Writes the rows that stay, and says how many go. Nothing if none had to."""
    gone_count = 0
    if work.removals:
        gone_count = _gone_count(content, work.removals)
        if not gone_count:
            return 0
    with pq.ParquetFile(pa.BufferReader(content)) as source:
        first = 0
        for batch in source.iter_batches(_ROWS_AT_ONCE):
            left = without_positions(batch, first, work.positions)
            writer.write(_without(left, work.removals))
            first += batch.num_rows
    return gone_count


def _gone_count(content: pa.Buffer, removals: Sequence[Removal]) -> int:
    """How many rows have to go, without a look at those columns that do not say it."""
    with pq.ParquetFile(pa.BufferReader(content)) as source:
        batches = source.iter_batches(_ROWS_AT_ONCE, columns=["shard", "offset", "key"])
        return sum(batch.num_rows - _without(batch, removals).num_rows for batch in batches)


def without_positions(
    batch: pa.RecordBatch, first: int, positions: Sequence[int]
) -> pa.RecordBatch:
    """Rows of a file, of which the batch begins with number `first`, without those deleted."""
    if not positions:
        return batch
    rows = pa.array(range(first, first + batch.num_rows), pa.int64())
    return batch.filter(pc.invert(pc.is_in(rows, value_set=pa.array(positions, pa.int64()))))


def _without(batch: pa.RecordBatch, removals: Sequence[Removal]) -> pa.RecordBatch:
    for removal in removals:
        batch = batch.filter(pc.invert(_goes(batch, removal)))
    return batch


def _goes(batch: pa.RecordBatch, removal: Removal) -> pa.Array:
    """Which rows the removal is about."""
    offsets = batch.column("offset")
    goes = pc.is_in(offsets, value_set=pa.array(removal.holes, pa.int64()))
    if removal.keys:
        keys, firsts, ends = zip(*removal.keys, strict=True)
        found = pc.index_in(batch.column("key"), value_set=pa.array(keys, pa.binary()))
        first = pa.array(firsts, pa.int64()).take(found)
        end = pa.array(ends, pa.int64()).take(found)
        inside = pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end))
        goes = pc.or_(goes, pc.fill_null(inside, False))
    return pc.and_(goes, pc.equal(batch.column("shard"), removal.shard))


def read_whole(store: ObjectStore, path: str, size: int) -> bytearray:
    whole = bytearray()
    for start in range(0, size, _CHUNK_BYTES):
        whole += store.get_range(path, start, min(_CHUNK_BYTES, size - start))
    return whole
