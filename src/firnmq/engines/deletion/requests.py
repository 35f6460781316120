"""What a request to delete becomes: the entry to be appended, and what concerns the table alone.

What the log has no records for may still be in the topic's table: it is noted for that alone, if
there is a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from firnmq.record.deletion import Deletion

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog


def deletion_of_offsets(log: ShardLog, offsets: Sequence[int]) -> tuple[Deletion, Deletion]:
    """What to append for records at offsets, and what to note for the table. Offsets that hold no
    record, or a deleted one, are passed over."""
    known, view = log.deletions.offsets, log.view
    new = sorted({at for at in offsets if view.start_offset <= at < view.end_offset} - known)
    old = sorted({at for at in offsets if 0 <= at < view.start_offset})
    return Deletion(tuple(new)), Deletion(tuple(old))


def deletion_of_key(log: ShardLog, key: bytes) -> tuple[Deletion, Deletion]:
    """The same for every record the key has so far."""
    # What is not certain yet is not there yet: it is not deleted should it be committed.
    deletion = Deletion((), ((key, log.view.stable_offset),))
    with log.lock:
        return (deletion, Deletion()) if _may_have_key(log, key) else (Deletion(), deletion)


def _may_have_key(log: ShardLog, key: bytes) -> bool:
    """Whether the key may have records that are certain. Only the indexes that are here are asked:
    the lock is held."""
    if log.view.start_offset >= log.view.stable_offset:
        return False
    if not log.spec.config.index_key or log.cold_end_offset > log.view.start_offset:
        return True
    return any(segment.index.newest_of_key(key) for segment in log.view.segments)
