"""Rows of a data frame as record batches: columns in, bytes out, shard by shard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from firnmq.errors import InvalidArgument, InvalidRecord
from firnmq.record import (
    Buffer,
    Columns,
    Compression,
    encode_columns,
    parse_header,
    with_header,
)
from firnmq.record.arrow import HEADER, TIME
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL

_HEADERS: Final = pa.list_(HEADER)
_RECORD_OVERHEAD: Final = 24
_SEED: Final = np.uint32(0x9747B28C)
_FACTOR: Final = np.uint32(0x5BD1E995)
_NOT_SHARDED: Final = -1

UInt32s = npt.NDArray[np.uint32]
Int64s = npt.NDArray[np.int64]


class Piece(NamedTuple):
    shard: int
    rows: Columns
    """What to encode, once the producer's sequence is known."""


class RowEncoder:
    """Turns Arrow batches of one task into batches for shards."""

    def __init__(
        self,
        *,
        shard_count: int,
        tag_header: str,
        compression: Compression,
        batch_bytes: int,
        seed: int = 0,
    ) -> None:
        self._shard_count = shard_count
        self._tag_header = tag_header
        self._compression = compression
        self._batch_bytes = batch_bytes
        self._next_shard = seed % shard_count
        """Where rows without a key go, one Arrow batch after the other."""

    def parts(self, batch: pa.RecordBatch) -> Iterator[Piece]:
        """The rows in pieces that make a batch each; within a shard they keep their order."""
        if batch.num_rows == 0:
            return
        shards = self._shards(batch)
        table = pa.Table.from_arrays(
            list(self._record_columns(batch).values()),
            names=["offset", "timestamp", "key", "value", "headers"],
        )
        sizes = _sizes(table)
        for shard in np.unique(shards).tolist():
            if self._shard_count == 1:
                rows, row_sizes = table, sizes
            else:
                chosen = np.flatnonzero(shards == shard)
                rows, row_sizes = table.take(pa.array(chosen)), sizes[chosen]
            for begin, end in _pieces(row_sizes, self._batch_bytes):
                yield Piece(shard, Columns.from_arrow(rows.slice(begin, end - begin)))

    def encode(
        self, rows: Columns, *, producer_id: int, producer_epoch: int, sequence: int
    ) -> Buffer:
        """The rows as one batch of a transaction."""
        batch = encode_columns(
            rows,
            base_offset=0,
            compression=self._compression,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=sequence,
        )
        header = parse_header(batch)
        return with_header(
            batch, header._replace(attributes=header.attributes | ATTRIBUTE_TRANSACTIONAL)
        )

    def _shards(self, batch: pa.RecordBatch) -> Int64s:
        count = batch.num_rows
        shards: Int64s = np.full(count, _NOT_SHARDED, np.int64)
        if "shard" in batch.schema.names:
            column = batch.column("shard").cast(pa.int64())
            shards = np.asarray(pc.fill_null(column, _NOT_SHARDED), np.int64)
            bad = shards[(shards >= self._shard_count) | (shards < _NOT_SHARDED)]
            if len(bad):
                raise InvalidArgument(
                    "shard", f"{bad[0]} is outside 0..{self._shard_count - 1} of the topic"
                )
        open_rows = shards == _NOT_SHARDED
        if not open_rows.any():
            return shards
        shards = np.where(open_rows, self._next_shard, shards)
        self._next_shard = (self._next_shard + 1) % self._shard_count
        if "key" in batch.schema.names and self._shard_count > 1:
            keys = batch.column("key").cast(pa.binary())
            has_key = np.asarray(pc.is_valid(keys)) & open_rows
            hashed = key_hashes(keys) & np.uint32(0x7FFFFFFF)
            shards = np.where(has_key, hashed % np.uint32(self._shard_count), shards)
        return shards.astype(np.int64)

    def _record_columns(self, batch: pa.RecordBatch) -> dict[str, pa.Array]:
        count = batch.num_rows
        names = set(batch.schema.names)

        def column(name: str, kind: pa.DataType) -> pa.Array:
            return batch.column(name).cast(kind) if name in names else pa.nulls(count, kind)

        return {
            "offset": pa.array(np.arange(count, dtype=np.int64)),
            "timestamp": _timestamps(batch),
            "key": column("key", pa.binary()),
            "value": column("value", pa.binary()),
            "headers": self._headers(batch),
        }

    def _headers(self, batch: pa.RecordBatch) -> pa.Array:
        count = batch.num_rows
        headers: pa.Array | None = None
        if "headers" in batch.schema.names:
            headers = _as_headers(batch.column("headers"))
        if "tags" in batch.schema.names:
            tags = batch.column("tags")
            if len(tags.flatten()):
                return self._with_tags(headers, tags)
        if headers is None:
            bounds = pa.array(np.zeros(count + 1, np.int32))
            return pa.ListArray.from_arrays(bounds, pa.array([], HEADER)).cast(_HEADERS)
        return headers

    def _with_tags(self, headers: pa.Array | None, tags: pa.Array) -> pa.Array:
        """Headers with the tags behind them that the record's own do not say already."""
        name = self._tag_header
        rows = []
        known = [None] * len(tags) if headers is None else headers.to_pylist()
        for own, named in zip(known, tags.to_pylist(), strict=True):
            row = list(own or ())
            said = {entry["value"] for entry in row if entry["key"] == name}
            for tag in dict.fromkeys(named or ()):
                if tag is not None and tag.encode() not in said:
                    row.append({"key": name, "value": tag.encode()})
            rows.append(row)
        return pa.array(rows, _HEADERS)


