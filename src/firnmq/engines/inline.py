"""Inline appends: one batch, written by the event loop that received it while the worker is idle.

Two changes of thread take longer than a small write into the page cache, and most of what a turn
does is for cases that one such batch is not: many requests, index entries, rolls. Where none of
them applies, `InlineAppends` numbers the batch, writes it and shows it. Everything else is left to
a turn; `InlineAppends` decides that before it changes anything.

A batch that must be durable is written inline where the device has been quick for a while, into
preallocated blocks, and while the event loop has little else to do: design note 10 says when.
"""

from __future__ import annotations

import asyncio
from time import monotonic

from firnmq.config import Durability
from firnmq.disk import Lane, Notice, Settlement
from firnmq.disk.files import Buffer
from firnmq.engines.api import Appended
from firnmq.engines.catalog.segments import Medium
from firnmq.engines.shardlog import Append, ShardLog
from firnmq.engines.shardlog.append import PreparedBatch
from firnmq.engines.shardlog.log import CHECKPOINT_BYTES, STORAGE_ERRORS
from firnmq.engines.shardlog.rolling.steps import is_old
from firnmq.engines.shardlog.tail import chained
from firnmq.engines.shardlog.view import View
from firnmq.engines.shardlog.watchers import BatchWatcher, ShownBatch
from firnmq.errors import FirnError
from firnmq.index import RECORDS_PER_POINT
from firnmq.record import patch_base

_PAUSE_PER_SYNC = 1.0
"""After a durable append there is none inline for as long as it took: the event loop waits for the
device at most half of the time."""
_SHARED_PAUSE_S = 0.005
"""No durable append inline for so long after several requests shared a turn."""


class InlineAppends:
    """Those of one event loop. Submit, answer the client, then `wake` the readers that wait for the
    log: the acknowledgement does not wait for them."""

    __slots__ = ("_changed", "_durable_after_s", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._changed: list[tuple[ShardLog, int, Buffer, View]] = []
        """Logs that have grown, each with the batch that was appended; or that have failed, with an
        empty one."""
        self._durable_after_s = 0.0
        """No durable append before this time."""

    def append(self, request: Append, lane: Lane[Append]) -> bool:
        """Appends the request's batch and completes its ticket; False if it needs a turn, and then
        nothing has changed. The caller has reserved space for it in the lane."""
        log, batch, ticket = request.log, request.batch, request.ticket
        if batch is None or not isinstance(ticket, Notice) or not log.lock.acquire(False):
            return False
        began_s = monotonic()
        is_durable = log.wants_sync
        try:
            if not (_is_plain(log, batch, is_durable) and lane.may_append_inline()):
                return False
            if is_durable and not self._may_wait(lane, began_s):
                return False
            appended = self._append(log, batch, is_durable)
        except FirnError as refusal:
            ticket.expire(refusal)
        else:
            ticket.settle_with(appended)
        finally:
            log.lock.release()
        ended_s = monotonic()
        if is_durable:
            self._durable_after_s = ended_s + _PAUSE_PER_SYNC * (ended_s - began_s)
        lane.appended_inline(request.size_bytes, ended_s - began_s)
        return True

    def _may_wait(self, lane: Lane[Append], now_s: float) -> bool:
        """Whether the event loop may wait for the device. Where requests come while a sync is under
        way, the worker syncs several of them at once."""
        return now_s >= max(self._durable_after_s, lane.shared_s + _SHARED_PAUSE_S)

    def _append(self, log: ShardLog, batch: PreparedBatch, is_durable: bool) -> Appended:
        """A refusal of the producer's batch leaves the log as it is; a failed write closes it."""
        tail, header, data = log.tail, batch.header, batch.data
        if header.producer_id >= 0:
            stored = log.producers.check(header)
            if stored is not None:
                return Appended(stored.base_offset, stored.last_offset + 1)
        base_offset, position = tail.next_offset, tail.position
        patch_base(data, 0, base_offset, log.spec.epoch)
        try:
            tail.segment.bytes.append((data,), position, log.rows, durable=is_durable)
        except STORAGE_ERRORS as error:
            self._changed.append((log, base_offset, b"", log.view))
            raise log.fail(error) from error
        _take_written(log, batch, base_offset)
        if is_durable:
            log.note_synced(tail.checkpoint())
        self._changed.append((log, base_offset, data, log.view))
        return Appended(base_offset, base_offset + batch.record_count)

    def wake(self) -> None:
        """Wakes the readers that wait for logs that have changed since the last call."""
        if not self._changed:
            return
        changed, self._changed = self._changed, []
        others = Settlement()
        for log, base_offset, data, view in changed:
            for watcher in log.watchers.take():
                if data and isinstance(watcher, BatchWatcher) and watcher.is_of(self.loop):
                    watcher.appended(ShownBatch(base_offset, memoryview(data), view))
                else:
                    others.resolve(watcher, None)
        others.deliver_from(self.loop)


def may_run_turn(log: ShardLog) -> bool:
    """Whether a turn that appends a little is a write into a page cache of the log's own alone."""
    return (
        log.spec.config.durability is Durability.OS
        and log.tail.segment.meta.medium is not Medium.SHARED
        and log.tail.position > 0
        and not log.lock.locked()
    )


def _take_written(log: ShardLog, batch: PreparedBatch, base_offset: int) -> None:
    """Shows one more batch, written at the end. Nothing was staged, no index entry is due, and this
    is the only replica."""
    tail, data = log.tail, batch.data
    tail.crc = chained(tail.crc, data)
    tail.position += len(data)
    tail.next_offset = base_offset + batch.record_count
    builder = tail.builder
    builder.records_since_point += batch.record_count
    if batch.max_timestamp > builder.max_timestamp:
        builder.max_timestamp = batch.max_timestamp
    if batch.first_expiry_ms < builder.first_expiry_ms:
        builder.first_expiry_ms = batch.first_expiry_ms
    if batch.header.producer_id >= 0:
        log.producers.note(batch.header, base_offset, data, log.backend.clock.now_ms())
    log.written_alone()


def _is_plain(log: ShardLog, batch: PreparedBatch, is_durable: bool) -> bool:
    """Whether appending the batch is one write and nothing else: no new file, nothing for the
    index. The lock is held."""
    tail, config = log.tail, log.spec.config
    position = tail.position
    end = position + len(batch.data)
    return (
        (_is_synced_quickly(log, end) if is_durable else _is_never_synced(log))
        and log.replication is None  # Else nothing is acknowledged at once.
        and log.use.is_left_to_system  # Else nothing syncs it later, or stores its checkpoint.
        and log.refusal is None
        and not log.rolling.is_frozen
        and not log.parked
        and position > 0
        and end <= config.segment_bytes
        and end < log.known.next_border_position
        and tail.builder.records_since_point < RECORDS_PER_POINT
        and batch.terms is None
        and not batch.header.is_control
        and tail.segment.bytes.is_file
        and not is_old(log)
    )


def _is_never_synced(log: ShardLog) -> bool:
    return (
        log.spec.config.durability is Durability.OS
        and log.synced is log.stored  # Else the index has to be told how far it is synced.
    )


def _is_synced_quickly(log: ShardLog, end: int) -> bool:
    stored = log.stored
    return (
        stored is not None
        and end - stored.position < CHECKPOINT_BYTES  # Else the checkpoint has to be stored.
        and not log.has_unsynced
        and log.tail.segment.bytes.syncs_quickly(end)
    )
