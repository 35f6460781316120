"""The machine of engines with a high watermark that is behind the end of the log, and catches up at
any time.

The model knows only what is below the high watermark. Everything that the machine reads is compared
with it while more is stored.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from firnmq.config import StorageType, StoreConfig
from firnmq.disk import Ticket, run_blocking
from firnmq.engines import Appended
from firnmq.engines.shardlog import ShardLog
from firnmq.engines.shardlog.rolling.steps import is_old
from firnmq.errors import StorageFailed, TimedOut
from firnmq.record import NewRecord, encode
from firnmq.testing import LaggingReplication
from tests.conformance.lab import Lab
from tests.properties.engines.machine import EngineMachine, fractions, new_records


class Waiting(NamedTuple):
    """An append above the high watermark."""

    records: list[NewRecord]
    submitted_ms: int
    end_offset: int
    ticket: Ticket[Appended]


class LaggingMachine(EngineMachine):
    """One shard of one engine. Before most changes the high watermark catches up."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Waiting] = []

    def new_lab(self, config: StoreConfig) -> Lab:
        replication = LaggingReplication(lag_s=0)
        return Lab(
            self.directory / "data", self.storage_type, config=config, replication=replication
        )

    @property
    def replication(self) -> LaggingReplication:
        assert self.lab.replication is not None
        return self.lab.replication

    @property
    def log(self) -> ShardLog:
        return self.shard.engine.log(self.shard.name)  # type: ignore[attr-defined,no-any-return]

    @rule(drawn=st.lists(new_records(), min_size=1, max_size=4), count=st.integers(1, 3))
    def append_above_the_mark(self, drawn: list, count: int) -> None:
        if self._would_roll(0):
            return
        self.replication.hold()
        for _ in range(count):
            records = self._records(drawn)
            batch = bytes(encode(records, now_ms=self.now))
            if self._would_roll(len(batch)):
                break
            end = self._durable_end() + len(records)
            ticket = run_blocking(self.shard.engine.submit(self.shard.name, batch))
            self.replication.wait_until_durable(self.log, end)
            self.waiting.append(Waiting(records, self.now, end, ticket))
        self._follow()

    def _would_roll(self, size_bytes: int) -> bool:
        """Whether an append asks for a roll, which waits for the mark. A memory log's does not."""
        if self.storage_type == StorageType.MEMORY.value:
            return False
        end_position = self.log.tail.position + size_bytes
        return end_position > self.log.spec.config.segment_bytes or is_old(self.log)

    @precondition(lambda self: self.waiting)
    @rule(fraction=fractions)
    def move_the_mark(self, fraction: float) -> None:
        """To any offset, also within a batch: what is shown ends before that batch."""
        end = self.model.end
        high_watermark = end + round(fraction * (self._durable_end() - end))
        shown = [each for each in self.waiting if each.end_offset <= high_watermark]
        self.log.advance(high_watermark)
        assert self.log.view.end_offset == (shown[-1].end_offset if shown else end)
        self._follow()

    def _durable_end(self) -> int:
        return self.waiting[-1].end_offset if self.waiting else self.model.end

    def _follow(self) -> None:
        """Tells the model what the high watermark has reached. Those appends are acknowledged, and
        no others."""
        end = self.log.view.end_offset
        while self.waiting and self.waiting[0].end_offset <= end:
            each = self.waiting.pop(0)
            base_offset = self.model.append(each.records, each.submitted_ms)
            assert each.ticket.wait() == Appended(
                base_offset=base_offset, next_offset=each.end_offset
            )
        assert self.model.end == end
        for each in self.waiting:
            assert not _is_answered(each.ticket)

    def _catch_up(self) -> None:
        if self.waiting:
            self.log.advance(self.waiting[-1].end_offset)
            self._follow()
        self.replication.release()

    def _append(self, records: list[NewRecord]) -> None:
        self._catch_up()
        super()._append(records)

    @rule(drawn=st.lists(new_records(), min_size=1, max_size=5), base=st.integers(0, 1000))
    def append_batch(self, drawn: list, base: int) -> None:
        self._catch_up()
        super().append_batch(drawn, base)

    def _delete(self, offsets: list[int]) -> None:
        """A deletion waits for the mark, which must move then."""
        self._catch_up()
        super()._delete(offsets)

    def _delete_key(self, key: bytes) -> None:
        self._catch_up()
        super()._delete_key(key)

    @rule()
    def roll(self) -> None:
        self._catch_up()
        super().roll()

    @rule()
    def housekeep(self) -> None:
        self._catch_up()
        super().housekeep()

    @rule(fraction=fractions)
    def truncate_at_a_border(self, fraction: float) -> None:
        """What waits is above every border, and fails."""
        super().truncate_at_a_border(fraction)
        if self.log.tail.next_offset < self._durable_end():
            for each in self.waiting:
                assert _is_answered(each.ticket, StorageFailed)
            self.waiting.clear()

    @precondition(lambda self: self.model.end > self.model.start)
    @rule(fraction=fractions)
    def truncate(self, fraction: float) -> None:
        self._catch_up()
        super().truncate(fraction)

    def _before_restart(self) -> None:
        """A log on disk is recovered as a whole, and shown: the node is alone."""
        if self.storage_type == StorageType.MEMORY.value:
            self._catch_up()
        super()._before_restart()

    def _after_restart(self) -> None:
        for each in self.waiting:
            self.model.append(each.records, each.submitted_ms)
        self.waiting.clear()
        super()._after_restart()

    @invariant()
    def the_rest_is_stored(self) -> None:
        if hasattr(self, "model"):
            assert self.log.tail.next_offset == self._durable_end()


def _is_answered(ticket: Ticket[Appended], error: type[Exception] | None = None) -> bool:
    try:
        ticket.wait(0)
    except TimedOut:
        return False
    except StorageFailed:
        return error is StorageFailed
    return error is None
