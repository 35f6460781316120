"""The mover's status for operators: what waits, why, and what was done so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import Enum
from typing import TypeVar

import msgspec

from firnmq.errors import (
    Corruption,
    ObjectCorrupt,
    ObjectNotFound,
    ObjectTruncated,
    StorageFailed,
    StoreDenied,
    StoreUnavailable,
)
from firnmq.tiering.archive.ownership import NotOwner, OtherStore
from firnmq.tiering.cold.cache import CacheStatistics
from firnmq.tiering.move.ledger import NOTHING, TierLedger

S = TypeVar("S", bound=msgspec.Struct)

SEGMENTS_SHOWN_MAX = 100
"""Waiting segments that a status names one by one."""


class FailureKind(Enum):
    """Kinds of failure, for metrics and for the choice of backoff."""

    UNAVAILABLE = "unavailable"
    """The store is down or too slow: the mover retries."""
    DENIED = "denied"
    """The store refuses our credentials: an operator must act."""
    VERIFICATION = "verification"
    """The store does not hold what was sent: it is sent again."""
    LOCAL = "local"
    """The local bytes are damaged or cannot be read."""
    NOT_OWNER = "not_owner"
    """The cluster's objects belong to another data directory."""
    OTHER_STORE = "other_store"
    """The directory's copies are in another store than the configured one."""
    OTHER = "other"

    @property
    def is_of_store(self) -> bool:
        """Whether it concerns the store rather than one segment, so that all work backs off."""
        return self in (
            *(FailureKind.UNAVAILABLE, FailureKind.DENIED),
            *(FailureKind.NOT_OWNER, FailureKind.OTHER_STORE),
        )


_KINDS: tuple[tuple[tuple[type[Exception], ...], FailureKind], ...] = (
    ((StoreUnavailable,), FailureKind.UNAVAILABLE),
    ((StoreDenied,), FailureKind.DENIED),
    ((ObjectCorrupt, ObjectTruncated, ObjectNotFound), FailureKind.VERIFICATION),
    ((Corruption, StorageFailed, OSError), FailureKind.LOCAL),
    ((NotOwner,), FailureKind.NOT_OWNER),
    ((OtherStore,), FailureKind.OTHER_STORE),
)


def kind_of(error: Exception) -> FailureKind:
    for kinds, kind in _KINDS:
        if isinstance(error, kinds):
            return kind
    return FailureKind.OTHER


class WaitingSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A sealed segment that is not in the store yet."""

    topic: str
    shard: str
    segment_seq: int
    base_offset: int
    end_offset: int
    length_bytes: int
    sealed_ms: int
    attempt_count: int
    why: str


class TierTopic(msgspec.Struct, frozen=True, kw_only=True):
    """Where a topic's sealed segments are."""

    topic: str
    is_tiered: bool
    waiting_segments: int
    waiting_bytes: int
    tiered_segments: int
    tiered_bytes: int
    local_segments: int
    """Segments in the store that are also local."""
    local_bytes: int


class CacheUse(msgspec.Struct, frozen=True, kw_only=True):
    """What cold reads have fetched, and how much of it is cached."""

    fetch_count: int = 0
    fetched_bytes: int = 0
    failed_fetch_count: int = 0
    hit_count: int = 0
    """Reads that needed no fetch."""
    paced_count: int = 0
    """Chunks of scans that the throttle delayed in favour of appends."""
    memory_bytes: int = 0
    disk_bytes: int = 0
    evicted_count: int = 0
    corrupt_count: int = 0
    """Cached chunks that failed their check and were fetched again."""

    @classmethod
    def of(cls, statistics: CacheStatistics) -> CacheUse:
        return cls(
            fetch_count=statistics.fetch_count,
            fetched_bytes=statistics.fetched_bytes,
            failed_fetch_count=statistics.failed_fetch_count,
            hit_count=statistics.hit_count,
            paced_count=statistics.paced_count,
            memory_bytes=statistics.memory_bytes,
            disk_bytes=statistics.disk_bytes,
            evicted_count=statistics.evicted_count,
            corrupt_count=statistics.corrupt_count,
        )


class TierStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The mover and its store at one moment."""

    url: str
    cluster: str
    state: str
    """`ok`, `unknown` before the first use, or the kind of failure that prevents its use."""
    last_error: str | None
    last_error_ms: int | None
    failures_in_a_row: int
    retry_in_ms: int
    uploading_segments: int
    waiting_segments: int
    waiting_bytes: int
    lag_ms: int
    """How long the oldest segment that is due has waited."""
    tiered_segments: int
    tiered_bytes: int
    local_segments: int
    local_bytes: int
    dead_segments: int
    """Deleted segments whose objects are still to be removed."""
    backlog_bytes_max: int | None
    is_holding_appends: bool
    """Whether appends to tiered topics are refused until uploads have caught up."""
    upload_count: int
    uploaded_bytes: int
    dropped_count: int
    """Segments whose local bytes were dropped."""
    removed_count: int
    """Segments whose objects were removed."""
    failure_counts: dict[str, int]
    cache: CacheUse
    topics: list[TierTopic]
    waiting: list[WaitingSegment]
    """The oldest of them."""


def topic_rows(ledger: TierLedger) -> list[TierTopic]:
    """Locations of each topic's segments, ordered by topic name."""
    totals = ledger.totals_by_topic()
    return [
        TierTopic(
            topic=topic.record.name,
            is_tiered=topic.config.is_tiered,
            **totals.get(topic.record.topic_id, NOTHING)._asdict(),
        )
        for topic in sorted(ledger.topics(), key=lambda each: each.record.name)
    ]


def of_all_nodes(own: TierStatus, others: Sequence[TierStatus]) -> TierStatus:
    """The status of a cluster, whose nodes each tell of the shards they lead; the store's state is
    the worst that one of them sees."""
    every = [own, *others]
    worst = next((each for each in every if each.state not in ("ok", "unknown")), own)
    failed = max(every, key=lambda each: each.last_error_ms or 0)
    topics: dict[str, TierTopic] = {}
    for row in (row for each in every for row in each.topics):
        before = topics.get(row.topic)
        topics[row.topic] = row if before is None else _with_sums(row, (before, row), _TOPIC_SUMS)
    cache = _with_sums(own.cache, [each.cache for each in every], _CACHE_SUMS)
    waiting = sorted((row for each in every for row in each.waiting), key=lambda row: row.sealed_ms)
    counts: Counter[str] = Counter()
    for each in every:
        counts.update(each.failure_counts)
    return msgspec.structs.replace(
        _with_sums(own, every, _STATUS_SUMS),
        state=worst.state,
        last_error=failed.last_error,
        last_error_ms=failed.last_error_ms,
        failures_in_a_row=max(each.failures_in_a_row for each in every),
        retry_in_ms=max(each.retry_in_ms for each in every),
        lag_ms=max(each.lag_ms for each in every),
        # Every node has all records of deleted topics: those are in each sum.
        dead_segments=max(each.dead_segments for each in every),
        is_holding_appends=any(each.is_holding_appends for each in every),
        failure_counts=dict(counts),
        cache=cache,
        topics=[topics[name] for name in sorted(topics)],
        waiting=waiting[:SEGMENTS_SHOWN_MAX],
    )


_TOPIC_SUMS = (
    *("waiting_segments", "waiting_bytes", "tiered_segments", "tiered_bytes"),
    *("local_segments", "local_bytes"),
)
_STATUS_SUMS = (
    *(*_TOPIC_SUMS, "uploading_segments", "upload_count", "uploaded_bytes"),
    *("dropped_count", "removed_count"),
)
_CACHE_SUMS = tuple(CacheUse.__struct_fields__)


def _with_sums(first: S, each: Sequence[S], fields: Sequence[str]) -> S:
    sums = {name: sum(getattr(one, name) for one in each) for name in fields}
    return msgspec.structs.replace(first, **sums)
