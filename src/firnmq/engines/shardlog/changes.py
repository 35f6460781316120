"""Changes that the catalog and other stores hold together. The log's lock is held, with
`rolling.steps.unchanging`, unless said otherwise; it is free while other stores are at work.

The catalog decides. What a change needs in files and in the key-value store is durable before the
catalog's transaction; what the change leaves behind there is removed after it.

- An error before the transaction, or of a transaction that did not happen: nothing has changed, and
  the caller is told.
- A transaction whose outcome is unknown closes the log. Opening it reads the catalog and obeys it.
- After the transaction the change has happened: readers are shown it at once. What cannot be
  removed then is a leftover, which is tried again until it is gone. The caller is told of success.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from firnmq.engines.catalog.segments import Segment, SegmentMeta
from firnmq.engines.shardlog.backend import open_segment
from firnmq.errors import FirnError, StaleEpoch, StorageFailed
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog

T = TypeVar("T")
_log = EventLogger("engine")


class Drop(NamedTuple):
    """What is left of one segment."""

    remove: Callable[[], None]
    """Removes bytes and index entries; repeating it is harmless."""
    seq: int | None = None
    """The segment whose description goes after that, if one does."""


class Leftovers:
    """What a log no longer has, and other stores still do. A crash forgets it: opening the log
    removes what the catalog does not name."""

    __slots__ = ("drops", "has_old_aborted", "has_old_rows", "seqs")

    def __init__(self, drops: Sequence[Drop] = ()) -> None:
        self.drops = list(drops)
        self.seqs: list[int] = []
        """Segments of which nothing is left but their descriptions."""
        self.has_old_rows = False
        """There may be deletions of records below the start."""
        self.has_old_aborted = False
        """There are aborted transactions below the start; noticed together with the former."""

    def __bool__(self) -> bool:
        return bool(self.drops or self.seqs or self.has_old_rows)

    def add(self, other: Leftovers) -> None:
        self.drops += other.drops
        self.seqs += other.seqs
        self.has_old_rows = self.has_old_rows or other.has_old_rows
        self.has_old_aborted = self.has_old_aborted or other.has_old_aborted

    def remove(self, log: ShardLog) -> None:
        """Removes what there is, as far as the stores let it. What cannot be removed does not keep
        the rest, however long that lasts. Needs no lock."""
        failure: Exception | None = None
        drops, self.drops = self.drops, []
        for drop in drops:
            try:
                drop.remove()
            except (OSError, FirnError) as error:
                failure = error
                self.drops.append(drop)
            else:
                self.seqs += [] if drop.seq is None else [drop.seq]
        try:
            if self.has_old_rows:
                self._remove_old_rows(log)
            if self.seqs:
                log.backend.state.forget_segments(log.spec.uid, self.seqs)
                self.seqs = []
        except (OSError, FirnError) as error:
            failure = error
        if failure is not None:
            _log.warning(
                "cleanup_unfinished",
                shard=log.spec.name,
                segments=len(self.drops),
                error=str(failure),
                effect="the change has happened; the next round of upkeep removes the rest",
            )

    def _remove_old_rows(self, log: ShardLog) -> None:
        """Removes what is kept of deletions and aborted transactions below the start, and the
        snapshots of segments that are gone."""
        if log.backend.snapshots is not None:
            metas = [segment.meta for segment in log.segments]
            log.backend.snapshots.drop_old(log.spec, metas)
        if self.has_old_aborted:
            log.backend.forget_aborted(log.spec, 0, log.view.start_offset)
            self.has_old_aborted = False
        trim_deletions(log)
        self.has_old_rows = False


def trim_deletions(log: ShardLog) -> None:
    """Forgets deletions that are about records below the start alone, or keeps them for the table,
    if there is one."""
    state, start_offset = log.backend.state, log.view.start_offset
    log.trim_deletions(
        lambda trim: state.trim_deletions(log.spec.uid, start_offset, trim.changed, trim.gone)
    )


def drops_of(log: ShardLog, segments: Sequence[Segment], seqs: Collection[int] = ()) -> list[Drop]:
    """What removes the bytes and index entries of segments, and the descriptions of some."""
    remove = log.backend.drop_segment
    return [
        Drop(partial(remove, log.spec, each), each.meta.seq if each.meta.seq in seqs else None)
        for each in segments
    ]


def clean_up(log: ShardLog) -> None:
    """Removes what is left behind. A closed log does not: opening it does."""
    if not log.leftovers or log.refusal is not None:
        return
    left, log.leftovers = log.leftovers, Leftovers()
    try:
        with log.unlocked():
            left.remove(log)
    finally:
        log.leftovers.add(left)


def remove_unlocked(log: ShardLog, drops: Sequence[Drop]) -> None:
    """The same for what was just left behind, without the lock: a large file takes its time."""
    left = Leftovers(drops)
    left.remove(log)
    if left:
        with log.lock:
            log.leftovers.add(left)


def decide(log: ShardLog, change: Callable[[], T]) -> T:
    """Makes a change of the catalog; if its outcome is unknown, the log closes."""
    try:
        with log.unlocked():
            return change()
    except StorageFailed as error:
        if error.is_outcome_unknown:
            raise log.fail(error) from error
        raise


def move_start(log: ShardLog, start_offset: int) -> None:
    """Moves the start and drops sealed segments that end at or below it."""
    try:
        _move_start(log, start_offset)
    except StaleEpoch:
        # Whether a change of a copy was made is known to the catalog alone if it failed.
        for segment in log.segments[:-1]:
            take_changes(log, segment.meta.seq)
        _move_start(log, start_offset)


def _move_start(log: ShardLog, start_offset: int) -> None:
    view = log.view
    gone = [
        segment
        for segment in log.segments
        if segment.meta.is_sealed and segment.meta.end_offset <= start_offset
    ]
    if start_offset <= view.start_offset and not gone:
        clean_up(log)
        return
    start_offset = max(start_offset, view.start_offset)
    if start_offset > log.synced.next_offset:
        _sync_below_start(log)
    metas = [segment.meta for segment in gone]
    decide(log, lambda: log.backend.state.move_start(log.spec.uid, start_offset, metas))
    log.segments = log.segments[len(gone) :]
    if log.producers.forget_below(start_offset):
        log.leftovers.has_old_aborted = True
    log.show_start(start_offset)
    log.leftovers.has_old_rows = True
    # One with a copy in the object store is remembered until that is gone as well.
    done = {meta.seq for meta in metas if meta.tier is None}
    log.leftovers.add(Leftovers(drops_of(log, gone, done)))
    clean_up(log)


def _sync_below_start(log: ShardLog) -> None:
    """A power cut must not leave a log that ends before its start."""
    try:
        log.sync()
    except OSError as error:
        raise log.fail(error) from error


def change_copy(log: ShardLog, old: Segment, new: SegmentMeta) -> SegmentMeta:
    """Gives a sealed segment another copy in the object store, or says that it is only there:
    in the catalog first, then to readers."""
    decide(log, lambda: log.backend.state.change_copy(log.spec.uid, new))
    _show_copy(log, old, new)
    return new


def take_changes(log: ShardLog, seq: int) -> None:
    """Takes over what the catalog says of a sealed segment's copy."""
    for segment in log.segments[:-1]:
        if segment.meta.seq != seq:
            continue
        with log.unlocked():
            kept = log.backend.state.segment(log.spec.uid, seq)
        if kept is not None and kept.is_sealed and _copy_of(kept) != _copy_of(segment.meta):
            new = dataclasses.replace(
                segment.meta,
                state=kept.state,
                epoch=kept.epoch,
                tier=kept.tier,
                is_local=kept.is_local,
            )
            _show_copy(log, segment, new)


def _show_copy(log: ShardLog, old: Segment, new: SegmentMeta) -> None:
    if new.is_local:
        log.replace_segment(old, Segment(new, old.bytes, old.index))
        return
    log.cold_end_offset = max(log.cold_end_offset, new.end_offset)
    log.replace_segment(old, open_segment(log.backend, log.spec, new))
    log.cut_count += 2  # Readers of its index here must not take it for empty.
    log.known.forget(new.seq)


def _copy_of(meta: SegmentMeta) -> tuple[object, ...]:
    """What changes when a segment's copy does."""
    return meta.state, meta.epoch, meta.tier, meta.is_local
