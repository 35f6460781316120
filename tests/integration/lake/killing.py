"""The data source with a driver that dies while it commits, at a step that a file names."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pyspark.sql.types import StructType

from firnmq.lake.spark import FirnDataSource
from firnmq.lake.spark.committing import BatchCommitter, Step
from firnmq.lake.spark.options import WriteOptions, write_options
from firnmq.lake.spark.writing import FirnStreamWriter


class KillingWriter(FirnStreamWriter):
    def __init__(self, options: WriteOptions, schema: StructType, orders: Path) -> None:
        super().__init__(options, schema)
        self._orders = orders

    def committer(self, query: str) -> BatchCommitter:
        def observe(step: Step) -> None:
            if self._orders.exists() and self._orders.read_text() == step:
                self._orders.unlink()
                os.kill(os.getpid(), signal.SIGKILL)

        options = self._rows.options
        return BatchCommitter(self._rows.connect, options.topic, query, observe=observe)


class KillingSource(FirnDataSource):
    @classmethod
    def name(cls) -> str:
        return "firn_killing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:  # noqa: N802
        options = dict(self.options)
        orders = Path(options.pop("orders"))
        return KillingWriter(write_options(options), schema, orders)
