"""The shards of an engine and their logs, each opened when it is first used.

Logs of shards that are kept as ranges are closed again when many others are used. A closed log is
only let go: it lives on as long as a caller uses it, and is found again by its
name, so that a shard never has two.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from weakref import WeakValueDictionary

from firnmq.config import TopicConfig
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.keeper import LogKeeper
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling.steps import wait_for_changes
from firnmq.engines.shards import ShardTable
from firnmq.engines.troubles import ShardTroubles
from firnmq.errors import (
    Closed,
    Corruption,
    FirnError,
    NotLeader,
    ShardNotFound,
    StorageFailed,
    storage_failure,
)
from firnmq.health import Health

_LOCK_STRIPES = 64
OPEN_MAX = 20_000
"""Logs of ranges that are held; each takes some nine kilobytes."""
_CLOSED_SHARE = 16
"""One in so many of them is closed at a time."""


class ShardLogs:
    """Finds, opens, reopens and drops logs, and reports those that cannot be opened. Safe with
    threads."""

    def __init__(
        self, keeper: LogKeeper, shards: ShardTable, health: Health, *, open_max: int = OPEN_MAX
    ) -> None:
        """`shards` are those of the keeper's storage type."""
        self.keeper = keeper
        self.shards = shards
        self.troubles = ShardTroubles(health, shards)
        self._open_max = open_max
        self._by_name: dict[str, ShardLog] = {}
        self._alive: WeakValueDictionary[str, ShardLog] = WeakValueDictionary()
        """Every log that anything refers to, by the name of a shard in a range."""
        self._closing = threading.Lock()
        """Held by the thread that closes logs."""
        self._hand: list[str] = []
        """Names of logs that were not yet looked at since all were: the clock's hand."""
        self._ranged_count = 0
        """Logs of ranges that are held, or somewhat more."""
        self.get: Callable[[str], ShardLog | None] = self._by_name.get
        """The log of a shard if it is open, whether it is refused or not. Never waits."""
        self.released: dict[str, NotLeader] = {}
        """Shards that were this node's, until they are again or are deleted."""
        self.replicas: dict[str, ShardLog] = {}
        """Logs with other replicas, whether they lead or follow. Those that lead can be found."""
        self._opening = [threading.Lock() for _ in range(_LOCK_STRIPES)]
        self.is_closed = False

    def __contains__(self, name: str) -> bool:
        """Whether the shard's log is open."""
        return name in self._by_name

    def opened(self) -> list[ShardLog]:
        return list(self._by_name.values())

    def check_open(self) -> None:
        if self.is_closed:
            raise Closed("the store is closed")

    def spec(self, name: str) -> ShardSpec:
        self.check_open()
        spec = self.shards.get(name)
        if spec is None:
            raise self.released.get(name) or ShardNotFound(name, within=self.keeper.storage_type)
        return spec

    def adopt(self, spec: ShardSpec) -> None:
        """Adds a shard, unless it is there."""
        with self.opening(spec):
            if spec.name not in self.shards:
                self.shards.put(spec)
            self.released.pop(spec.name, None)

    def find(self, name: str) -> ShardLog:
        """The log, opened if it is not; one that was refused can still be read."""
        self.check_open()
        log = self._by_name.get(name)
        if log is None:
            return self._open(name, None)
        log.use.is_used = True
        return log

    def writable(self, name: str) -> ShardLog:
        """The log, reopened from disk if storage had failed."""
        log = self.find(name)
        if log.refusal is None:
            return log
        if isinstance(log.refusal, StorageFailed) and log.replica is None:
            return self._open(name, log)
        raise log.refusal  # What becomes of a failed replica is not for this node alone to say.

    def opening(self, spec: ShardSpec) -> threading.Lock:
        """Held while the shard's log is opened, dropped or given another spec."""
        return self._opening[spec.uid % _LOCK_STRIPES]

    def drop(self, spec: ShardSpec) -> None:
        """Removes a shard's bytes, after its log has refused all further use."""
        with self.opening(spec), ExitStack() as held:
            log = self._pop(spec.name) or self.replicas.get(spec.name)
            self.replicas.pop(spec.name, None)
            if log is not None:
                with log.lock:
                    log.refuse(ShardNotFound(spec.name))
                    wait_for_changes(log)
                held.enter_context(log.upkeep)  # Until compaction has seen the refusal.
                held.enter_context(log.lock)
            self.keeper.drop_shard(spec, log)
            self.troubles.forget(spec.name)

    def discard(self, spec: ShardSpec) -> None:
        """Removes what is here of a shard, led or held, that the catalog does not have any more."""
        self.released.pop(spec.name, None)
        known = self.shards.get(spec.name)
        if known is None or known.uid == spec.uid:
            self.shards.pop(spec.name)
            self.drop(spec)

    def hold(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Removes all segments but these, unless the shard is this node's."""
        with self.opening(spec):
            if spec.name not in self.shards and spec.name not in self.replicas:
                try:
                    self.keeper.keep(spec, metas)
                except OSError as error:
                    raise storage_failure(spec.name, error) from error

    def release(self, name: str, epoch: int, refusal: NotLeader) -> None:
        """Forgets a shard that another node leads; its bytes stay. Its log refuses all further use.
        One that is there under another epoch stays."""
        spec = self.shards.get(name)
        if spec is None or spec.epoch != epoch:
            return
        with self.opening(spec), ExitStack() as held:
            if self.shards.get(name) is not spec:
                return
            self.released[name] = refusal
            self.shards.pop(name)
            log = self._pop(spec.name)
            if log is not None:
                with log.lock:
                    log.refuse(refusal)
                    wait_for_changes(log)
                held.enter_context(log.upkeep)  # Until compaction has seen the refusal.
            self.troubles.forget(spec.name)

    def drop_range(self, shards: ShardRange, config: TopicConfig) -> None:
        """Removes the bytes of the shards of a range, which the table does not have any more."""
        for spec in [log.spec for log in list(self._alive.values())]:
            if shards.has_uid(spec.uid):
                self.drop(spec)
        self.keeper.drop_range(shards, config)

    def alive_of(self, topic_id: str) -> list[ShardLog]:
        """The logs of shards of a topic's ranges, open or still in use."""
        ranges = self.shards.ranges_of(topic_id)
        if sum(each.count for each in ranges) < len(self._alive):
            names = (each.name_of(uid) for each in ranges for uid in range(*each.uids))
            found = (self._alive.get(name) for name in names)
            return [log for log in found if log is not None]
        logs = (ref() for ref in self._alive.valuerefs())
        return [
            log
            for log in logs
            if log is not None and any(each.has_uid(log.spec.uid) for each in ranges)
        ]

    def stay_open(self, name: str, log: ShardLog) -> None:
        """Takes back a log that may have been closed since it was found."""
        if log.spec.is_ranged and log.refusal is None and self._by_name.get(name) is not log:
            with self.opening(log.spec):
                if self._alive.get(name) is log:
                    self._take(name, log)

    def close_unused(self) -> None:
        """Closes some of the logs that were not used lately, if there are too many of ranges."""
        if self._ranged_count <= self._open_max or not self._closing.acquire(blocking=False):
            return
        try:
            held = sum(log.spec.is_ranged for log in self.opened())
            self._ranged_count = held
            excess = held - self._open_max + self._open_max // _CLOSED_SHARE
            looks = 2 * held  # Twice around: the first look at a log may find it used.
            while excess > 0 and looks > 0:
                if not self._hand:
                    self._hand = list(self._by_name)[::-1]
                looks -= 1
                excess -= self._close(self._hand.pop())
        finally:
            self._closing.release()

    def _close(self, name: str) -> bool:
        """Lets a log go, unless it is in use."""
        log = self._by_name.get(name)
        if log is None or not log.spec.is_ranged:
            return False
        if log.use.is_used:
            log.use.is_used = False
            return False
        lock = self.opening(log.spec)
        if not lock.acquire(blocking=False):
            return False
        try:
            if self._by_name.get(name) is not log or not self.keeper.may_close(log):
                return False
            del self._by_name[name]
            self._ranged_count -= 1
            return True
        finally:
            lock.release()

    def _pop(self, name: str) -> ShardLog | None:
        """The log of a shard, held or only alive, which is found no longer."""
        held, alive = self._by_name.pop(name, None), self._alive.pop(name, None)
        return held or alive

    def _take(self, name: str, log: ShardLog) -> None:
        self._by_name[name] = log
        if log.spec.is_ranged:
            self._alive[name] = log
            self._ranged_count += 1
            log.use.is_used = True

    def show_replica(self, log: ShardLog) -> None:
        """Adds a log with other replicas, in the place of an earlier one of its shard. Clients find
        it if it leads."""
        name = log.spec.name
        self.replicas[name] = log
        assert log.replica is not None
        if log.replica.leads:
            self.shards.put(log.spec)
            self._by_name[name] = log
            self.released.pop(name, None)
            self.troubles.opened(name)
        else:
            self.hide_replica(name, log.replica.refused)

    def hide_replica(self, name: str, refusal: FirnError) -> None:
        """Lets clients find the log no more: it does not lead."""
        if isinstance(refusal, NotLeader):
            self.released[name] = refusal
        self.shards.pop(name)
        self._by_name.pop(name, None)
        self.troubles.forget(name)

    def _open(self, name: str, failed: ShardLog | None) -> ShardLog:
        log = self._open_locked(name, failed)
        self.close_unused()
        return log

    def _open_locked(self, name: str, failed: ShardLog | None) -> ShardLog:
        spec = self.spec(name)
        with self.opening(spec):
            spec = self.spec(name)  # It may have been deleted or recreated since.
            log = self._by_name.get(name)
            if log is None and (log := self._alive.get(name)) is not None:
                self._take(name, log)
            if log is not None and log is not failed:
                return log
            try:
                log = self.keeper.open(spec, failed)
            except OSError as error:
                failure = storage_failure(name, error)
                self.troubles.failed(name, failure)
                raise failure from error
            except (Corruption, StorageFailed) as error:
                self.troubles.failed(name, error)
                raise
            self._take(name, log)
            current = self.shards.get(name)
            if current is not None and spec.is_ranged:
                log.spec = current  # Other options may have come while it was opened.
            self.troubles.opened(name)
            self.troubles.check_files(log)
            return log
