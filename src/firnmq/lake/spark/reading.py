"""Batch reads: filters to limits, limits to tasks, tasks to Arrow batches."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from firnmq.lake import workers
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.spark.columns import arrow_schema, check_schema, shaped
from firnmq.lake.spark.filters import Limits, narrow
from firnmq.lake.spark.options import ReadOptions
from firnmq.lake.tables.files.rows import HistorySplit, read_columns, read_history

if TYPE_CHECKING:
    import pyarrow as pa

    from firnmq.lake.spark.planning import Piece


class PiecePartition(InputPartition):
    """What one task reads, and which of its rows."""

    def __init__(self, piece: Piece, wanted: Wanted, *, is_demanded: bool) -> None:
        self.piece = piece
        self.wanted = wanted
        self.is_demanded = is_demanded
        """Whether it is an error if retention removes some of it before it is read."""


class FirnReader(DataSourceReader):
    """One read of a topic."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.values == "raw":
            check_schema(schema)
        self._options = options
        self._schema = schema
        self._limits = Limits(wanted=options.wanted)

    def partitions(self) -> list[InputPartition]:
        from firnmq.lake.spark.planning import plan_pieces, wanted_of

        options = self._options
        if self._limits.is_empty:
            return []
        wanted = wanted_of(options, self._limits)
        if wanted.shards == ():
            return []
        demanded = {
            shard: place
            for shard, place in options.starting.of_shards.items()
            if isinstance(place, int)
        }
        pieces = plan_pieces(options, wanted, schema=self._schema, demanded=demanded)
        return [
            PiecePartition(
                piece, wanted, is_demanded=options.fails_on_loss and piece.shard in demanded
            )
            for piece in pieces
        ]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        return read_piece(partition, self._options, self._schema)


class FilteringReader(FirnReader):
    """A read that takes filters over, if it is told to.

    Spark, up to 4.3 at least, keeps the plan of the last read of a data frame with such filters
    and uses it for the data frame's next read too, where there may be others or none: rows would
    be missing. So this is for data frames that are used once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802
        self._limits, left = narrow(self._limits, filters)
        return left


def read_piece(
    partition: InputPartition | None, options: ReadOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Rows with the columns that Spark expects. Spark makes one task of none: it is None."""
    if isinstance(partition, PiecePartition):
        with workers.task():
            yield from _read(partition, options, schema)


def _read(
    partition: PiecePartition, options: ReadOptions, schema: StructType
) -> Iterator[pa.RecordBatch]:
    """Nothing here makes cycles, and looking for them while batches are made takes most of the
    time."""
    from firnmq.lake.reading.reader import read_split
    from firnmq.lake.spark.planning import RecordsGone
    from firnmq.lake.spark.tail import ParsedSplit, read_parsed

    def lost(start: int, end: int) -> None:
        if partition.is_demanded:
            raise RecordsGone(options.topic, piece.shard, start, end)

    piece, wanted = partition.piece, partition.wanted
    target = arrow_schema(schema)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        if isinstance(piece, ParsedSplit):
            batches = read_parsed(piece, wanted, target, options.connection, lost=lost)
        elif isinstance(piece, HistorySplit):
            if piece.columns is None:
                batches = read_history(piece, wanted, target.names, options.connection)
            else:
                batches = read_columns(piece, wanted, target, options.connection)
        else:
            batches = read_split(piece, wanted, target.names, options.connection, lost=lost)
        for batch in batches:
            yield shaped(batch, target)
    finally:
        if was_enabled:
            gc.enable()
