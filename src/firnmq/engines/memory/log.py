"""The log of a memory shard: a failing disk never closes it."""

from __future__ import annotations

from firnmq.engines.memory.backend import MemoryState
from firnmq.engines.segments import Segment
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.compact import NotReplaced
from firnmq.errors import StorageFailed, storage_failure


class MemoryLog(ShardLog):
    """A ShardLog that has no disk to be reopened from: closing it would lose what it holds.

    Nothing in memory depends on a change on disk that failed, so the log goes on as it was. Only
    whether the catalog has taken a compacted segment can be unknown, and then both copies stay
    until it can be asked.
    """

    __slots__ = ()

    @property
    def state(self) -> MemoryState:
        state = self.backend.state
        assert isinstance(state, MemoryState)
        return state

    def fail(self, cause: BaseException) -> StorageFailed:
        """What to tell the caller; the log stays open."""
        if isinstance(cause, StorageFailed):
            return type(cause)(self.spec.name, cause.cause)
        return storage_failure(self.spec.name, cause)

    def move_start(self, start_offset: int) -> None:
        self.settle()
        super().move_start(start_offset)

    def replace_sealed(self, old: list[Segment], new: Segment) -> None:
        state = self.state
        if state.doubt is not None:
            raise NotReplaced(self.spec.name, OSError("an earlier change has to be settled first"))
        state.doubt = (old, new)
        try:
            super().replace_sealed(old, new)
        except NotReplaced:
            state.doubt = None
            raise
        state.doubt = None

    def settle(self) -> None:
        """Carries out a replacement of which it is not known whether the catalog has it; raises
        if that is still unknown. The lock is held."""
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
        if new.bytes is not old[0].bytes:  # Else only the description has changed.
            for segment in gone:
                self.backend.drop_segment(self.spec, segment)
        if gone is old:
            state.forget_segments(self.spec.uid, [each.meta.seq for each in old[1:]])
