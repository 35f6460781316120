"""A seeded scheduler over the real log: engine, lane, turns, rolls and recovery, in one thread.

A roll gives up the log's lock while it waits for a disk or the metadata. There the scheduler goes
on with other events, as other threads would.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from firnmq.config import StorageType, TopicConfig
from firnmq.disk import Ticket, run_blocking
from firnmq.disk.pool import Lane, PoolLimits, _run
from firnmq.engines import Acks, Appended
from firnmq.engines.catalog.state import ShardState
from firnmq.engines.gate import AppendGate
from firnmq.engines.media.durable import DurableBackend
from firnmq.engines.media.files import segment_engine
from firnmq.engines.shardlog import Append, LogTurnHandler, ShardLog
from firnmq.engines.shardlog.rolling.driver import RollDriver
from firnmq.errors import FirnError, StorageFailed, TimedOut
from firnmq.health import Health
from firnmq.record import NewRecord, Record, encode
from firnmq.record.deletion import Deletion
from firnmq.testing import FakeClock
from tests.simulation.log.disk import SHARD, Catalog, Files, KeyValues, Layout, Outcome, Snapshots
from tests.simulation.log.judge import Judge, Stored

NESTED_MAX = 3
KEYS = [b"a", b"b", b"c"]


class Cut(BaseException):
    """The power goes. Not an Exception: no part of the node gets to answer it."""


class Jobs(Executor):
    """Rolls that were asked for; the scheduler says when each runs."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()

    def submit(self, function: Callable[..., Any], /, *args: Any, **_: Any) -> Any:
        self.waiting.append(lambda: function(*args))


class Pool:
    """An IoPool with one lane and no thread."""

    def __init__(self, lane: Lane[Append]) -> None:
        self._lane = lane

    def lane(self, shard_uid: int) -> Lane[Append]:
        return self._lane

    async def wait_for_room(self, shard_uid: int, request: Append) -> None:
        assert self._lane.reserve(request.size_bytes)

    def submit(self, requests: Sequence[tuple[int, Append]], **_: object) -> None:
        self._lane.queue([request for _, request in requests])


class Replicas:
    """A Replication that moves the high watermark when the scheduler says so."""

    def __init__(self) -> None:
        self.moved: tuple[ShardLog, int] | None = None

    def durable_end_moved(self, log: ShardLog, durable_end: int) -> None:
        self.moved = (log, durable_end)


class Producer:
    """An idempotent producer with one batch under way. After a failure, whose outcome it does not
    know, it goes on with its next epoch."""

    def __init__(self) -> None:
        self._epoch = 0
        self._sequence = 0
        self._last: tuple[bytes, Ticket[Appended]] | None = None

    def is_ready(self) -> bool:
        """Whether the last batch was answered."""
        if self._last is None:
            return True
        try:
            self._last[1].wait(0)
        except TimedOut:
            return False
        except FirnError:
            self._epoch, self._sequence, self._last = self._epoch + 1, 0, None
        return True

    def fields(self) -> dict[str, int]:
        return {
            "producer_id": 7,
            "producer_epoch": self._epoch,
            "base_sequence": self._sequence,
        }

    def sent(self, batch: bytes, ticket: Ticket[Appended], record_count: int) -> None:
        self._last = batch, ticket
        self._sequence += record_count

    def stored(self) -> tuple[bytes, Appended] | None:
        """The last batch and where it is, if it was acknowledged."""
        if not self.is_ready() or self._last is None:
            return None
        return self._last[0], self._last[1].wait(0)

    def crashed(self) -> None:
        """The node will not answer any more."""
        if not self.is_ready():
            self._epoch, self._sequence, self._last = self._epoch + 1, 0, None


