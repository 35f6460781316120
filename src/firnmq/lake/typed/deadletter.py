"""Rows for what does not fit: the record as it was, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from firnmq.lake.reading.schema import RAW

DEAD_LETTERS: Final = RAW.append(pa.field("reason", pa.string(), nullable=False))

REASON_LENGTH_MAX: Final = 1_000
"""Characters. Reasons may quote a value, and a value may be long."""


def dead_letters(rows: pa.RecordBatch, reasons: Sequence[str]) -> pa.RecordBatch:
    """Raw rows, which did not fit, with the reason of each."""
    shortened = [
        reason if len(reason) <= REASON_LENGTH_MAX else reason[: REASON_LENGTH_MAX - 1] + "…"
        for reason in reasons
    ]
    return pa.RecordBatch.from_arrays(
        [*rows.columns, pa.array(shortened, pa.string())], schema=DEAD_LETTERS
    )
