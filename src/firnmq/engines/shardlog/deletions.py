"""Deleting records of a log, by offset and by key. The log's lock is held.

What the log has no records for may still be in the topic's table: it is noted for that alone, if
there is a table.
"""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.engines.shardlog.changes import keep
from firnmq.engines.shardlog.log import ShardLog


def delete_offsets(log: ShardLog, offsets: Sequence[int]) -> list[int]:
    """Deletes records; offsets that hold none are passed over. Those that it deleted."""
    view, state, uid = log.view, log.backend.state, log.spec.uid
    new = sorted({at for at in offsets if view.start_offset <= at < view.end_offset} - log.holes)
    if new:
        keep(log, lambda: state.add_holes(uid, new))
        log.holes.update(new)
    state.note_retired(uid, sorted({at for at in offsets if 0 <= at < view.start_offset}), {})
    return new


def delete_key(log: ShardLog, key: bytes) -> int | None:
    """Deletes every record the key has so far. The offset below which they are, None if the log has
    none of them."""
    state, uid = log.backend.state, log.spec.uid
    # What is not certain yet is not there yet: it is not deleted should it be committed.
    below = log.view.stable_offset
    if _may_have_key(log, key):
        keep(log, lambda: state.set_dead_key(uid, key, below))
        log.dead_keys[key] = below
        return below
    state.note_retired(uid, (), {key: below})
    return None


def _may_have_key(log: ShardLog, key: bytes) -> bool:
    """Whether the key may have records that are certain. Only the indexes that are here are asked:
    the lock is held."""
    if log.view.start_offset >= log.view.stable_offset:
        return False
    if not log.spec.config.index_key or log.cold_end_offset > log.view.start_offset:
        return True
    return any(segment.index.newest_of_key(key) for segment in log.view.segments)
