"""When upkeep has to look at a shard again: rows in the order of time, so that a shard with nothing
due costs nothing.

A shard of a range has a row from the write that begins its segment on. The row may be too early,
which costs a visit, but never too late: what a shard gets later only moves the time away.
docs/formats/shared-file.md has the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from firnmq.config import TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.media.layouts.shared_file.rows import (
    due_key,
    due_of_key,
    due_rows,
    due_upto,
    limits_key,
    unpack_due_key,
    unpack_due_of,
)
from firnmq.engines.shardlog.rolling.steps import age_limit_ms

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog

_ROWS_PER_PASS = 256
NEVER_MS = 2**62
"""Later than any time."""
_AGAIN_MS = 60_000
"""A visit that found nothing to do, or could not do it, is repeated after this time."""
_COMPACTED_AGAIN_MS = 10 * 60_000
"""How often a shard with sealed segments is looked at that has to be compacted."""
Rows = list[tuple[bytes, bytes]]


class DueTimes:
    """Of the shards of ranges of one data directory. Safe with threads; a shard's rows are changed
    with its log's lock held."""

    def __init__(self, kv: KeyValueStore, producer_expiration_ms: int) -> None:
        self._kv = kv
        self._producer_expiration_ms = producer_expiration_ms

    def load(self, log: ShardLog) -> None:
        """Tells a log that was opened what is stored."""
        packed = self._kv.get(Family.LOCATIONS, due_of_key(log.spec.uid))
        log.use.due_ms = None if packed is None else unpack_due_of(packed)

    def rows_of_turn(self, logs: Iterable[ShardLog]) -> Rows:
        """What a turn stores with the first append of a log that has no row."""
        rows: Rows = []
        for log in logs:
            use = log.use
            if use.due_ms is None and log.spec.is_ranged:
                due_ms = self.next_ms(log)
                if len(log.segments) > 1 and log.spec.config.retention_bytes is not None:
                    due_ms = 0  # A segment was sealed since upkeep visited the shard.
                use.due_ms = due_ms
                if due_ms < NEVER_MS:
                    rows += due_rows(log.spec.uid, due_ms)
        return rows

    def due(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """The uids of the shards that are due, with the times of their rows."""
        lower, upper = due_upto(now_ms)
        while rows := self._kv.items(Family.LOCATIONS, lower, upper, _ROWS_PER_PASS):
            for key, _ in rows:
                yield unpack_due_key(key)
            lower = rows[-1][0] + b"\0"

    def visited(self, log: ShardLog, now_ms: int) -> None:
        """Stores when a shard is due next, where that is news. The lock is held."""
        before, after = log.use.due_ms, self.next_ms(log)
        if after <= now_ms:
            after = now_ms + _AGAIN_MS
        if before is not None and now_ms < before <= after:
            return  # Early is as good: it costs one visit.
        log.use.due_ms = after
        uid = log.spec.uid
        with self._kv.batch() as batch:
            if before is not None and before < NEVER_MS:
                batch.delete(Family.LOCATIONS, due_key(uid, before))
            if after < NEVER_MS:
                for key, value in due_rows(uid, after):
                    batch.put(Family.LOCATIONS, key, value)
            else:
                batch.delete(Family.LOCATIONS, due_of_key(uid))

    def forget(self, uid: int, due_ms: int) -> None:
        """Removes a row of a shard that is no more."""
        with self._kv.batch() as batch:
            batch.delete(Family.LOCATIONS, due_key(uid, due_ms))

    def next_ms(self, log: ShardLog) -> int:
        """When, by the wall clock, upkeep has something to do for a shard that does not change."""
        config, tail = log.spec.config, log.tail
        deletes_ms = config.retention_ms if config.cleanup_policy.deletes else None
        limits = [limit for limit in (deletes_ms, config.ttl_ms) if limit is not None]
        found = [NEVER_MS]
        first_ms = tail.first_append_ms
        if first_ms is not None:
            newest_ms = tail.builder.max_timestamp
            written_ms = first_ms if newest_ms < 0 else newest_ms
            found += [written_ms + limit for limit in limits]
            limit_ms = age_limit_ms(log)
            if limit_ms is not None and seals_idle(log.spec):
                found.append(first_ms + limit_ms)
        if len(log.segments) > 1:
            oldest = log.segments[0].meta
            found += [oldest.newest_ms + limit for limit in limits]
            if config.compacts:
                found.append(log.backend.clock.now_ms() + _COMPACTED_AGAIN_MS)
        producer_ms = log.producers.oldest_ms
        if producer_ms is not None:
            found.append(producer_ms + self._producer_expiration_ms)
        return max(min(found), 0)

    # Topics ---------------------------------------------------------------------------------------

    def begin(self, topic_id: str, config: TopicConfig) -> None:
        """Notes the limits of a topic that is being made."""
        with self._kv.batch() as batch:
            batch.put(Family.LOCATIONS, limits_key(topic_id), _limits(config))

    def follow(
        self, topic_id: str, config: TopicConfig, recorded: Callable[[], Iterable[int]]
    ) -> None:
        """Has upkeep visit the shards of a topic whose limits have changed. `recorded` gives the
        uids of those of which more may be left than rows of locations."""
        key, limits = limits_key(topic_id), _limits(config)
        if self._kv.get(Family.LOCATIONS, key) == limits:
            return
        for uid in recorded():
            self.pull_in(uid)
        with self._kv.batch() as batch:  # Last: after a crash all is done again.
            batch.put(Family.LOCATIONS, key, limits)

    def pull_in(self, uid: int) -> None:
        """Has upkeep visit a shard with its next round."""
        with self._kv.batch() as batch:
            batch.put_many(Family.LOCATIONS, due_rows(uid, 0))

    def drop(self, topic_id: str, first_uid: int, end_uid: int) -> None:
        """Forgets shards that are no more. Rows by time are left to the visits that find them."""
        with self._kv.batch() as batch:
            batch.delete(Family.LOCATIONS, limits_key(topic_id))
            batch.delete_range(
                Family.LOCATIONS,
                due_of_key(first_uid),
                due_of_key(end_uid),
            )


def _limits(config: TopicConfig) -> bytes:
    """The options on which it depends when a shard is due."""
    return repr(
        (
            config.cleanup_policy.value,
            config.retention_ms,
            config.retention_bytes,
            config.ttl_ms,
            config.segment_ms,
            config.segment_jitter_ms,
            config.max_compaction_lag_ms,
            config.is_tiered,
            config.lake_required,
        )
    ).encode()


def seals_idle(spec: ShardSpec) -> bool:
    """Whether a segment that is not appended to has to be sealed by its age: of a range only if
    something follows from that. A million idle shards would otherwise be as many changes of the
    metadata."""
    config = spec.config
    return (
        not spec.is_ranged
        or config.retention_ms is not None
        or config.retention_bytes is not None
        or config.ttl_ms is not None
        or config.compacts
        or config.is_tiered
        or config.lake_required
    )
