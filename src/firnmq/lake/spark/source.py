"""The data source `firn`: topics as Spark's tables and streams."""

from __future__ import annotations

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
from firnmq.lake.spark.columns import RECORD
from firnmq.lake.spark.options import check_names, read_options, write_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


class FirnDataSource(DataSource):
    """`spark.read.format("firn")`, `.readStream`, `.write` and `.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "firn"

    def schema(self) -> StructType:
        check_names(self.options)  # The first thing that is asked for.
        return RECORD

    def reader(self, schema: StructType) -> DataSourceReader:
        from firnmq.lake.spark.reading import FilteringReader, FirnReader

        options = read_options(self.options)
        kind = FilteringReader if options.takes_filters else FirnReader
        return kind(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from firnmq.lake.spark.streaming import FirnStreamReader

        return FirnStreamReader(read_options(self.options, is_stream=True), schema)

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
