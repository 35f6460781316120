"""What opening a log does about deletions that it has no entry of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firnmq.engines.deletion.rows import DeletionRows
from firnmq.record.deletion import Deletion, deletion_batch

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog


def append_unlogged(log: ShardLog, rows: DeletionRows, *, keeps_rows: bool = False) -> None:
    """Appends the entries of deletions that are in rows alone, and removes the rows once the
    entries are durable. A crash in between leaves both; the next opening finds the entries.

    `keeps_rows` where the end of the log does not survive a restart: the rows stay, as far as the
    log has no entry of them that does.
    """
    uid, end = log.spec.uid, log.tail.next_offset
    found = rows.unlogged(uid)
    if not any(found):
        return
    deletions = log.deletions
    left = cut(found, end).above(log.view.start_offset).without(deletions.offsets, deletions.keys)
    if any(left):
        log.append_at_opening([deletion_batch(part) for part in left.parts()])
    rows.keep_unlogged(uid, left if keeps_rows else Deletion())


def cut(deletion: Deletion, end_offset: int) -> Deletion:
    """As far as it is about records of a log that ends there. Lost offsets are given out again: an
    old deletion must not hide new records."""
    return Deletion(
        tuple(offset for offset in deletion.offsets if offset < end_offset),
        tuple((key, min(below, end_offset)) for key, below in deletion.keys if end_offset > 0),
    )
