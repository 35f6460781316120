"""A seeded scheduler over one replica of a shard: the real log, lane, turns and recovery.

The other replicas, the leader among them, are `Truth`. The metadata is the catalog of the simulated
disk, which the world changes as a controller would.
"""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from firnmq.config import StorageType, TopicConfig
from firnmq.disk import Ticket, run_blocking
from firnmq.disk.pool import Lane, PoolLimits, _run
from firnmq.engines import Acks, Appended
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardState
from firnmq.engines.gate import AppendGate
from firnmq.engines.media.durable import DurableBackend
from firnmq.engines.media.files import segment_engine
from firnmq.engines.replicas import (
    Reached,
    ReplicaEnd,
    ReplicaId,
    check_batches,
)
from firnmq.engines.replicas.node import NodeReplicas
from firnmq.engines.shardlog import Append, LogTurnHandler, ShardLog, TimeReader
from firnmq.engines.shardlog.rolling.driver import RollDriver
from firnmq.engines.shardlog.rolling.steps import Seal
from firnmq.errors import FirnError, KeyNotFound, NotLeader, StorageFailed, TimedOut
from firnmq.health import Health
from firnmq.testing import FakeClock
from tests.simulation.log.disk import (
    SHARD,
    UID,
    Catalog,
    Files,
    KeyValues,
    Layout,
    Snapshots,
)
from tests.simulation.log.judge import Violation
from tests.simulation.log.world import Cut, Jobs, Pool
from tests.simulation.replicas.truth import KEYS, Truth, borders, end_at, from_offset

_ATTEMPTS = 20


class Replicated(Catalog):
    """A catalog whose shard has other replicas."""

    def __init__(self, config: TopicConfig, first: SegmentMeta) -> None:
        super().__init__(config)
        self.metas = {0: first}

    def seal(self, sealed: SegmentMeta, active: SegmentMeta) -> None:
        self.metas |= {sealed.seq: sealed, active.seq: active}
        if not sealed.length:
            del self.metas[sealed.seq]

    def not_led(self, uid: int) -> NotLeader:
        return NotLeader(SHARD, 1, 2)


