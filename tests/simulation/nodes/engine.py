"""The logs of a node, which survive its process. The real ones have a simulation of their own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from firnmq.disk import Settlement, Ticket
from firnmq.disk.files import Buffer
from firnmq.engines import Acks, Appended, ShardSpec
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.errors import NotLeader, OutOfOrderSequence, ShardNotFound
from firnmq.record import NewRecord
from tests.simulation.nodes.tasks import Process, Tasks

if TYPE_CHECKING:
    from tests.simulation.nodes.judge import Judge

T = TypeVar("T")
_APPEND_MS = (0.0, 10.0)


@dataclass(slots=True)
class SimLog:
    """What is stored of a shard."""

    uid: int
    values: list[bytes] = field(default_factory=list)
    last: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Producer id → its last sequence, and the offset of it."""


class SimEngine:
    """The engine and the local driver of one process."""

    def __init__(
        self,
        node: int,
        disk: dict[str, SimLog],
        specs: Sequence[ShardSpec],
        tasks: Tasks,
        process: Process,
        judge: Judge,
    ) -> None:
        self._node = node
        self._disk = disk
        self._tasks = tasks
        self._process = process
        self._judge = judge
        self.specs: dict[str, ShardSpec] = {spec.name: spec for spec in specs}
        known = {spec.uid for spec in specs}
        for name, log in list(disk.items()):  # As a node's start removes what no shard owns.
            if log.uid not in known:
                del disk[name]
        self.leads = self.has_shard

    def has_shard(self, shard: str) -> bool:
        return shard in self.specs

    def adopt(self, spec: ShardSpec) -> None:
        self._tasks.check_alive()
        self.specs.setdefault(spec.name, spec)

    def release(self, shard: str, epoch: int, refusal: NotLeader) -> None:
        self._tasks.check_alive()
        spec = self.specs.get(shard)
        if spec is not None and spec.epoch == epoch:
            del self.specs[shard]

    def hold(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        self._tasks.check_alive()

    def discard(self, spec: ShardSpec) -> None:
        self._tasks.check_alive()
        if self.specs.pop(spec.name, None) is not None:
            self._disk.pop(spec.name, None)

    def _log(self, shard: str) -> SimLog:
        self._tasks.check_alive()
        spec = self.specs.get(shard)
        if spec is None:
            raise ShardNotFound(shard, within="this store")
        log = self._disk.get(shard)
        if log is None or log.uid != spec.uid:
            log = self._disk[shard] = SimLog(spec.uid)
        return log

    async def run_to_end(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await work()

    def list_shard(self) -> list[ShardSpec]:
        return list(self.specs.values())

    async def reconfigure(self, shards: Sequence[str], config: object, revision: int) -> None:
        self._tasks.check_alive()

    async def bounds(self, shard: str) -> tuple[int, int]:
        return 0, len(self._log(shard).values)

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        self._log(shard)
        self._tasks.sleep(self._tasks.rng.uniform(*_APPEND_MS))
        return self._append(shard, [record.value or b"" for record in records])

    async def submit(
        self, shard: str, batch: Buffer, acks: Acks = Acks.ALL, deadline_s: float | None = None
    ) -> Awaitable[Appended]:
        """A batch is `producer sequence value` here."""
        self._log(shard)
        producer, sequence, value = bytes(batch).split(b" ", 2)
        ticket: Ticket[Appended] = Ticket()
        settlement = Settlement()
        try:  # Stored in the order of calls; acknowledged later.
            found = self._append_once(shard, int(producer), int(sequence), value)
        except OutOfOrderSequence as error:
            settlement.fail(ticket, error)
        else:
            settlement.resolve(ticket, found)
        self._tasks.later(
            self._tasks.rng.uniform(*_APPEND_MS),
            lambda: None if self._process.is_dead else settlement.deliver(),
        )
        return ticket

    def _append_once(self, shard: str, producer: int, sequence: int, value: bytes) -> Appended:
        log = self._log(shard)
        last, offset = log.last.get(producer, (-1, -1))
        if sequence == last:
            return Appended(offset, offset + 1)
        if sequence != last + 1:
            raise OutOfOrderSequence(producer, sequence, last + 1)
        found = self._append(shard, [value])
        log.last[producer] = sequence, found.base_offset
        return found

    def _append(self, shard: str, values: list[bytes]) -> Appended:
        log = self._log(shard)
        self._judge.appended(self._node, shard, log.uid)
        base = len(log.values)
        log.values.extend(values)
        return Appended(base, len(log.values))
