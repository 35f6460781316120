"""The shards of an engine and their logs, each opened when it is first used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack

from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.keeper import LogKeeper
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling.steps import wait_for_changes
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


class ShardLogs:
    """Finds, opens, reopens and drops logs, and reports those that cannot be opened. Safe with
    threads."""

    def __init__(self, keeper: LogKeeper, specs: Iterable[ShardSpec], health: Health) -> None:
        """Of the specs only those of the keeper's storage type are taken."""
        self.keeper = keeper
        self.specs = {
            spec.name: spec for spec in specs if spec.config.storage_type == keeper.storage_type
        }
        self.troubles = ShardTroubles(health, self.specs)
        self._by_name: dict[str, ShardLog] = {}
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
        spec = self.specs.get(name)
        if spec is None:
            raise self.released.get(name) or ShardNotFound(name, within=self.keeper.storage_type)
        return spec

    def adopt(self, spec: ShardSpec) -> None:
        """Adds a shard, unless it is there."""
        with self.opening(spec):
            self.specs.setdefault(spec.name, spec)
            self.released.pop(spec.name, None)

    def find(self, name: str) -> ShardLog:
        """The log, opened if it is not; one that was refused can still be read."""
        self.check_open()
        log = self._by_name.get(name)
        return log if log is not None else self._open(name, None)

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
            log = self._by_name.pop(spec.name, None) or self.replicas.get(spec.name)
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
        known = self.specs.get(spec.name)
        if known is None or known.uid == spec.uid:
            self.specs.pop(spec.name, None)
            self.drop(spec)

    def hold(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Removes all segments but these, unless the shard is this node's."""
        with self.opening(spec):
            if spec.name not in self.specs and spec.name not in self.replicas:
                try:
                    self.keeper.keep(spec, metas)
                except OSError as error:
                    raise storage_failure(spec.name, error) from error

    def release(self, name: str, epoch: int, refusal: NotLeader) -> None:
        """Forgets a shard that another node leads; its bytes stay. Its log refuses all further use.
        One that is there under another epoch stays."""
        spec = self.specs.get(name)
        if spec is None or spec.epoch != epoch:
            return
        with self.opening(spec), ExitStack() as held:
            if self.specs.get(name) is not spec:
                return
            self.released[name] = refusal
            del self.specs[name]
            log = self._by_name.pop(spec.name, None)
            if log is not None:
                with log.lock:
                    log.refuse(refusal)
                    wait_for_changes(log)
                held.enter_context(log.upkeep)  # Until compaction has seen the refusal.
            self.troubles.forget(spec.name)

    def show_replica(self, log: ShardLog) -> None:
        """Adds a log with other replicas, in the place of an earlier one of its shard. Clients find
        it if it leads."""
        name = log.spec.name
        self.replicas[name] = log
        assert log.replica is not None
        if log.replica.leads:
            self.specs[name] = log.spec
            self._by_name[name] = log
            self.released.pop(name, None)
            self.troubles.opened(name)
        else:
            self.hide_replica(name, log.replica.refused)

    def hide_replica(self, name: str, refusal: FirnError) -> None:
        """Lets clients find the log no more: it does not lead."""
        if isinstance(refusal, NotLeader):
            self.released[name] = refusal
        self.specs.pop(name, None)
        self._by_name.pop(name, None)
        self.troubles.forget(name)

    def _open(self, name: str, failed: ShardLog | None) -> ShardLog:
        spec = self.spec(name)
        with self.opening(spec):
            spec = self.spec(name)  # It may have been deleted or recreated since.
            log = self._by_name.get(name)
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
            self._by_name[name] = log
            self.troubles.opened(name)
            self.troubles.check_files(log)
            return log