class Driver:
    """A ReplicaListener."""

    def __init__(self) -> None:
        self.durable_end: ReplicaEnd | None = None
        self.failures = 0

    def staged(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        """What leads is fetched when the scheduler says so."""

    def durable(self, ends: Sequence[tuple[ReplicaId, ReplicaEnd]]) -> None:
        ((_, self.durable_end),) = ends

    def failed(self, replica: ReplicaId, error: FirnError) -> None:
        self.failures += 1

    def refusal(self, replica: ReplicaId, acks: Acks) -> FirnError | None:
        return None

    def seal(self, replica: ReplicaId, seal: Seal) -> Seal:
        raise TimedOut("segments are sealed by failover alone")


class World:
    """One schedule: `run` takes steps until there are enough."""

    def __init__(self, seed: int, writer: Callable[[str], None] = lambda _: None) -> None:
        self.rng = random.Random(seed)
        self._write = writer
        self.done: Counter[str] = Counter()
        self.is_lossy = self.rng.random() < 0.3
        self._config = TopicConfig.from_options(
            {"durability": "os" if self.is_lossy else "fsync", "index.key": True}
        )
        self.clock = FakeClock()
        self.truth = Truth()
        self._catalog = Replicated(self._config, self.truth.meta)
        self._cut_in = -1
        self._sync_failures = 0
        self.told = 0
        """The high watermark that the replica was told last, and what may be shown of its log."""
        self.reported: ReplicaEnd | None = None
        """The greatest durable end that it has reported of its segment."""
        self.fences: dict[ReplicaId, int] = {}
        """Those it said are on disk."""
        self.acknowledged: list[tuple[Ticket[Appended], Acks]] = []
        self._staging: Ticket[Reached] | None = None
        self._start({}, None)
        self._leads_next = False
        self._open(self.truth.meta, leads=self.rng.random() < 0.4)

    def _start(self, files: dict[str, bytes], rows: Any) -> None:
        self.files = Files(self._before)
        self.files.content = {path: bytearray(data) for path, data in files.items()}
        self.files.synced = dict(files)
        self.kv = KeyValues(self._before, rows)
        state = ShardState(self.kv, self._catalog)  # type: ignore[arg-type]
        backend = DurableBackend(
            self.kv,  # type: ignore[arg-type]
            state,
            self.clock,
            {StorageType.SEGMENT.value: Layout(Path("/disk"), self.files)},  # type: ignore[arg-type,dict-item]
            Health(self.clock),
            snapshots=Snapshots(Path("/disk"), self.files),  # type: ignore[arg-type]
        )
        self.jobs = Jobs()
        self.handler = LogTurnHandler(backend, lambda _: None)
        self.lane: Lane[Append] = Lane(PoolLimits(), self.handler)
        self.lane.worker_is_busy = False
        pool: Any = Pool(self.lane)
        self.engine = segment_engine(
            backend,
            pool,
            RollDriver(self.jobs),
            gate=AppendGate(),
            producer_expiration_ms=10**15,
            compaction_bytes=2**20,
        )
        self.replicas = NodeReplicas(backend, state, pool, self.engine.logs, self.jobs)
        self.driver = Driver()
        self.replicas.begin(self.driver)
        self._staging = None
        self.acknowledged = []

    def run(self, steps: int) -> None:
        for _ in range(steps):
            event = self.rng.choice(_EVENTS)
            self.done[event] += 1
            self._write(event)
            try:
                getattr(self, f"_{event}")()
                self._check()
            except Cut:
                self._cut()
                self._check()

    # The log -----------------------------------------------------------------------------------

    @property
    def log(self) -> ShardLog | None:
        """The open log, unless it has failed."""
        log = self.replicas.log_of(UID)
        return log if log is not None and log.refusal is None else None

    @property
    def id(self) -> ReplicaId:
        log = self.replicas.log_of(UID)
        assert log is not None
        assert log.replica is not None
        return log.replica.id

    @property
    def leads(self) -> bool:
        log = self.log
        return log is not None and log.replica is not None and log.replica.leads

    @property
    def is_behind(self) -> bool:
        """Whether the log's tail is the segment before the active one."""
        return self.truth.sealed is not None

    def _batches(self) -> tuple[int, list[bytes]]:
        """Beginning and batches of the segment that the log's tail is."""
        if self.truth.sealed is not None:
            return self.truth.sealed.base_offset, self.truth.sealed_batches
        return self.truth.meta.base_offset, self.truth.batches

    def _open(self, meta: SegmentMeta, *, leads: bool = False) -> None:
        reached = self.replicas.open(self._catalog.shards()[0], meta, leads=leads)
        base_offset, batches = self._batches()
        wanted = end_at(base_offset, batches, reached.end.offset)
        if reached.end != wanted:
            raise Violation(f"opened at {reached.end}, the others have {wanted}")
        lost = self.reported is not None and reached.end.offset < self.reported.offset
        if lost and not self.is_lossy:
            raise Violation(f"{reached.end} was opened, {self.reported} was durable")
        self.reported = reached.end
        if reached.fence < self.fences.get(self.id, 0):
            raise Violation(f"fence {reached.fence} was opened, {self.fences} were promised")

    # Checks ------------------------------------------------------------------------------------

    def _check(self) -> None:
        log = self.replicas.log_of(UID)
        if log is None:
            return
        self._hear()
        view = log.view
        limit = max(self.told, self.truth.meta.base_offset)
        if view.end_offset > limit:
            raise Violation(f"{view.end_offset} is shown, {limit} may be")
        if log.cut_count % 2:
            return
        wanted = self.truth.records(view.end_offset)
        reader = TimeReader(log, self.clock.now_ms())
        found = {}
        if view.end_offset > view.start_offset:
            page = reader.by_offset(view.start_offset, 10_000, 2**30)
            found = {each.offset: (bytes(each.value or b""), each.key) for each in page.records()}
        if found != wanted:
            raise Violation(f"shown {sorted(found)}, the others have {sorted(wanted)}")
        for key in KEYS:
            newest = max((at for at, each in wanted.items() if each[1] == key), default=None)
            try:
                (record,) = TimeReader(log, self.clock.now_ms()).by_key(key).records()
                offset = record.offset
            except KeyNotFound:
                offset = None
            if offset != newest:
                raise Violation(f"{key!r} is at {offset}, not {newest}")

    def _hear(self) -> None:
        left = []
        for ticket, acks in self.acknowledged:
            try:
                appended = ticket.wait(0)
            except TimedOut as error:
                if not hasattr(error, "is_unknown"):
                    left.append((ticket, acks))
                continue
            except FirnError:
                continue
            self.done["acknowledged"] += 1
            if acks is Acks.ALL and appended.next_offset > max(self.told, self.truth.end):
                raise Violation(f"{appended} is acknowledged, the others have {self.told}")
        self.acknowledged = left
        if self._staging is not None:
            try:
                reached = self._staging.wait(0)
            except TimedOut:
                return
            except FirnError:
                self._staging = None
                return
            self._staging = None
            self._reach(reached)

    def _reach(self, reached: Reached) -> None:
        """The replica reports an end as durable."""
        sealed = self.truth.sealed
        if sealed is not None and reached.end.offset > sealed.end_offset:
            return  # It is to be truncated.
        base_offset, batches = self._batches()
        if reached.end != end_at(base_offset, batches, reached.end.offset):
            raise Violation(f"{reached.end} is reported, the others differ")
        self.reported = reached.end
        length = sum(map(len, batches)) - sum(
            map(len, from_offset(base_offset, batches, reached.end.offset))
        )
        if reached.facts.length != length:
            raise Violation(f"{reached.facts.length} bytes are reported, not {length}")

    # Faults ------------------------------------------------------------------------------------

    def _before(self, operation: str) -> None:
        if self._cut_in >= 0:
            self._cut_in -= 1
            if self._cut_in < 0:
                raise Cut
        if operation in ("sync", "sync rows") and self._sync_failures:
            self._sync_failures -= 1
            raise StorageFailed(SHARD, OSError(5, "Input/output error"))

    def _cut(self) -> None:
        self.done["cut"] += 1
        self._write("cut")
        self._cut_in, self._sync_failures = -1, 0
        has_led = self._has_led()
        self._start(self.files.survivors(self.rng), self.kv.survivors(self.rng))
        if has_led:
            self._seal_where_it_may_end()
        self._reopen()

    def _has_led(self) -> bool:
        """Whether the log leads, or did until it failed."""
        log = self.replicas.log_of(UID)
        return log is not None and log.replica is not None and log.replica.leads

    def _seal_where_it_may_end(self) -> None:
        """A leader that failed never goes on: the segment ends with something that the others have,
        and above all that was shown."""
        if not self.is_behind:
            self._seal_at(
                self.rng.choice([each for each in self.truth.ends() if each >= self.told])
            )

    def _fail_sync(self) -> None:
        self._sync_failures = 1

    def _cut_soon(self) -> None:
        self._cut_in = self.rng.randrange(14)

    # Events ------------------------------------------------------------------------------------

    def _turn(self) -> None:
        if not (self.lane.requests or self.lane.is_resumed):
            return
        requests = self.lane.take(0.0) or []
        self.lane.is_resumed = False
        _run(self.handler, requests).deliver()
        self.handler.tick()
        self.lane.worker_is_busy = False

    def _append(self) -> None:
        batch = self.truth.new_batch(self.rng, self.clock.now_ms())
        if self.is_behind or not self._has_led():
            self.truth.append(batch)
            return
        if not self.leads:
            return
        acks = self.rng.choice([Acks.ALL, Acks.ALL, Acks.LEADER, Acks.QUORUM])
        try:
            ticket = run_blocking(self.engine.submit(SHARD, batch, acks))
        except FirnError:
            return
        self.acknowledged.append((ticket, acks))

    def _fetch(self) -> None:
        """The others fetch from the replica, which leads."""
        log = self.log
        if log is None or not self.leads or self.is_behind:
            return
        assert log.replica is not None
        end, _ = log.replica.written
        if end <= self.truth.end:
            return
        found = self.replicas.read(
            log.spec, self.id, self.truth.end, end, self.rng.choice([1, 10_000])
        )
        data = b"".join(map(bytes, found.buffers))  # type: ignore[arg-type]
        start = self.truth.end_at(self.truth.end)
        checked = check_batches(data, start, log.spec.config, self.truth.meta.leader_epoch)
        self.truth.batches += [bytes(each.data) for each in checked.batches]
        if self.truth.end != found.next_offset:
            raise Violation(f"read up to {found.next_offset}, got batches up to {self.truth.end}")

    def _stage(self) -> None:
        log = self.log
        if log is None or self.leads or self._staging is not None:
            return
        base_offset, batches = self._batches()
        reached = self.replicas.reached(self.id)
        assert reached is not None
        if reached.end.offset not in borders(base_offset, batches):
            return  # It is longer than the sealed segment, and is to be truncated first.
        following = from_offset(base_offset, batches, reached.end.offset)
        data = b"".join(following[: self.rng.randint(1, 4)])
        if data:
            checked = check_batches(data, reached.end, self._config, log.spec.epoch)
            self._staging = _ticket()
            self.replicas.stage(self.id, checked, self.told, self._staging)

    def _advance(self) -> None:
        if self.log is None or self.is_behind:
            return
        limit = self.truth.end
        if self.leads:
            reached = self.replicas.reached(self.id)
            assert reached is not None
            limit = min(limit, reached.end.offset)
        if limit > self.told:
            self.told = self.rng.randint(self.told, limit)
        self.replicas.advance(self.id, self.told)
        self.replicas.advance_quorum(self.id, self.told)

    def _fence(self) -> None:
        if self.log is None:
            return
        fence = self.fences.get(self.id, 0) + 1
        replica, ticket = self.id, _ticket()
        self.replicas.persist_fence(self._catalog.shards()[0], replica, fence, 0, ticket)
        reached = self._outcome(ticket)
        if reached is not None:
            self.fences[replica] = fence
            if not self.leads:
                self._reach(reached)

    def _fail_over(self) -> None:
        """The active segment is sealed at one of its borders that nothing shown is above."""
        if self.is_behind or self.log is None:
            return
        if self.leads:
            ticket = _ticket()
            self.replicas.stop_leading(self.id, NotLeader(SHARD, 1, 2), ticket)
            self._outcome(ticket)
            if self.log is None:
                return
        ends = [each for each in self.truth.ends() if each >= self.told]
        self._seal_at(self.rng.choice(ends[-3:]))

    def _seal_at(self, end: int) -> None:
        truth = self.truth
        truth.cut(end)
        self._write(f"sealed at {end}")
        meta, now_ms = truth.meta, self.clock.now_ms()
        sealed = meta.become_sealed(
            end_offset=end,
            length=sum(map(len, truth.batches)),
            crc=truth.end_at(end).crc,
            max_timestamp=now_ms,
            now_ms=now_ms,
        )
        active = dataclasses.replace(
            meta, seq=meta.seq + 1, base_offset=end, epoch=0, leader_epoch=meta.leader_epoch + 1
        )
        self._catalog.seal(sealed, active)
        truth.sealed, truth.sealed_batches = sealed, truth.batches
        truth.meta, truth.batches = active, []
        self._leads_next = self.rng.random() < 0.5
        self.told = max(self.told, end)
        self.reported = None
        self.done["sealed"] += 1

    def _catch_up(self) -> None:
        """The replica gets what it lacks of the sealed segment, and goes on with the active one."""
        sealed = self.truth.sealed
        log = self.log
        if sealed is None or log is None:
            return
        if self.id.seq != sealed.seq:
            raise Violation(f"the log is in {self.id}, {sealed.seq} was sealed last")
        ticket = _ticket()
        self.replicas.truncate(self.id, sealed.end_offset, ticket)
        reached = self._outcome(ticket)
        if reached is None:
            return
        self._staging = None
        base_offset, batches = self._batches()
        for data in from_offset(base_offset, batches, reached.end.offset):
            ticket = _ticket()
            checked = check_batches(data, reached.end, self._config, log.spec.epoch)
            self.replicas.stage(self.id, checked, 0, ticket)
            reached = self._outcome(ticket)
            if reached is None:
                return
        self._reach(reached)
        ticket = _ticket()
        active, spec = (
            self.truth.meta,
            dataclasses.replace(log.spec, epoch=self.truth.meta.leader_epoch),
        )
        leads = self._leads_next and not self.truth.batches
        self.replicas.install(sealed, active, spec, 0, ticket, leads=leads)
        installed = self._outcome(ticket)
        if installed is not None:
            self._went_on()

    def _went_on(self) -> None:
        self.truth.older += self.truth.sealed_batches
        self.truth.sealed, self.truth.sealed_batches = None, []
        self.reported = None
        self.done["installed"] += 1

    def _reopen(self) -> None:
        """After a failure of the storage, or a restart."""
        if self.log is not None:
            return
        if self._has_led():
            self._seal_where_it_may_end()
        self._staging = None
        spec = self._catalog.shards()[0]
        try:
            tail = self.replicas.tail_of(spec, self._catalog.chain(UID))
        except StorageFailed:
            return
        assert tail is not None
        sealed = self.truth.sealed
        if sealed is not None and tail.seq != sealed.seq:
            if tail.seq != self.truth.meta.seq:
                raise Violation(f"segment {tail.seq} is to be opened")
            self._went_on()  # It was complete, or is empty and gone.
        try:
            self._open_somewhere(tail)
        except StorageFailed:
            return

    def _open_somewhere(self, tail: SegmentMeta) -> None:
        """A sealed segment's replica may be longer than the segment."""
        sealed = self.truth.sealed
        if sealed is None:
            self._open(tail)
            return
        self._reach(self.replicas.open(self._catalog.shards()[0], tail, leads=False))

    def _outcome(self, ticket: Ticket[Reached]) -> Reached | None:
        """What a call gives once the lane has come to it; None if the log has failed."""
        for _ in range(_ATTEMPTS):
            self._turn()
            try:
                return ticket.wait(0)
            except TimedOut:
                continue
            except StorageFailed:
                return None
        raise Violation("a call has no outcome")


def _ticket() -> Ticket[Reached]:
    async def new() -> Ticket[Reached]:
        return Ticket()

    return run_blocking(new())


_EVENTS = [
    *["append"] * 10,
    *["turn"] * 10,
    *["stage"] * 8,
    *["fetch"] * 4,
    *["advance"] * 6,
    *["catch_up"] * 4,
    *["reopen"] * 4,
    *["fence", "fail_over", "fail_over", "fail_sync", "cut_soon"],
]
