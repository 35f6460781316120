"""The data source `firn`: topics as Spark's tables and streams."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from firnmq.errors import InvalidArgument
from firnmq.lake.spark.options import ReadOptions, read_options, shown_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from firnmq.lake.tables.history import Shown

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class FirnDataSource(DataSource):
    """`spark.read.format("firn")`, `.readStream`, `.write` and `.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "firn"

    _shown: Shown | None = None
    """What rows were when Spark asked for their columns: it stays so, whatever a sync does then."""

    def schema(self) -> StructType:
        from firnmq.lake.spark.planning import frame_of

        self._shown, columns = frame_of(shown_options(self.options))
        return columns

    def reader(self, schema: StructType) -> DataSourceReader:
        from firnmq.lake.spark.reading import FilteringReader, FirnReader

        options = self._with_columns(read_options(self.options))
        kind = FilteringReader if options.takes_filters else FirnReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from firnmq.lake.spark.planning import frame_of
        from firnmq.lake.spark.streaming import FirnStreamReader

        options = self._with_columns(read_options(self.options, is_stream=True))
        if options.values == "auto":
            options = replace(options, values=frame_of(options).shown)
        return FirnStreamReader(options, schema)

    def _with_columns(self, options: ReadOptions) -> ReadOptions:
        return options if self._shown is None else replace(options, values=self._shown)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from firnmq.lake.spark.writing import FirnWriter

        if overwrite:
            raise InvalidArgument("mode", "a topic is never overwritten; write with mode append")
        return FirnWriter(write_options(self.options), schema)

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamWriter:
        from firnmq.lake.spark.writing import FirnStreamWriter

        if overwrite:
            raise InvalidArgument(
                "outputMode", "a topic is never overwritten; use append or update"
            )
        return FirnStreamWriter(write_options(self.options), schema)


def register(spark: SparkSession) -> None:
    """Makes `firn` known to a session, and lets Spark hand filters to it."""
    spark.conf.set(_PUSHDOWN, "true")
    spark.dataSource.register(FirnDataSource)
