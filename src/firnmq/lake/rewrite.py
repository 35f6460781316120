"""What an executor does for a compaction: reads several files of a table and writes them as one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from firnmq.lake.catalog import warehouse_store
from firnmq.lake.keyfilter import read_footer
from firnmq.lake.names import compacted_path
from firnmq.lake.parquet import DataFile, Made, PartitionedWriter

if TYPE_CHECKING:
    from firnmq.tiering.stores import ObjectStore

_ROWS_AT_ONCE: Final = 65_536
_CHUNK_BYTES: Final = 8 * 1024 * 1024
"""One request: a store's time-out is for each."""


class Rewrite(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one shard and partition to be put together, in the order of their offsets."""

    number: int
    run: str
    """The compaction: no other one writes the names that this one writes."""
    location: str
    partition: str
    shard: int
    paths: tuple[str, ...]
    sizes: tuple[int, ...]
    options: dict[str, str]


class Rewritten(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it; no files where they have different columns and stay as they are."""

    number: int
    files: tuple[DataFile, ...]


def run_rewrite(raw: bytes) -> bytes:
    """As Spark carries them."""
    return msgspec.msgpack.encode(rewrite(msgspec.msgpack.decode(raw, type=Rewrite)))


def rewrite(work: Rewrite) -> Rewritten:
    store = warehouse_store(work.location, work.options)
    files: list[DataFile] = []

    def place(made: Made) -> None:
        path = compacted_path(
            partition=made.partition,
            shard=work.shard,
            run=f"{work.run}-{work.number:05d}",
            number=len(files),
            digest=made.digest,
        )
        size = len(made.content)
        store.upload(path, [made.content], size=size)
        files.append(
            DataFile(
                path=path,
                size=size,
                row_count=made.row_count,
                shard=work.shard,
                partition_value=made.partition_value,
                footer=made.footer,
            )
        )

    try:
        sources = list(zip(work.paths, work.sizes, strict=True))
        schemas = [
            read_footer(store, path, size).schema.to_arrow_schema() for path, size in sources
        ]
        if any(not each.equals(schemas[0], check_metadata=True) for each in schemas):
            return Rewritten(number=work.number, files=())
        writer = PartitionedWriter(schemas[0], work.partition, place)
        for path, size in sources:
            content = pa.BufferReader(read_whole(store, path, size))
            with pq.ParquetFile(content) as source:
                for batch in source.iter_batches(_ROWS_AT_ONCE):
                    writer.write(batch)
        writer.close()
    finally:
        store.close()
    return Rewritten(number=work.number, files=tuple(files))


def read_whole(store: ObjectStore, path: str, size: int) -> bytearray:
    whole = bytearray()
    for start in range(0, size, _CHUNK_BYTES):
        whole += store.get_range(path, start, min(_CHUNK_BYTES, size - start))
    return whole
