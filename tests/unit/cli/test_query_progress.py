"""The progress of a query whose session stops."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("py4j")

from firnmq.cli.lake.running import watch_query


class StoppedContext:
    """As PySpark's: its Java side is None after `stop`."""

    _jsc = None

    def statusTracker(self) -> object:  # noqa: N802
        return self._jsc.statusTracker()  # type: ignore[attr-defined]


def test_a_session_that_has_stopped_is_no_error() -> None:
    told: list[tuple[int, int]] = []
    spark = SimpleNamespace(sparkContext=StoppedContext())
    watch_query(spark, lambda done, total: told.append((done, total)))  # type: ignore[arg-type]
    assert told == []