class World:
    """One schedule: `run` takes steps until there are enough."""

    def __init__(self, seed: int, writer: Callable[[str], None] = lambda _: None) -> None:
        self.rng = random.Random(seed)
        self._write = writer
        self.done: Counter[str] = Counter()
        durability = self.rng.choice(["fsync", "fsync", "os"])
        self._config = TopicConfig.from_options(
            {
                "segment.bytes": self.rng.choice([1024, 1500]),
                "segment.ms": 60_000,
                "retention.bytes": self.rng.choice(["none", 4000]),
                "retention.ms": self.rng.choice(["none", 600_000]),
                "durability": durability,
                "index.key": True,
            }
        )
        self._lags = self.rng.random() < 0.3
        self.clock = FakeClock()
        self.judge = Judge(is_lossy=durability == "os")
        self._catalog = Catalog(self._config)
        self._catalog.outcome = self._outcome
        self._number = 0
        self._sync_failures = 0
        self._cut_in = -1
        """Operations of the disk until the power goes; negative if it stays."""
        self._depth = 0
        self._producer = Producer()
        self._start({}, None)

    def _start(self, files: dict[str, bytes], rows: Any) -> None:
        """Opens the engine on what is on the disk."""
        self.files = Files(self._before)
        self.files.content = {path: bytearray(data) for path, data in files.items()}
        self.files.synced = dict(files)
        self.kv = KeyValues(self._before, rows)
        state = ShardState(self.kv, self._catalog)  # type: ignore[arg-type]
        self.replicas = Replicas() if self._lags else None
        health = Health(self.clock)
        layouts = {StorageType.SEGMENT.value: Layout(Path("/disk"), self.files)}  # type: ignore[arg-type]
        backend = DurableBackend(
            self.kv,  # type: ignore[arg-type]
            state,
            self.clock,
            layouts,  # type: ignore[arg-type]
            health,
            replication=self.replicas,
            snapshots=Snapshots(Path("/disk"), self.files),  # type: ignore[arg-type]
        )
        self.jobs = Jobs()
        rolls = RollDriver(self.jobs)
        self.handler = LogTurnHandler(backend, rolls.want)
        self.lane: Lane[Append] = Lane(PoolLimits(), self.handler)
        self.lane.worker_is_busy = False
        self.engine = segment_engine(
            backend,
            Pool(self.lane),  # type: ignore[arg-type]
            rolls,
            gate=AppendGate(),
            producer_expiration_ms=10**15,
            compaction_bytes=2**20,
        )

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self._step()

    def _step(self) -> None:
        event = self.rng.choice(_EVENTS)
        try:
            self._happen(event)
            self._check()
        except Cut:
            self._cut()

    def _check(self) -> None:
        """A closed log may be unreadable if its start moved without its knowledge and reopening it
        has failed halfway. Nothing wrong is shown, and the next reopening ends it."""
        try:
            self.judge.check(self.engine)
        except StorageFailed:
            log = self.engine._logs.get(SHARD)
            if log is None or log.refusal is None:
                raise
            self.done["unreadable"] += 1

    def _happen(self, event: str) -> None:
        self.done[event] += 1
        self._write(f"{'  ' * self._depth}{event}")
        getattr(self, f"_{event}")()

    # Faults, and what goes on while a roll waits. -------------------------------------------------

    def _before(self, operation: str) -> None:
        if self._cut_in >= 0:
            self._cut_in -= 1
            if self._cut_in < 0:
                raise Cut
        if operation == "sync":
            self._interlude()
            if self._sync_failures:
                self._sync_failures -= 1
                raise OSError(5, "Input/output error")

    def _outcome(self, what: str) -> str:
        """Of a metadata transaction."""
        self._before("transaction")
        if what == "roll":
            self._interlude()
        chosen = self.rng.choices(
            [Outcome.HAPPENS, Outcome.FAILS, Outcome.UNKNOWN_HAPPENS, Outcome.UNKNOWN_FAILS],
            [12, 1, 1, 1],
        )[0]
        self._write(f"{'  ' * self._depth}transaction: {what}, {chosen}")
        return chosen

    def _interlude(self) -> None:
        """Other threads run where a roll has given up the log's lock."""
        log = self.engine._logs.get(SHARD)
        if self._depth or log is None or not log.rolling.is_under_way or log.lock.locked():
            return
        self._depth += 1
        try:
            for _ in range(self.rng.randrange(NESTED_MAX + 1)):
                self._happen(self.rng.choice(_NESTED))
                self._check()
        finally:
            self._depth -= 1

    def _cut(self) -> None:
        """The power goes, and comes back."""
        self.done["cut"] += 1
        self._write("cut")
        self._cut_in, self._depth, self._sync_failures = -1, 0, 0
        self.judge.crashed()
        self._producer.crashed()
        self._start(self.files.survivors(self.rng), self.kv.survivors(self.rng))
        self.judge.reopened(self.engine)
        self.judge.check(self.engine)

    # Events ---------------------------------------------------------------------------------------

    def _append(self) -> None:
        log = self.engine._logs.get(SHARD)
        if self._depth and log is not None and log.refusal is not None:
            return  # It would be reopened, which waits for the roll.
        records = []
        for _ in range(self.rng.randint(1, 3)):
            records.append(Stored(self._number, self.rng.choice(KEYS)))
            self._number += 1
        is_numbered = self.rng.random() < 0.5 and self._producer.is_ready()
        batch = encode(
            [
                NewRecord(
                    value=b"%d %s" % (each.number, bytes(self.rng.randrange(200))), key=each.key
                )
                for each in records
            ],
            now_ms=self.clock.now_ms(),
            **(self._producer.fields() if is_numbered else {}),
        )
        try:
            ticket = run_blocking(self.engine.submit(SHARD, bytes(batch), Acks.ALL))
        except StorageFailed:
            return
        self.judge.submitted(ticket, records)
        if is_numbered:
            self._producer.sent(bytes(batch), ticket, len(records))

    def _resend(self) -> None:
        """The producer has missed the answer to its last batch, which was acknowledged."""
        log = self.engine._logs.get(SHARD)
        stored = self._producer.stored()
        if stored is None or self.judge.is_lossy or (log is not None and log.refusal is not None):
            return
        try:
            ticket = run_blocking(self.engine.submit(SHARD, stored[0], Acks.ALL))
        except StorageFailed:
            return
        self.judge.resent(ticket, stored[1])

    def _delete(self) -> None:
        """By offset: of records that are shown, sometimes those of a key."""
        log = self.engine._logs.get(SHARD)
        if log is None or log.refusal is not None:
            return
        offsets = [record.offset for record in self._records()]
        if not offsets:
            return
        chosen = frozenset(self.rng.sample(offsets, min(len(offsets), self.rng.randint(1, 3))))
        deletion = Deletion(tuple(sorted(chosen)))
        if self.rng.random() < 0.3:
            key, below = self.rng.choice(KEYS), log.view.stable_offset
            deletion = Deletion((), ((key, below),))
            chosen = frozenset(each.offset for each in self._records() if each.key == key)
        if not chosen:
            return
        try:
            (ticket,) = run_blocking(self.engine.submit_deletion(SHARD, deletion))
        except StorageFailed:
            return
        self.judge.deleting(ticket, chosen)

    def _records(self) -> list[Record]:
        start, end = self.engine.bounds(SHARD)
        if start == end:
            return []
        page = self.engine.read_by_offset(SHARD, start, max_records=10_000, max_bytes=2**30)
        return page.records()

    def _turn(self) -> None:
        lane = self.lane
        if not (lane.requests or lane.is_resumed):
            return
        requests = lane.take(0.0) or []
        lane.is_resumed = False
        _run(self.handler, requests).deliver()
        self.handler.tick()
        lane.worker_is_busy = False

    def _advance(self) -> None:
        if self.replicas is not None and self.replicas.moved is not None:
            log, end = self.replicas.moved
            shown = log.view.end_offset
            log.advance(self.rng.randint(shown, max(end, shown)))

    def _roll_job(self) -> None:
        if self.jobs.waiting:
            self.jobs.waiting.popleft()()

    def _roll(self) -> None:
        try:
            self.engine.roll(SHARD)
        except (StorageFailed, TimedOut):
            return

    def _housekeep(self) -> None:
        self.engine.housekeep()

    def _delete_before(self) -> None:
        start, end = self.engine.bounds(SHARD)
        try:
            self.engine.delete_records_before(SHARD, self.rng.randint(start, end))
        except StorageFailed:
            return

    def _fail_sync(self) -> None:
        self._sync_failures = 1

    def _cut_soon(self) -> None:
        self._cut_in = self.rng.randrange(12)

    def _time_passes(self) -> None:
        self.clock.advance(self.rng.choice([10, 1_000, 70_000]))

    def _clock_set(self) -> None:
        move = self.rng.choice([self.clock.set_back, self.clock.set_forward])
        move(self.rng.choice([1_000, 100_000, 10**9]))


_NESTED = ["append", "append", "turn", "turn", "time_passes", "clock_set", "advance"]
_EVENTS = [
    *["append"] * 12,
    *["delete"] * 2,
    *["resend"] * 2,
    *["turn"] * 12,
    *["roll_job"] * 5,
    *["advance"] * 5,
    *["roll", "housekeep", "delete_before", "fail_sync", "cut_soon", "time_passes", "clock_set"],
]
