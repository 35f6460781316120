"""Everything that we use of PySpark's private parts, and nothing else.

`tests/unit/lake/test_internals.py` says what is missing if a newer version has changed it.
"""

from __future__ import annotations

import sys
from subprocess import Popen
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame


def analyzed_plan(frame: DataFrame) -> str:
    """The plan of a query after its names were resolved, as Spark shows it."""
    plan: str = frame._jdf.queryExecution().analyzed().toString()
    return plan


def active_context() -> SparkContext | None:
    """This process's Spark context; does not import PySpark."""
    module: Any = sys.modules.get("pyspark")
    context: SparkContext | None = None if module is None else _fields(module)[0]
    return context


def java_process() -> Popen[bytes] | None:
    """The Java that this process has started; does not import PySpark."""
    module: Any = sys.modules.get("pyspark")
    if module is None:
        return None
    process: Popen[bytes] | None = getattr(_fields(module)[1], "proc", None)
    return process


def forget_counters() -> None:
    """Java's death is no error of the counters that it reports to this process: Spark's server for
    them would print a traceback."""
    server = getattr(active_context(), "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda *_: None


def _fields(module: Any) -> tuple[Any, Any]:
    return module.SparkContext._active_spark_context, module.SparkContext._gateway