def key_hashes(keys: pa.Array) -> UInt32s:
    """Murmur2 of every key, as Kafka's own clients choose a partition by; of a null that of b''."""
    bounds, data = _binary_buffers(keys)
    starts, lengths = bounds[:-1], np.diff(bounds)
    hashes: UInt32s = _SEED ^ lengths.astype(np.uint32)
    words = lengths // 4
    for index in range(int(words.max(initial=0))):
        rows = np.flatnonzero(words > index)
        at = starts[rows] + 4 * index
        word = _word(data, at, 4) * _FACTOR
        word ^= word >> np.uint32(24)
        hashes[rows] = (hashes[rows] * _FACTOR) ^ (word * _FACTOR)
    rest = lengths % 4
    for size in (1, 2, 3):
        rows = np.flatnonzero(rest == size)
        at = starts[rows] + 4 * words[rows]
        hashes[rows] = (hashes[rows] ^ _word(data, at, size)) * _FACTOR
    hashes ^= hashes >> np.uint32(13)
    hashes *= _FACTOR
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _word(data: npt.NDArray[np.uint8], at: Int64s, size: int) -> UInt32s:
    """Up to four bytes from each position on as one number, the first byte lowest."""
    word: UInt32s = np.zeros(len(at), np.uint32)
    for index in range(size):
        word |= data[at + index].astype(np.uint32) << np.uint32(8 * index)
    return word


def _binary_buffers(array: pa.Array) -> tuple[Int64s, npt.NDArray[np.uint8]]:
    _, bounds, data = array.buffers()
    if bounds is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(0, np.uint8)
    limits = np.frombuffer(bounds, np.int32)[array.offset : array.offset + len(array) + 1]
    content = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return limits.astype(np.int64), content


def _timestamps(batch: pa.RecordBatch) -> pa.Array:
    now_ms = time.time_ns() // 1_000_000
    if "timestamp" not in batch.schema.names:
        return pa.array(np.full(batch.num_rows, now_ms, np.int64)).cast(TIME)
    column = batch.column("timestamp")
    kind = pa.timestamp("us", column.type.tz)  # One without a zone is taken for UTC.
    micros = pc.fill_null(column.cast(kind).cast(pa.int64()), now_ms * 1000)
    # Rounded down, for times before 1970 too.
    return pa.array(np.asarray(micros, np.int64) // 1000).cast(TIME)


def _as_headers(column: pa.Array) -> pa.Array:
    """Headers as the codec wants them, whatever the names and nullability inside."""
    entries = column.flatten()
    if entries.null_count:
        raise InvalidRecord("a header is null; leave it out, or give it a name")
    names = entries.field(0).cast(pa.string())
    if names.null_count:
        raise InvalidRecord("a header has no name")
    pairs = pa.StructArray.from_arrays(
        [names, entries.field(1).cast(pa.binary())], fields=list(HEADER)
    )
    counts = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int32)
    bounds = np.concatenate((np.zeros(1, np.int32), np.cumsum(counts, dtype=np.int32)))
    return pa.ListArray.from_arrays(pa.array(bounds), pairs).cast(_HEADERS)


def _sizes(table: pa.Table) -> Int64s:
    """About how many bytes each row has when it is encoded."""
    sizes = np.full(table.num_rows, _RECORD_OVERHEAD, np.int64)
    for name in ("key", "value"):
        lengths: Any = pc.fill_null(pc.binary_length(table.column(name)), 0)
        sizes += np.asarray(lengths, np.int64)
    headers = table.column("headers").combine_chunks()
    if len(headers.values):
        entries = headers.values
        lengths = np.asarray(pc.binary_length(entries.field(0)), np.int64) + 10
        lengths += np.asarray(pc.fill_null(pc.binary_length(entries.field(1)), 0), np.int64)
        total = np.concatenate(([0], np.cumsum(lengths)))
        limits = np.asarray(headers.offsets, np.int64)
        sizes += np.diff(total[limits])
    return sizes


def _pieces(sizes: Int64s, limit: int) -> Iterator[tuple[int, int]]:
    """Ranges of rows that are not larger than the limit together, unless one row is."""
    total = np.cumsum(sizes)
    begin = 0
    while begin < len(sizes):
        before = int(total[begin - 1]) if begin else 0
        end = max(int(np.searchsorted(total, before + limit, side="right")), begin + 1)
        yield begin, end
        begin = end
