"""A lab whose shards have another replica, and lead after a failover."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from firnmq.config import StorageType
from firnmq.disk import FileRange, Ticket, run_blocking
from firnmq.engines import Acks
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.replicas import Reached, ReplicaEnd, ReplicaId, check_batches
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import FirnError
from firnmq.server import LocalStore
from tests.conformance.lab import Lab, Shard

_WAIT_S_MAX = 60.0
_FIRST = SegmentMeta(seq=0, base_offset=0, created_ms=0, holders=(1, 2))


class ReplicatedLab(Lab):
    """Its shards lead in their second segments, after failovers. A second store follows, driven by
    a thread."""

    def __init__(self, path: Path, kind: str) -> None:
        super().__init__(path, StorageType.SEGMENT.value)
        self.kind = kind
        self.other = LocalStore(path.with_name(f"{path.name}-other"), background=False)
        self._grown: queue.SimpleQueue[ReplicaId | None] = queue.SimpleQueue()
        self._following = threading.Lock()
        """Held while the other store fetches, which rolls do as well."""
        self._specs: dict[int, ShardSpec] = {}
        for store in (self.store, self.other):
            store.replicas.begin(self)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def shard(self, options: Mapping[str, object] | None = None) -> Shard:
        shard = super().shard(options)
        spec = next(each for each in self.engine.list_shard() if each.name == shard.name)
        (mirrored,) = self.other.shards.add_shards([spec.name], spec.config)
        assert mirrored.uid == spec.uid
        self._specs[spec.uid] = spec
        for store in (self.store, self.other):
            store.replicas.open(spec, _FIRST, leads=store is self.other)
        refusal = FirnError("it is deposed")
        _ask(self.other.replicas.stop_leading, ReplicaId(spec.uid, 0), refusal)
        sealed = _FIRST.become_sealed(end_offset=0, length=0, crc=0, max_timestamp=-1, now_ms=0)
        active = dataclasses.replace(_FIRST, seq=1, leader_epoch=1)
        for store in (self.store, self.other):
            self._install(store, spec.uid, Seal(sealed, active), leads=store is self.store)
        return shard

    def reopen(self) -> None:
        pytest.skip("a leader that restarts does not lead")

    crash = reopen

    def close(self) -> None:
        self._grown.put(None)
        self._thread.join()
        super().close()
        self.other.close()

    # The listener of both stores -------------------------------------------------------------

    def staged(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        """The other store fetches what is durable."""

    def durable(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        for replica, _ in ends:
            self._grown.put(replica)

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        """The test that makes it fail expects that."""

    def refusal(self, replica: ReplicaId, acks: Acks) -> FirnError | None:
        return None

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        with self._following:
            self._fetch(replica)
            active = dataclasses.replace(
                seal.active, leader_epoch=seal.active.leader_epoch + 1, holders=(1, 2)
            )
            seal = seal._replace(active=active)
            self.store.shards.roll(replica.uid, seal.sealed, seal.active)
            self._install(self.other, replica.uid, seal, leads=False)
        return seal

    # Driving ---------------------------------------------------------------------------------

    def _install(self, store: LocalStore, uid: int, seal: Seal, *, leads: bool) -> None:
        store.shards.roll(uid, seal.sealed, seal.active)
        spec = dataclasses.replace(self._specs[uid], epoch=seal.active.leader_epoch)
        install = store.replicas.install
        _ask(lambda ticket: install(seal.sealed, seal.active, spec, 0, ticket, leads=leads))

    def _follow(self) -> None:
        while (replica := self._grown.get()) is not None:
            with self._following:
                self._fetch(replica)

    def _fetch(self, replica: ReplicaId) -> None:
        """The other store gets what it lacks, and the high watermark moves in both."""
        spec = self._specs[replica.uid]
        leader, follower = self.store.replicas, self.other.replicas
        mine, its = leader.reached(replica), follower.reached(replica)
        if mine is None or its is None:
            return  # It was sealed, deleted or has failed.
        while its.end.offset < mine.end.offset:
            found = leader.read(spec, replica, its.end.offset, mine.end.offset, 2**20)
            data = b"".join(
                bytes(each.mapped()) if isinstance(each, FileRange) else bytes(each)
                for each in found.buffers
            )
            log = follower.log_of(replica.uid)
            assert log is not None
            checked = check_batches(data, its.end, spec.config, log.spec.epoch)
            its = _ask(follower.stage, replica, checked, 0)
        assert its.end == mine.end or its.end.offset > mine.end.offset
        for each in (follower, leader):
            each.advance(replica, mine.end.offset)


async def _ticket() -> Ticket[Reached]:
    return Ticket()


def _ask(call: object, *arguments: object) -> Reached:
    ticket: Ticket[Reached] = run_blocking(_ticket())
    call(*arguments, ticket)  # type: ignore[operator]
    return ticket.wait(_WAIT_S_MAX)
