"""Where groups are saved, and the writer that saves them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.encoding import AnySnapshot
from firnmq.brokers.kafka.groups.messages import Erase, Persist
from firnmq.errors import FirnError
from firnmq.eventlog import EventLogger

_log = EventLogger("groups")

STORE_ERRORS = (FirnError, OSError, TimeoutError)
"""What a store may fail with; anything else is a defect and ends the coordinator."""


class GroupStore(Protocol):
    """Keeps one snapshot per group, durably. Calls for one group never overlap."""

    async def save(self, group_id: str, snapshot: AnySnapshot) -> None:
        """Returns when the snapshot would survive a crash."""

    async def load_all(self) -> Mapping[str, AnySnapshot]:
        """Every saved group."""
        ...

    async def delete(self, group_id: str, empty_since_ms: int | None = None) -> None:
        """Forgets the group; one that is not there is no error.

        With a time, the group's offsets stay and count as committed then at the earliest.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class _Write:
    action: Persist | Erase
    report: Callable[[bool], None]


class GroupWriter:
    """Carries out the writes of many groups: those of one group in order, one at a time.

    A write that has not begun gives way to a newer one of the same group, so at most two per
    group are held. Owned by the coordinator, used from its event loop.
    """

    def __init__(self, store: GroupStore, tasks: asyncio.TaskGroup, config: GroupConfig) -> None:
        self._store = store
        self._tasks = tasks
        self._timeout_s = config.store_timeout_ms / 1000
        self._slots = asyncio.Semaphore(config.store_concurrency_max)
        self._waiting: dict[str, _Write] = {}
        self._busy: set[str] = set()
        self._late: set[asyncio.Task[bool]] = set()
        """Writes that are under way after their time-out."""
        self._is_closed = False

    @property
    def busy_count(self) -> int:
        return len(self._busy)

    def write(self, group_id: str, action: Persist | Erase, report: Callable[[bool], None]) -> None:
        """Queues a write; `report` is called with its success unless a newer one replaces it."""
        self._waiting[group_id] = _Write(action=action, report=report)
        if group_id not in self._busy:
            self._busy.add(group_id)
            self._tasks.create_task(self._drain(group_id), name=f"group-writer-{group_id}")

    def close(self) -> None:
        """Does not wait for writes after their time-out any more; nothing is written after them."""
        self._is_closed = True
        for task in self._late:
            task.cancel()

    async def _drain(self, group_id: str) -> None:
        try:
            while group_id in self._waiting:
                async with self._slots:
                    await self._carry_out(group_id, self._waiting.pop(group_id))
        finally:
            self._busy.discard(group_id)

    async def _carry_out(self, group_id: str, write: _Write) -> None:
        """Returns when the write has ended, not when its time is over.

        The store writes in a thread, which cannot be stopped. A write that is reported as failed
        because of its time-out may still be carried out, and must not overtake the next one.
        """
        task = self._tasks.create_task(self._attempt(group_id, write.action))
        await asyncio.wait({task}, timeout=self._timeout_s)
        if task.done():
            write.report(task.result())
            return
        _log.error("group_write_late", group=group_id, timeout_s=self._timeout_s)
        write.report(False)
        self._late.add(task)
        if self._is_closed:
            task.cancel()
        await asyncio.wait({task})
        self._late.discard(task)

    async def _attempt(self, group_id: str, action: Persist | Erase) -> bool:
        try:
            if isinstance(action, Persist):
                await self._store.save(group_id, action.snapshot)
            else:
                await self._store.delete(group_id, action.empty_since_ms)
        except STORE_ERRORS as error:
            _log.error("group_write_failed", group=group_id, error=repr(error))
            return False
        return True
