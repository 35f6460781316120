"""Streaming reads: where the next micro-batch ends, and what tasks read for it.

Spark 4.2 and later say from where on and how much at most is to be planned. Spark 4.1 only asks for
the newest position, so the reader remembers where the last batch ended: Spark names it when it
plans the batch and, after a restart, before anything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from firnmq.errors import InvalidArgument
from firnmq.lake.plans.plan import Wanted
from firnmq.lake.plans.wire import WireClient, with_retries
from firnmq.lake.spark.columns import check_schema
from firnmq.lake.spark.options import Edge, ReadOptions
from firnmq.lake.spark.planning import (
    Bounds,
    StreamAhead,
    TopicReplaced,
    earliest_of,
    plan_pieces,
    read_bounds,
)
from firnmq.lake.spark.positions import Offsets, Position, advanced, check_log
from firnmq.lake.spark.reading import PiecePartition, read_piece

try:
    from pyspark.sql.streaming.datasource import (  # type: ignore[import-not-found]
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    HAS_LIMITS: Final = True
except ImportError:  # Before Spark 4.2.
    HAS_LIMITS = False  # type: ignore[misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands for what this Spark does not have."""


if TYPE_CHECKING:
    import pyarrow as pa


class FirnStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """Plans the micro-batches of a stream; used by one thread on the driver."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        if options.values == "raw":
            check_schema(schema)
        self._options = options
        self._schema = schema
        self._planned: Position | None = None
        """Where the last batch ended; None before anything is known."""
        self._target: Offsets | None = None
        """The end position of a run over the records that exist now."""
        self._latest: dict[str, Any] | None = None
        """The newest position as Spark was told; the log was looked at for it."""

    # What Spark calls ----------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        bounds = read_bounds(self._options)
        position = advanced(self._options, None, bounds.topic_id, self._first(bounds))
        self._planned = position
        return position.document

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_rows
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = read_bounds(self._options, starts=False).ends

    def latestOffset(  # noqa: N802
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        bounds = read_bounds(self._options, starts=False)
        ends = bounds.ends
        if self._target is not None:
            ends = {shard: min(end, self._target.get(shard, 0)) for shard, end in ends.items()}
        if start is not None:
            begin: Position | None = Position.of_document(start)
            most = limit.max_rows if HAS_LIMITS and isinstance(limit, ReadMaxRows) else None
        else:
            # Nothing is known yet only if one batch is to have all there is.
            begin = self._planned
            most = None if self._options.is_available_now else self._options.max_rows
        if begin is not None:
            self._check_topic(begin, bounds.topic_id)
            self._check_reached(begin.offsets, bounds.ends)
            ends = {shard: max(end, begin.at(shard)) for shard, end in ends.items()}
            if most is not None:
                ends = limited(begin.offsets, ends, most)
        self._latest = advanced(self._options, begin, bounds.topic_id, ends).document
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        begin, stop = Position.of_document(start), Position.of_document(end)
        self._check_topic(begin, stop.topic_id)
        self._planned = stop
        shards = tuple(shard for shard, offset in stop.offsets.items() if begin.at(shard) < offset)
        if not shards:
            return []
        wanted = msgspec.structs.replace(
            self._options.wanted,
            shards=shards,
            start_offsets={shard: begin.at(shard) for shard in shards},
            end_offsets={shard: stop.offsets[shard] for shard in shards},
        )
        is_demanded = self._options.fails_on_loss
        pieces = self._pieces(wanted, stop.topic_id)
        if end != self._latest:  # A batch that was planned before a restart.
            check_log(self._options, begin, stop)
        return [PiecePartition(piece, wanted, is_demanded=is_demanded) for piece in pieces]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_piece(partition, self._options, self._schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark's checkpoint holds the position; nothing else needs it."""

    def stop(self) -> None:
        """There is nothing that is kept open."""

    # ---------------------------------------------------------------------------------------------

    def _pieces(self, wanted: Wanted, topic_id: str) -> list[Any]:
        return plan_pieces(
            self._options,
            wanted,
            schema=self._schema,
            demanded=wanted.start_offsets,
            topic_id=topic_id,
        )

    def _check_reached(self, begin: Offsets, ends: Offsets) -> None:
        options = self._options
        if not options.fails_on_loss or "bootstrap" not in options.connection:
            return  # What a bucket has may be behind what a node has given.
        for shard, offset in begin.items():
            end = ends.get(shard, offset)
            if end < offset:
                raise StreamAhead(options.topic, shard, offset, end)

    def _first(self, bounds: Bounds) -> Offsets:
        options = self._options
        unknown = set(options.starting.of_shards) - set(bounds.ends)
        if unknown:
            raise InvalidArgument("startingOffsets", f"there is no shard {min(unknown)}")
        earliest = bounds.starts
        if options.uses_table and "earliest" in {options.starting.at(each) for each in earliest}:
            earliest = earliest_of(options, bounds)
        if options.wanted.min_timestamp_ms is not None and "bootstrap" in options.connection:
            earliest = self._since(options.wanted.min_timestamp_ms, bounds, earliest)
        first: Offsets = {}
        for shard, end in bounds.ends.items():
            edges: dict[Edge, int] = {"earliest": earliest[shard], "latest": end}
            place = options.starting.at(shard)
            first[shard] = place if isinstance(place, int) else edges[place]
        return first

    def _since(self, time_ms: int, bounds: Bounds, earliest: Offsets) -> Offsets:
        """The offsets from which on records have such a time, unless they are older than the log.

        What is earlier by offset but has a later time is not looked for.
        """
        if time_ms < 0:
            return earliest

        def ask() -> Offsets:
            with WireClient.from_options(self._options.connection) as client:
                place = client.place(self._options.topic)
                found: Offsets = {}
                for shard, end in bounds.ends.items():
                    leader = place.leaders.get(shard)
                    offset = client.list_offsets(self._options.topic, [shard], time_ms, leader)
                    found[shard] = end if offset[shard] < 0 else offset[shard]
                return found

        found = with_retries(ask)
        return {
            shard: earliest[shard] if offset <= bounds.starts[shard] else offset
            for shard, offset in found.items()
        }

    def _check_topic(self, known: Position, topic_id: str) -> None:
        if known.topic_id != topic_id:
            raise TopicReplaced(self._options.topic, known.topic_id, topic_id)


def limited(begin: Offsets, ends: Offsets, most: int) -> Offsets:
    """Ends with no more than so many offsets before them, shared out by how far shards are behind.

    Every shard that is behind gets at least one, as far as they go; with fewer than that, those
    with the lowest numbers are first, and are last in the next batch, being less far behind.
    """
    lags = {shard: end - begin.get(shard, 0) for shard, end in ends.items()}
    total = sum(lags.values())
    if total <= most:
        return dict(ends)
    shares = {shard: lag * most // total for shard, lag in lags.items()}
    left = most - sum(shares.values())
    for shard in sorted(lags, key=lambda each: (-lags[each], each)):
        if left and shares[shard] < lags[shard]:
            shares[shard] += 1
            left -= 1
    return {shard: begin.get(shard, 0) + shares[shard] for shard in ends}
