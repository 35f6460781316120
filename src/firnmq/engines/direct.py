"""The shortest way into a log: one small batch, written by the event loop that received it.

Most of what a small append takes is work for cases that it is not: queues, turns of many requests,
indexes, producers' states, rolls. Where none of them applies, `DirectLog` does what is left: it
checks the batch, numbers it, writes it into the page cache and shows it to readers. Everything
else is left to the ordinary way, and is found out before anything has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from firnmq.config import Durability
from firnmq.disk import Guest, Notice, Settlement
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.log import STORAGE_ERRORS
from firnmq.engines.shardlog.read import HINTS_MAX
from firnmq.engines.shardlog.view import View
from firnmq.engines.state import ShardSpec
from firnmq.errors import FirnError
from firnmq.index import NEVER_MS, RECORDS_PER_POINT, Point
from firnmq.record import take_plain

BYTES_MAX = 4096
"""A larger batch takes long enough for the rest not to matter."""
NOT_TAKEN = -1


class BatchWatcher(Notice[None]):
    """Waits for a log to grow; may be shown the batch that made it grow instead of being woken."""

    __slots__ = ()

    def appended(self, base_offset: int, batch: memoryview, view: View) -> None:
        """Called on the event loop in place of `settled`. The bytes are there for this call only;
        the view is the log's, with the batch at its end."""
        raise NotImplementedError


class DirectLog:
    """One log, for one event loop. Append, answer the client, then `finish`."""

    __slots__ = (
        *("_appended", "_batch", "_bytes_max", "_clock", "_expire_header", "_guest", "_is_plain"),
        *("_logs", "_record_bytes_max", "_segment_bytes", "_segment_ms", "_spec", "log"),
    )

    def __init__(self, logs: DirectLogs, log: ShardLog, guest: Guest) -> None:
        self._logs = logs
        self.log = log
        """To look at; `append` is what changes it."""
        self._guest = guest
        self._clock = log.backend.clock
        self._appended = NOT_TAKEN
        self._learn(log.spec)

    @property
    def is_current(self) -> bool:
        """Whether the shard has this log still: one that failed is replaced."""
        return self.log.refusal is None and not self._logs.is_closed

    def append(self, buffer: bytearray, batch: memoryview, start: int) -> int:
        """Appends the batch, which is `buffer` from `start` on, and returns its base offset.

        NOT_TAKEN if it must go the ordinary way; then nothing has changed. StorageFailed if the
        bytes could not be written; then the log is closed, as it is on the ordinary way.
        """
        log, logs = self.log, self._logs
        if not log.lock.acquire(False):
            return NOT_TAKEN
        try:
            spec = self._spec
            if log.spec is not spec:
                self._learn(log.spec)
                spec = self._spec
            tail, size = log.tail, len(batch)
            position = tail.position
            end = position + size
            if not (
                self._is_plain
                and log.is_left_to_system
                and log.synced is log.stored  # Else there is something to be told to the index.
                and log.refusal is None
                and not logs.is_closed
                and (logs.tiered_refusal is None or not spec.config.is_tiered)
                and size <= self._bytes_max
                and position > 0
                and end <= self._segment_bytes
                and end < log.known.next_border_position
                and tail.builder.records_since_point < RECORDS_PER_POINT
                and tail.first_append_ms is not None
                and (
                    self._segment_ms is None
                    or self._clock.now_ms() - tail.first_append_ms < self._segment_ms
                )
                and self._guest.may_work()
                and tail.segment.bytes.is_file
                and (
                    self._expire_header is None
                    or buffer.find(self._expire_header, start, start + size) < 0
                )
            ):
                return NOT_TAKEN
            base_offset = tail.next_offset
            taken = take_plain(batch, base_offset, spec.epoch, tail.crc, self._record_bytes_max)
            if taken is None:
                return NOT_TAKEN
            record_count, max_timestamp, crc = taken
            self._batch = batch
            self._appended = NOT_TAKEN
            try:
                tail.segment.bytes.append((batch,), position, log.rows, durable=False)
            except STORAGE_ERRORS as error:
                raise log.fail(error) from error
            log.take_written(end, base_offset + record_count, crc, record_count, max_timestamp)
            self._appended = base_offset
            return base_offset
        finally:
            log.lock.release()

    def finish(self, took_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """Wakes who waits for what was appended, or failed to be; the append took so long."""
        log, batch = self.log, self._batch
        watchers = log.watchers.take()
        others: Settlement | None = None
        for watcher in watchers:
            if (
                self._appended != NOT_TAKEN
                and isinstance(watcher, BatchWatcher)
                and watcher.is_of(loop)
            ):
                watcher.appended(self._appended, batch, log.view)
            else:
                others = others or Settlement()
                others.resolve(watcher, None)
        if others is not None:
            others.deliver_from(loop)
        batch.release()
        self._guest.worked(took_s)

    def watch(self, watcher: BatchWatcher, end_offset: int) -> bool:
        """Has the watcher told when the log grows beyond the offset; False if it has already."""
        return self.log.watch(watcher, end_offset)

    def unwatch(self, watcher: BatchWatcher) -> None:
        self.log.watchers.remove(watcher)

    def shows_all(self, view: View) -> bool:
        """Whether every batch at the end is given out as it is: no record is deleted or may have
        expired, and no transaction is open."""
        log = self.log
        return not (
            log.holes
            or log.dead_keys
            or log.spec.config.ttl_ms
            or view.active_expiry_ms != NEVER_MS
            or view.stable_offset != view.end_offset
            or log.cut_count % 2
        )

    def note_reader(self, view: View) -> None:
        """Somebody has everything up to the end of the view and will go on from there."""
        hints = self.log.hints
        if len(hints) >= HINTS_MAX:
            hints.clear()
        meta = view.segments[-1].meta
        end = Point(view.end_offset, view.active_length)
        hints[end.offset] = (meta.seq, meta.epoch, end)

    def _learn(self, spec: ShardSpec) -> None:
        config = spec.config
        self._spec = spec
        self._is_plain = config.durability is Durability.OS and not (
            config.index_key or config.index_tag or config.compacts
        )
        self._segment_bytes = config.segment_bytes
        self._segment_ms = config.segment_ms
        self._bytes_max = min(BYTES_MAX, config.max_batch_bytes)
        self._record_bytes_max = config.max_record_bytes
        self._expire_header = None if config.expire_header is None else config.expire_header_bytes


class DirectLogs:
    """An engine's open logs, as far as they can be written this way. Owned by the engine."""

    def __init__(
        self, logs: Mapping[str, ShardLog], guest: Callable[[ShardLog], Guest | None]
    ) -> None:
        self._logs = logs
        self._guest = guest
        self.is_closed = False
        self.tiered_refusal: FirnError | None = None
        """Why nothing is appended to topics with tiering at present."""

    def find(self, shard: str) -> DirectLog | None:
        """The shard's log; None if it has to be opened first, or is never written this way."""
        log = self._logs.get(shard)
        if log is None or log.refusal is not None or self.is_closed:
            return None
        guest = self._guest(log)
        return None if guest is None else DirectLog(self, log, guest)
