"""Writing data frames and streams into a topic.

A batch write shows its rows when all of its tasks are through. A stream shows every row of every
micro-batch exactly once to readers of committed records; see `committing.py`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from firnmq.errors import FirnError, InvalidArgument
from firnmq.lake import workers
from firnmq.lake.plans.wire import WireClient
from firnmq.lake.spark.committing import BatchCommitter, TaskWrite
from firnmq.lake.spark.options import WriteOptions
from firnmq.lake.spark.producing import Producer, tag_header

if TYPE_CHECKING:
    import pyarrow as pa

    from firnmq.lake.spark.encoding import RowEncoder
    from firnmq.record import Buffer, Columns

_BYTES: Final = (BinaryType, StringType)
_COLUMNS: Final = ("value", "key", "timestamp", "shard", "headers", "tags", "offset")
_QUERY_ID: Final = "sql.streaming.queryId"
_RUN_ID: Final = "spark.jobGroup.id"
"""What Spark sets for the tasks of a stream: a run's job group is the run's id."""


class NoQuery(FirnError):
    """Spark did not say which query a task belongs to, so nothing could be written once."""

    def __init__(self) -> None:
        super().__init__(
            f"a task of a stream was not told its query ({_QUERY_ID}); use foreachBatch with a "
            "batch write and the option writeId"
        )


@dataclass
class Written(WriterCommitMessage):
    """What a task hands to the driver."""

    query: str
    rows: int
    task: TaskWrite | None
    """None if there were no rows."""


def check_columns(schema: StructType) -> None:
    """InvalidArgument unless the rows can be made into records."""
    for field in schema:
        if field.name not in _COLUMNS:
            raise InvalidArgument(
                "schema",
                f"a record has no column {field.name!r}; it has {', '.join(_COLUMNS)}. To write "
                "columns of yours, make one value of them, such as to_json(struct(*)) AS value",
            )
        if not _fits(field.name, field.dataType):
            raise InvalidArgument(
                "schema", f"column {field.name!r} cannot be {field.dataType.simpleString()}"
            )
    if "value" not in schema.names:
        raise InvalidArgument("schema", "there is no column 'value', the content of the records")


def _fits(name: str, kind: DataType) -> bool:
    match name:
        case "key" | "value":
            return isinstance(kind, _BYTES)
        case "timestamp":
            return isinstance(kind, TimestampType | TimestampNTZType)
        case "shard":
            return isinstance(kind, ByteType | ShortType | IntegerType | LongType)
        case "tags":
            return isinstance(kind, ArrayType) and isinstance(kind.elementType, StringType)
        case "headers":
            if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
                return False
            entry = kind.elementType
            return (
                len(entry) == 2
                and isinstance(entry[0].dataType, StringType)
                and isinstance(entry[1].dataType, _BYTES)
            )
    return True  # An offset is given by the node; that of where a row comes from is left out.


class RowWriter:
    """What batch and stream have in common: a task's rows into a transaction left open."""

    def __init__(self, options: WriteOptions) -> None:
        self.options = options

    def connect(self) -> WireClient:
        return WireClient.from_options(self.options.connection, client_id="firn-spark")

    @workers.task()
    def write_rows(
        self, batches: Iterator[pa.RecordBatch], query: str, transactional_id: str, seed: int
    ) -> Written:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return Written(query, 0, None)
        with self.connect() as client:
            encoder = self._encoder(client, seed, has_tags="tags" in first.schema.names)
            producer = Producer(
                client,
                self.options.topic,
                transactional_id,
                timeout_ms=self.options.transaction_timeout_ms,
            )
            try:
                rows = _send(producer, encoder, first)
                for batch in batches:
                    rows += _send(producer, encoder, batch)
            except BaseException:
                _give_up(producer)
                raise
            task = TaskWrite(
                id=producer.transaction.id,
                producer_id=producer.transaction.producer_id,
                epoch=producer.transaction.epoch,
                shard=producer.shards[0],
            )
            return Written(query, rows, task)

    def _encoder(self, client: WireClient, seed: int, *, has_tags: bool) -> RowEncoder:
        from firnmq.lake.spark.encoding import RowEncoder

        topic = self.options.topic
        return RowEncoder(
            shard_count=len(client.place(topic).leaders),
            tag_header=tag_header(client, topic) if has_tags else "",
            compression=self.options.compression,
            batch_bytes=self.options.batch_bytes,
            seed=seed,
        )


