"""The interfaces of storage: what every backend does, and what backends may offer beyond that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from firnmq.config import TopicConfig
from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines import (
    Acks,
    AdapterOffsetStrategy,
    Appended,
    Page,
    ProducerStatus,
    ShardStatus,
    StoredPage,
)
from firnmq.engines.open_log import OpenLog
from firnmq.record import NewRecord

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBounds:
    """A shard and its readable range [start_offset, end_offset)."""

    name: str
    start_offset: int
    end_offset: int


@runtime_checkable
class StorageAdapter(Protocol):
    """A storage backend. Register your own by name and topics can choose it.

    Offsets are contiguous as assigned; reads return whole records, at least one if there is one,
    and `Page.from_records` makes their result from plain records.
    """

    async def create_shard(self, shard: str, config: TopicConfig) -> None: ...

    async def delete_shard(self, shard: str) -> None: ...

    async def list_shard(self) -> list[ShardBounds]: ...

    async def write(self, shard: str, record: NewRecord) -> int:
        """Stores one record and returns its offset."""
        ...

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended:
        """Stores all records or none; LimitExceeded for more than can be stored so."""

    async def read_by_offset(
        self, shard: str, offset: int, *, max_records: int, max_bytes: int
    ) -> Page: ...

    async def read_by_tag(
        self, shard: str, tag: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page: ...

    async def read_by_key(self, shard: str, key: bytes) -> Page:
        """The newest live record of the key; KeyNotFound if there is none."""
        ...

    async def delete_by_key(self, shard: str, key: bytes) -> None: ...

    async def delete_by_offset(self, shard: str, offset: int) -> None: ...

    async def get_offset_by_timestamp(
        self, shard: str, timestamp_ms: int, strategy: AdapterOffsetStrategy
    ) -> int: ...

    async def get_offset_by_group(self, group: str) -> dict[str, int]:
        """Committed offsets of the group, by shard."""
        ...

    async def commit_offset(self, group: str, offsets: Mapping[str, int]) -> None: ...

    async def bounds(self, shard: str) -> tuple[int, int]:
        """Start and end offset of what can be read."""
        ...

    def watch(self, shard: str, end_offset: int, ticket: Ticket[None]) -> Callable[[], None] | None:
        """Completes the ticket once the shard grows beyond the offset. Returns what ends the watch,
        or None if the shard has grown already.

        Called on the event loop of the ticket, where `ticket.settle_here()` completes it. The
        ticket may be completed more than once.
        """


@runtime_checkable
class BatchStorage(StorageAdapter, Protocol):
    """What Kafka clients need beyond that: batches as they are on the wire, ranges of files,
    producers and transactions. An adapter of your own may offer it. Called on an event loop."""

    async def submit(
        self, shard: str, batch: Buffer, acks: Acks = ..., deadline_s: float | None = None
    ) -> Awaitable[Appended]:
        """Queues an encoded batch in the order of calls; the result waits until it is acknowledged.
        A writable buffer is patched in place: hand it over."""
        ...

    async def append_marker(
        self, shard: str, producer_id: int, epoch: int, *, is_commit: bool
    ) -> Appended:
        """Ends a producer's transaction in the shard, durably."""
        ...

    def open_log(self, shard: str) -> OpenLog | None:
        """The log of a shard for the fast path, which appends and watches without waiting; None if
        it has to be opened first, or if there is no such path."""

    def read_stored_nowait(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage | None:
        """Batches for a client, None unless they can be had without waiting."""

    def read_stored(
        self, shard: str, offset: int, *, max_bytes: int, committed: bool, ranges: bool
    ) -> StoredPage:
        """The same for a thread that may wait: see `in_reader`."""
        ...

    def in_reader(self, function: Callable[[], T], *, cold: bool = False) -> asyncio.Future[T]:
        """Calls a function that may wait in a thread for readers: `cold` if it may wait for an
        object store."""
        ...

    def is_cold(
        self, shard: str, *, offset: int | None = None, timestamp_ms: int | None = None
    ) -> bool:
        """Whether a read from the offset on, or a search of the timestamp, may have to wait for an
        object store. Waits if the shard has to be opened."""
        ...

    async def stable_offset(self, shard: str) -> int:
        """Where the earliest transaction that has not ended begins, or the end."""
        ...

    async def find_offset(self, shard: str, timestamp_ms: int, *, committed: bool) -> int:
        """Like get_offset_by_timestamp, the end if there is none; also among what is not certain
        unless only what is committed counts."""
        ...

    async def find_newest(self, shard: str, *, committed: bool) -> tuple[int, int] | None:
        """Offset and timestamp of the record with the highest timestamp; None without records."""


class LogAdmin(Protocol):
    """What only the logs of this node offer: their segments, options, and deletions that say what
    there was."""

    def leads(self, shard: str) -> bool:
        """Whether this node keeps the shard."""

    async def status(self, shard: str) -> ShardStatus: ...

    async def roll(self, shard: str) -> None: ...

    async def producers(self, shard: str) -> list[ProducerStatus]: ...

    async def reconfigure(self, shards: Sequence[str], config: TopicConfig, revision: int) -> None:
        """Gives a topic's shards the options of the topic's record at a revision; a shard that has
        those of a newer one keeps them."""

    async def check_change(self, shard: str, config: TopicConfig) -> None:
        """InvalidArgument if what the shard has in an object store does not allow these options."""

    async def delete_key(self, shard: str, key: bytes) -> int | None:
        """Like delete_by_key; the offset below which the key's records are deleted, None if the
        shard has none of them."""

    async def delete_offsets(self, shard: str, offsets: Sequence[int]) -> list[int]:
        """Deletes many records as one change; the offsets of those that were not deleted before."""
        ...

    async def delete_records_before(self, shard: str, offset: int) -> int:
        """Moves the start of a shard up to the offset; where it was."""
        ...

    async def read_key_history(
        self, shard: str, key: bytes, start_offset: int, *, max_records: int, max_bytes: int
    ) -> Page:
        """All live records of a key from an offset on."""
        ...


class Driver(StorageAdapter, Protocol):
    """A backend as StorageDriverManager uses it: one of our engines, or an adapter of the user."""

    @property
    def batches(self) -> BatchStorage | None:
        """What Kafka clients use; None if the backend has no batches."""

    @property
    def logs(self) -> LogAdmin | None:
        """None if another system keeps the records."""

    async def create_shards(
        self, shards: Sequence[str], config: TopicConfig, topic_id: str
    ) -> None:
        """Makes a topic's shards; those that are there already stay."""

    async def delete_shards(self, shards: Sequence[str]) -> None:
        """Removes shards; those that are not there are passed over."""

    async def delete_shards_beyond(self, shard_counts: Mapping[str, int]) -> None:
        """Leaves topics, given by id, this many shards, where the driver knows of others."""

    async def read_by_key_among(self, shards: Sequence[str], key: bytes) -> dict[str, Page]:
        """The newest record of a key in each of the shards that has one."""
        ...

    async def run_to_end(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs what makes or removes shards, to its end if the driver can, even if the caller is
        cancelled: then no change goes on behind the next one."""
        ...
