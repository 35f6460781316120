"""The log of a memory shard: a failing disk never closes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from firnmq.engines.catalog.segments import Segment
from firnmq.engines.compaction.rewrite import NotReplaced
from firnmq.engines.media.memory.backend import MemoryState
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.backend import IndexEntry
from firnmq.engines.shardlog.changes import Leftovers, clean_up, drops_of
from firnmq.errors import StorageFailed, storage_failure


class MemoryLog(ShardLog):
    """A ShardLog that has no disk to be reopened from: closing it would lose what it holds.

    Nothing in memory depends on a change on disk that failed, so the log goes on as it was. If
    the outcome of a change is unknown, `settle` asks the stores once they answer again. Until then
    both copies of a compacted segment stay.
    """

    __slots__ = ()

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        """The lock is kept: `settle` makes changes, and may fail and be tried again, under it."""
        yield

    @property
    def state(self) -> MemoryState:
        state = self.backend.state
        assert isinstance(state, MemoryState)
        return state

    def fail(self, cause: BaseException) -> StorageFailed:
        """What to tell the caller; the log stays open, and asks later what became of the change."""
        self.state.is_doubtful = True
        if isinstance(cause, StorageFailed):
            return type(cause)(self.spec.name, cause.cause)
        return storage_failure(self.spec.name, cause)

    def staged_entries(self) -> list[IndexEntry]:
        """Additions to the index alone: there is no checkpoint to come back to."""
        if self.replication is not None:
            return []
        index = self._turn_index()
        self.deletions.store_changes(index)
        return index.entries

    def move_start(self, start_offset: int) -> None:
        self.settle()
        super().move_start(start_offset)

    def replace_sealed(self, old: list[Segment], new: Segment) -> None:
        state = self.state
        if state.doubt is not None:
            raise NotReplaced(self.spec.name, OSError("an earlier change is not complete yet"))
        state.doubt = (old, new)
        try:
            super().replace_sealed(old, new)
        except NotReplaced:
            state.doubt = None
            raise
        state.doubt = None

    def settle(self) -> None:
        """Takes over changes whose outcome was unknown; raises if it still is. The lock is held."""
        self._take_kept()
        state = self.state
        if state.doubt is None:
            return
        old, new = doubt = state.doubt
        state.doubt = None
        try:
            self.replace_sealed(old, new)
            gone = old
        except NotReplaced:
            gone = [new]
        except BaseException:
            state.doubt = doubt
            raise
        if new.bytes is not old[0].bytes:
            merged = [each.meta.seq for each in old[1:]] if gone is old else []
            self.leftovers.add(Leftovers(drops_of(self, gone, merged)))
        clean_up(self)

    def _take_kept(self) -> None:
        """Takes over the start that the stores have, and gives them the log's deletions: one that
        failed has no entry."""
        state = self.state
        if not state.is_doubtful:
            return
        start_offset = state.kept_start(self.spec.uid)
        if start_offset is not None:
            state.keep_unlogged(self.spec.uid)
        state.is_doubtful = False
        if start_offset is not None and start_offset > self.view.start_offset:
            try:
                super().move_start(start_offset)
            except BaseException:
                state.is_doubtful = True
                raise
