"""What an engine over shard logs asks of its medium."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from firnmq.config import TopicConfig
from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.inline import InlineAppends
from firnmq.engines.shardlog import Append, ShardLog
from firnmq.engines.shardlog.rolling.steps import Move


class LogKeeper(Protocol):
    """What one kind of engine does its own way."""

    @property
    def storage_type(self) -> str: ...

    def open(self, spec: ShardSpec, failed: ShardLog | None) -> ShardLog: ...

    def reserve(self, log: ShardLog, request: Append) -> bool:
        """Reserves space for a request, which is submitted next; False if that means waiting."""

    async def wait_for_room(self, log: ShardLog, request: Append) -> None:
        """The same, waiting. Nothing may be awaited between this and `submit`."""

    def submit(self, requests: list[Append], inline: InlineAppends | None = None) -> None:
        """Appends requests for which space was reserved, in their order; each has its log and its
        ticket, which completes when the request is acknowledged.

        On an event loop that gives an `inline`, what needs no sync may be appended before this
        returns.
        """

    def roll(self, log: ShardLog, move: Move | None = None) -> None:
        """Seals the active segment and opens the next one; an empty one stays. With a move the next
        one is another node's, and the log refuses everything from then on. The log's lock is
        free."""

    def truncate(self, log: ShardLog, offset: int, position: int) -> None: ...

    def drop_shard(self, spec: ShardSpec, log: ShardLog | None) -> None:
        """Removes everything of a shard; its log is given if it is open."""

    def drop_range(self, shards: ShardRange, config: TopicConfig) -> None:
        """Removes everything of the shards of a range, none of which has a log that is open."""

    def may_close(self, log: ShardLog) -> bool:
        """Whether the log could be opened again as it is, and no caller waits for it; stores what
        is late. Does not wait."""

    def keep(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        """Removes what is here of a shard that another node leads, except these segments."""

    def recount(self, log: ShardLog) -> None:
        """Called, with the lock held, when something other than an append changed the log."""

    def settle(self, log: ShardLog) -> None:
        """Makes what the log shows as durable as its medium can, without stopping appends."""

    def housekeep(self, log: ShardLog) -> None: ...
