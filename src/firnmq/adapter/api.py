"""The interface every storage backend implements: thirteen operations on shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from firnmq.config import TopicConfig
from firnmq.engines import AdapterOffsetStrategy, Appended, Page
from firnmq.record import NewRecord


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

    async def batch_write(self, shard: str, records: Sequence[NewRecord]) -> Appended: ...

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
