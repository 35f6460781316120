"""A shard's log as an event loop uses it: what it can do without waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.api import Acks, Appended, meant_by
from firnmq.engines.shardlog import Append, BatchRules, ShardLog, prepare_inline
from firnmq.engines.shardlog.reading.records import HINTS_MAX
from firnmq.engines.shardlog.view import View
from firnmq.engines.shardlog.watchers import BatchWatcher
from firnmq.index import NEVER_MS, Point

if TYPE_CHECKING:
    from firnmq.engines.engine import LogEngine
    from firnmq.engines.keeper import LogKeeper


class OpenLog:
    """One log that is open, for one event loop."""

    __slots__ = ("_engine", "_log", "_rules", "keeper")

    def __init__(self, engine: LogEngine, log: ShardLog, keeper: LogKeeper) -> None:
        self._engine = engine
        self._log = log
        self._rules = BatchRules(log.spec.config)
        self.keeper = keeper
        """Takes what was prepared, for this log and others of the engine, with `submit`."""

    @property
    def view(self) -> View:
        return self._log.view

    @property
    def is_current(self) -> bool:
        """Whether the shard has this log still: one that failed is replaced."""
        return self._log.refusal is None and not self._engine.is_closed

    @property
    def epoch(self) -> int:
        """Of its leader: the same as long as the log is current."""
        return self._log.spec.epoch

    def prepare(
        self, batch: Buffer, ticket: Ticket[Appended], acks: Acks, deadline_s: float | None
    ) -> Append | None:
        """A client's batch, checked, to be submitted; None if the caller would have to wait, and
        must use the engine's `submit`. A writable buffer is patched in place.

        Both keep the order of calls as long as a prepared request is submitted before the next is.
        """
        log = self._log
        if not self._engine.takes_appends(log):
            return None
        config = log.spec.config
        if self._rules.config is not config:  # It was changed.
            self._rules = BatchRules(config)
        prepared = prepare_inline(batch, self._rules, log.backend.clock.now_ms())
        if prepared is None:
            return None
        request = Append(None, prepared, prepared.held_bytes)
        request.log = log
        request.ticket = ticket
        request.promise(meant_by(acks, config), deadline_s)
        return request if self.keeper.reserve(log, request) else None

    def watch(self, watcher: BatchWatcher, end_offset: int) -> bool:
        """Has the watcher told when the log grows beyond the offset; False if it has already."""
        return self._log.watch(watcher, end_offset)

    def unwatch(self, watcher: BatchWatcher) -> None:
        self._log.watchers.remove(watcher)

    def shows_all(self, view: View) -> bool:
        """Whether every batch at the end is given out as it is: no record is deleted or may have
        expired, and no transaction is open."""
        log = self._log
        return not (
            log.deletions
            or log.spec.config.ttl_ms
            or view.active_expiry_ms != NEVER_MS
            or view.stable_offset != view.end_offset
            or log.cut_count % 2
        )

    def note_reader(self, view: View) -> None:
        """A reader has everything up to the end of the view and will go on from there."""
        hints = self._log.hints
        if len(hints) >= HINTS_MAX:
            hints.clear()
        meta = view.segments[-1].meta
        end = Point(view.end_offset, view.active_length)
        hints[end.offset] = (meta.seq, meta.epoch, end)
