"""Expiry of committed offsets that no group needs any more, and of groups that have none left."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from types import TracebackType

from firnmq.adapter import CommittedOffset, TopicCatalog
from firnmq.brokers.kafka.groups import GroupConfig, GroupCoordinator, OffsetRetention
from firnmq.brokers.kafka.offsets import GroupOffsets
from firnmq.brokers.kafka.transactions import TransactionCoordinator
from firnmq.clock import Clock
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger

_log = EventLogger("groups")

_TRUST_MS = 24 * 3_600_000
"""How long a wall clock that was set forward has to stay so until it makes offsets older. A wrong
clock that is noticed within a day costs no group its offsets."""


class TrustedTime:
    """How far the wall clock is ahead of what it would be if it had not been set forward lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._leads: list[tuple[int, int]] = []
        """When the wall clock was looked at, and how far it was ahead of the steady time."""
        self.ahead_ms()

    def ahead_ms(self) -> int:
        """Looks at the wall clock."""
        steady_ms = self._clock.steady_ms()
        lead_ms = self._clock.now_ms() - steady_ms
        lately = [each for each in self._leads if each[0] > steady_ms - _TRUST_MS]
        self._leads = [*(lately or self._leads[-1:]), (steady_ms, lead_ms)]
        return lead_ms - min(lead for _, lead in self._leads)


class OffsetExpiry:
    """Looks for such offsets from time to time. An async context manager.

    Offsets of a group age while the group is empty. A group without members ever is one of
    consumers that assign partitions by hand: each of its offsets ages from its commit on. A group
    in use keeps the offsets of what it subscribes to, and so does an open transaction those that
    it is about to replace.
    """

    def __init__(
        self,
        offsets: GroupOffsets,
        coordinator: GroupCoordinator,
        transactions: TransactionCoordinator,
        catalog: TopicCatalog,
        *,
        clock: Clock,
        config: GroupConfig,
    ) -> None:
        self._offsets = offsets
        self._coordinator = coordinator
        self._transactions = transactions
        self._catalog = catalog
        self._clock = clock
        self._config = config
        self._time = TrustedTime(clock)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> OffsetExpiry:
        self._task = asyncio.create_task(self._run(), name="offset-expiry")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._config.offsets_retention_check_ms / 1000)
            try:
                await self.sweep()
            except FirnError as error:
                _log.error("offset_expiry_failed", error=str(error))

    async def sweep(self) -> None:
        """Forgets what is due now."""
        ahead_ms = self._time.ahead_ms()
        with_offsets = set(await self._offsets.groups())
        for group in sorted(with_offsets.union(self._coordinator.group_ids())):
            retention = self._coordinator.retention(group)
            left = 0
            if group in with_offsets and retention.is_kept:
                continue
            if group in with_offsets:
                outcome = await self._offsets.forget_due(
                    group, self._judge(group, retention, ahead_ms)
                )
                left = outcome.left
                if outcome.deleted:
                    _log.info("offsets_expired", group=group, count=outcome.deleted, left=left)
            if left == 0 and self._is_useless(group):
                await self._coordinator.delete(group)

    def _is_useless(self, group: str) -> bool:
        """Whether the group is there, has no members, and no transaction is about to give it
        offsets."""
        is_empty = self._coordinator.retention(group).is_empty_group
        return is_empty and not self._transactions.pending_offsets(group)

    def _judge(self, group: str, retention: OffsetRetention, ahead_ms: int) -> Judge:
        names = {topic.topic_id: topic.name for topic in self._catalog.topics()}
        return Judge(
            retention=retention,
            pending=self._transactions.pending_offsets(group),
            topics=names,
            clock=self._clock,
            ahead_ms=ahead_ms,
            retention_ms=self._config.offsets_retention_ms,
        )


class Judge:
    """Says which offsets of one group are due. Called in a thread."""

    def __init__(
        self,
        *,
        retention: OffsetRetention,
        pending: Sequence[Container[str]],
        topics: dict[str, str],
        clock: Clock,
        ahead_ms: int,
        retention_ms: int,
    ) -> None:
        """`ahead_ms` is how much of the wall clock's time is not trusted."""
        self._retention = retention
        self._pending = pending
        self._topics = topics
        self._clock = clock
        self._ahead_ms = ahead_ms
        self._retention_ms = retention_ms

    def __call__(self, shard: str, entry: CommittedOffset) -> bool:
        retention = self._retention
        if retention.is_kept or any(shard in each for each in self._pending):
            return False
        if self._topics.get(shard.rpartition("_")[0]) in retention.topics:
            return False
        age_ms = self._age_ms(entry.committed_ms)
        if retention.empty_since_ms:
            age_ms = min(age_ms, self._age_ms(retention.empty_since_ms))
        return age_ms >= self._retention_ms

    def _age_ms(self, then_ms: int) -> int:
        return self._clock.age_ms(then_ms, self._clock.now_ms() - self._ahead_ms)
