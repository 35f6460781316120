"""What a roll does to its log, one function for each action of the machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from firnmq.disk import Settlement
from firnmq.engines.catalog.segments import Segment, SegmentMeta, Successor, medium_of_new
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.shardlog.backend import open_segment
from firnmq.engines.shardlog.rolling.state import RollState
from firnmq.engines.shardlog.snapshot import Snapshot, snapshot_at
from firnmq.engines.shardlog.tail import Tail
from firnmq.errors import NotLeader
from firnmq.eventlog import EventLogger

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog
    from firnmq.engines.shardlog.rolling.machine import RollMachine

_log = EventLogger("engine")


class Move(NamedTuple):
    """A roll after which another node leads."""

    node: int
    """This one."""
    successor: Successor
    hand_over: Callable[[ShardSpec, int, bytes], None]
    """Gives the successor what the log knows at its end, packed; durable there when it returns. A
    FirnError means that the successor is not ready."""


class Seal(NamedTuple):
    """What the metadata transaction of a roll changes."""

    sealed: SegmentMeta
    active: SegmentMeta
    successor: Successor | None = None
    is_decided: bool = False
    """Whether the metadata has it."""


def is_old(log: ShardLog) -> bool:
    """Whether the active segment is to be sealed because of its age."""
    first_ms = log.tail.first_append_ms
    if first_ms is None:
        return False
    limit_ms = age_limit_ms(log)
    return limit_ms is not None and log.backend.clock.age_ms(first_ms) >= limit_ms


def age_limit_ms(log: ShardLog) -> int | None:
    """How old the active segment may become; None if any age will do."""
    config = log.spec.config
    limit_ms = config.segment_ms
    if limit_ms is not None and config.segment_jitter_ms:
        limit_ms -= _jitter_ms(log, min(config.segment_jitter_ms, limit_ms))
    lag_ms = config.max_compaction_lag_ms if config.compacts else None
    return limit_ms if lag_ms is None else min(lag_ms, lag_ms if limit_ms is None else limit_ms)


def _jitter_ms(log: ShardLog, jitter_max_ms: int) -> int:
    """How much earlier than others the active segment is sealed: the same at every call."""
    return crc32(f"{log.spec.uid} {log.tail.segment.meta.seq}".encode()) * jitter_max_ms >> 32


def sync(log: ShardLog, machine: RollMachine) -> None:
    """Makes a frozen segment durable, with its snapshot, and its index entries known. The lock is
    free while the device works; if the log has another machine then, nothing more is done."""
    with log.lock:
        if log.rolling is not machine:
            return
        log.release_preallocation()
        segment, has_bytes = log.tail.segment, log.tail.position > 0
    if has_bytes:  # Before the first append there may be no file.
        segment.bytes.sync()
    with log.lock:
        if log.rolling is not machine:
            return
        commit(log)
        snapshot, spec = snapshot_of(log), log.spec
    if log.replica is not None:
        # A replica is opened with the first segment that is not complete as its tail: once there
        # is a next one, this one must be, whatever ends the process.
        log.backend.sync_index()
    if log.backend.snapshots is not None:
        if log.replica is not None:  # The next segment has another leader epoch, which needs one.
            spec = dataclasses.replace(spec, epoch=spec.epoch + 1)
        log.backend.snapshots.write(spec, snapshot)


def hand_over(log: ShardLog, move: Move) -> None:
    """Gives the next leader what the frozen, synced log knows. The lock is free."""
    with log.lock:
        snapshot = snapshot_of(log)
    move.hand_over(log.spec, snapshot.end_offset, snapshot.pack(log.spec.uid))


def snapshot_of(log: ShardLog) -> Snapshot:
    """What the frozen log knows beside its records. The lock is held."""
    return snapshot_at(log.tail.next_offset, log.producers, log.deletions)


def drop_old_snapshots(log: ShardLog) -> None:
    """Removes snapshots that nothing needs after a roll. What fails is left to the next roll."""
    if log.backend.snapshots is not None:
        metas = [segment.meta for segment in log.segments]
        try:
            log.backend.snapshots.drop_old(log.spec, metas)
        except OSError as error:
            _log.warning("snapshots_left_behind", shard=log.spec.name, error=str(error))


def commit(log: ShardLog) -> None:
    """Notes that all of the segment is synced. The lock is held."""
    log.note_synced(log.tail.checkpoint())
    log.commit_checkpoint()


def seal_of(log: ShardLog, move: Move | None = None) -> Seal:
    """What the segment becomes, and the next one. The lock is held."""
    tail, now_ms = log.tail, log.backend.clock.now_ms()
    sealed = tail.segment.meta.become_sealed(
        end_offset=tail.next_offset,
        length=tail.position,
        crc=tail.crc,
        max_timestamp=tail.builder.max_timestamp,
        now_ms=now_ms,
        first_expiry_ms=tail.builder.first_expiry_ms,
        transactions=log.producers.open_transactions(),
    )
    active = SegmentMeta(
        seq=sealed.seq + 1,
        base_offset=tail.next_offset,
        created_ms=now_ms,
        leader_epoch=log.spec.epoch,
        medium=medium_of_new(log.spec.config),
    )
    return Seal(sealed, active, None if move is None else move.successor)


def decide(log: ShardLog, seal: Seal) -> Seal:
    """Seals the segment and opens the next one: one durable change of the metadata. Returns what
    the metadata has then."""
    if log.replica is not None:
        return log.replica.listener.seal(log.replica.id, seal)
    active = log.backend.state.roll(log.spec.uid, seal.sealed, seal.active, seal.successor)
    return seal._replace(active=active, is_decided=True)


def install(log: ShardLog, seal: Seal) -> None:
    """Shows what the metadata has. The lock is held."""
    tail = log.tail
    old = Segment(seal.sealed, tail.segment.bytes, tail.segment.index)
    new = open_segment(log.backend, log.spec, seal.active)
    has_old = log.replica is None or seal.sealed.length > 0  # The metadata keep no empty replica.
    log.segments = (*log.segments[:-1], *((old,) if has_old else ()), new)
    log.use.note_rolled()
    log.restart(Tail(new, next_offset=seal.active.base_offset))
    if log.replica is not None:
        log.spec = dataclasses.replace(log.spec, epoch=seal.active.leader_epoch)
        log.replica.begin(log)


def leave(log: ShardLog, move: Move) -> None:
    """Closes a log whose next segment another node leads: nothing of its parked appends was stored.
    The lock is held."""
    log.refuse(NotLeader(log.spec.name, move.node, move.successor.node))
    settlement = Settlement()
    log.watchers.wake(settlement)
    settlement.deliver()


@contextmanager
def unchanging(log: ShardLog) -> Iterator[None]:
    """The log's lock, while neither a roll nor another change of the log is under way."""
    with log.lock:
        wait_for_changes(log)
        yield


def wait_for_changes(log: ShardLog) -> None:
    """Waits for the end of rolls and of changes that are under way. The lock is held; waiting
    releases it."""
    while log.rolling.is_under_way or log.is_changing:
        log.change_ended.wait()


def wait_until_idle(log: ShardLog) -> None:
    """The same, and for a roll that is only wanted."""
    while log.rolling.is_under_way or log.is_changing or log.rolling.state is RollState.WANTED:
        log.change_ended.wait()


def end_roll(log: ShardLog) -> None:
    """Wakes threads that wait for the end of a roll, and has parked appends stored. The lock is
    held, so that no other append comes first."""
    log.change_ended.notify_all()
    if log.parked:
        log.parked.resume()
