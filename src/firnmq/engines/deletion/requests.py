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
    """What to append for records at offsets, and what to note for the table. Offsets that hold a
    deleted record, or the entry of a deletion, are passed over."""
    deletions, view = log.deletions, log.view
    there = {at for at in offsets if view.start_offset <= at < view.end_offset}
    new = sorted(at for at in there - deletions.offsets if not deletions.has_entry(at))
    old = sorted({at for at in offsets if 0 <= at < view.start_offset})
    return Deletion(tuple(new)), Deletion(tuple(old))


def deletion_of_key(log: ShardLog, key: bytes) -> tuple[Deletion, Deletion]:
    """The same for every record the key has so far. Nothing is appended if the key has no record
    that is not deleted yet, as far as the indexes that are here tell."""
    # What is not certain yet is not there yet: it is not deleted should it be committed.
    deletion = Deletion((), ((key, log.view.stable_offset),))
    with log.lock:
        deleted_below = log.deletions.keys.get(key, 0)
        if _may_have_key(log, key, deleted_below):
            return deletion, Deletion()
        # The table may have what came between the last deletion of the key and the start.
        is_known = deleted_below > 0 and log.view.start_offset <= deleted_below
    return Deletion(), Deletion() if is_known else deletion


def _may_have_key(log: ShardLog, key: bytes, from_offset: int) -> bool:
    """Whether the key may have records from the offset on that are certain. Only the indexes that
    are here are asked: the lock is held."""
    view = log.view
    first_offset = max(view.start_offset, from_offset)
    if first_offset >= view.stable_offset:
        return False
    if log.cold_end_offset > first_offset:
        return True
    if not log.spec.config.index_key:
        # Entries of deletions are no records. Mostly what follows the last one of a key is this.
        has_entry = log.deletions.has_entry
        return not all(map(has_entry, range(first_offset, view.stable_offset)))
    for segment in reversed(view.segments):
        if segment.meta.is_sealed and segment.meta.end_offset <= first_offset:
            return False  # And so is everything older.
        newest = segment.index.newest_of_key(key)
        if newest is not None:
            return newest.offset >= first_offset
    return False
