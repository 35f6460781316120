"""What an engine over shard logs asks of its medium."""

from __future__ import annotations

from typing import Protocol

from firnmq.disk import Guest, Ticket
from firnmq.engines.api import Appended
from firnmq.engines.shardlog import Append, ShardLog
from firnmq.engines.state import ShardSpec


class LogKeeper(Protocol):
    """What one kind of engine does its own way."""

    @property
    def storage_type(self) -> str: ...

    def open(self, spec: ShardSpec, failed: ShardLog | None) -> ShardLog: ...

    async def submit(self, log: ShardLog, request: Append) -> Ticket[Appended]:
        """Queues a request; the ticket is settled when it is as durable as the topic asks."""

    def accepts(self, log: ShardLog, request: Append) -> bool:
        """Whether `hand_over` can take a request now; one that was accepted must be handed over."""

    def hand_over(self, requests: list[Append]) -> None:
        """Queues accepted requests, or carries them out; called on an event loop."""

    def guest(self, log: ShardLog) -> Guest | None:
        """For whoever writes a log by himself; None if nobody may."""

    def truncate(self, log: ShardLog, offset: int, position: int) -> None: ...

    def drop_shard(self, spec: ShardSpec, log: ShardLog | None) -> None:
        """Removes everything of a shard; its log is given if it is open."""

    def recount(self, log: ShardLog) -> None:
        """Called, with the lock held, when something other than an append changed the log."""

    def settle(self, log: ShardLog) -> None:
        """Makes what the log shows as durable as its medium can, without stopping appends."""

    def housekeep(self, log: ShardLog) -> None: ...