def _send(producer: Producer, encoder: RowEncoder, batch: pa.RecordBatch) -> int:
    """Writes the rows, a batch of each shard at a time; how many they are."""
    waiting: dict[int, list[Columns]] = {}
    for shard, rows in encoder.parts(batch):
        waiting.setdefault(shard, []).append(rows)
    transaction = producer.transaction
    while waiting:
        turn: dict[int, tuple[Buffer, int]] = {}
        for shard in list(waiting):
            rows = waiting[shard].pop(0)
            if not waiting[shard]:
                del waiting[shard]
            encoded = encoder.encode(
                rows,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
                sequence=producer.sequence(shard),
            )
            turn[shard] = (encoded, len(rows))
        producer.send(turn)
    return int(batch.num_rows)


def _give_up(producer: Producer) -> None:
    try:
        producer.end(commit=False)
    except FirnError:
        pass  # It ends by itself after its time-out; the error that led here is what counts.


def _tasks(messages: Iterable[WriterCommitMessage | None]) -> list[TaskWrite]:
    return [
        message.task
        for message in messages
        if isinstance(message, Written) and message.task is not None
    ]


class FirnWriter(DataSourceArrowWriter):
    """One write of a data frame."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        self._rows = RowWriter(options)
        self._run = uuid.uuid4().hex

    @property
    def _query(self) -> str:
        return self._rows.options.write_id or self._run

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        place = f"{context.partitionId()}/{context.taskAttemptId()}"
        transactional_id = f"spark/{self._query}/{self._run}/{place}"
        return self._rows.write_rows(iterator, self._query, transactional_id, context.partitionId())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._committer().commit(0, _tasks(messages))

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._committer().abort(0, _tasks(messages))

    def _committer(self) -> BatchCommitter:
        options = self._rows.options
        return BatchCommitter(self._rows.connect, options.topic, options.write_id)


class FirnStreamWriter(DataSourceStreamArrowWriter):
    """The micro-batches of a stream. Spark makes a new one for each task and each commit."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_columns(schema)
        if options.write_id is not None:
            raise InvalidArgument("writeId", "is for batch writes; a stream is known by its query")
        self._rows = RowWriter(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """The id is one that earlier batches of the same run have used, and no other run has.

        So a query that runs for months needs no more ids than it has tasks, while the batch that
        a new run repeats cannot disturb the transactions that the old run has noted.
        """
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "tasks have a context"
        query = context.getLocalProperty(_QUERY_ID)
        run = context.getLocalProperty(_RUN_ID)
        if not query or not run:
            raise NoQuery
        attempt = context.attemptNumber()
        place = f"{context.partitionId()}/{attempt}"
        return self._rows.write_rows(
            iterator, query, f"spark/{query}/{run}/{place}", context.partitionId()
        )

    def commit(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        query = _query_of(messages)
        if query is not None:
            self.committer(query).commit(batchId, _tasks(messages))

    def abort(
        self,
        messages: Sequence[WriterCommitMessage | None],
        batchId: int,  # noqa: N803
    ) -> None:
        query = _query_of(messages)
        if query is not None:
            self.committer(query).abort(batchId, _tasks(messages))

    def committer(self, query: str) -> BatchCommitter:
        return BatchCommitter(self._rows.connect, self._rows.options.topic, query)


def _query_of(messages: Iterable[WriterCommitMessage | None]) -> str | None:
    return next((each.query for each in messages if isinstance(each, Written)), None)
