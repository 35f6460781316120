"""Compares the rows that are derived from deletion entries with the entries of the log.

A row may have less than its entry: what is about records below the start is forgotten in time.
"""

from __future__ import annotations

from firnmq.engines.deletion.rows import DeletionRows
from firnmq.engines.verify.findings import FindingKind, Notes
from firnmq.errors import Corruption
from firnmq.record import BatchEntry
from firnmq.record.batch import Buffer
from firnmq.record.deletion import Deletion, deletion_of


class DeletionCheck:
    """Follows the batches of one shard; `finish` tells which rows do not agree with them."""

    def __init__(
        self,
        rows: DeletionRows,
        uid: int,
        notes: Notes,
        *,
        start_offset: int,
        upto_offset: int,
        is_rewound: bool,
    ) -> None:
        """Rows go up to `upto_offset`; where `is_rewound`, they may speak of more, which the next
        opening forgets."""
        self._rows = rows
        self._uid = uid
        self._notes = notes
        self._start_offset = start_offset
        self._upto_offset = upto_offset
        self._is_rewound = is_rewound
        self._found: dict[int, Deletion] = {}
        self._covered: list[tuple[int, int]] = []

    def take(self, entry: BatchEntry, batch: Buffer) -> None:
        """A control batch of the log without a producer."""
        deletion = deletion_of(batch)
        if deletion is None:
            return
        if deletion.reach > entry.base_offset:
            self._add(f"the deletion at offset {entry.base_offset} reaches {deletion.reach}")
        self._found[entry.base_offset] = deletion

    def cover(self, start_offset: int, end_offset: int) -> None:
        """Every batch with an offset in [start, end) was taken."""
        self._covered.append((start_offset, min(end_offset, self._upto_offset)))

    def finish(self, end_offset: int) -> None:
        """Compares the rows of what was covered, in a log that ends at an offset."""
        try:
            stored = self._rows.entries(self._uid)
        except Corruption as error:
            self._add(f"{error.reason}: the rows cannot be read")
            return
        for offset, row in stored.items():
            if offset >= end_offset and not self._is_rewound:
                self._add(f"the row of a deletion at offset {offset}, beyond the end {end_offset}")
            elif self._is_covered(offset):
                self._compare(offset, row)
        for offset, deletion in self._found.items():
            is_due = any(deletion.above(self._start_offset)) and self._is_covered(offset)
            if is_due and offset not in stored:
                self._add(f"the deletion at offset {offset} has no row")

    def _compare(self, offset: int, row: Deletion) -> None:
        entry = self._found.get(offset)
        if entry is None:
            self._add(f"there is a row of a deletion at offset {offset}, and the log has none")
            return
        needed = entry.above(self._start_offset)
        for name, kept, full, least in zip(Deletion._fields, row, entry, needed, strict=True):
            if not set(least) <= set(kept) <= set(full):
                self._add(f"the row of the deletion at offset {offset} has other {name}")

    def _is_covered(self, offset: int) -> bool:
        return any(start <= offset < end for start, end in self._covered)

    def _add(self, message: str) -> None:
        self._notes.add(FindingKind.DELETION, message, "deletions")
