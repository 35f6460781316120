"""Deletes a topic's records, for a node and for the command line."""

from __future__ import annotations

from firnmq.adapter import StorageDriverManager, Topic, shown_shard
from firnmq.errors import FirnError, InvalidArgument, OffsetOutOfRange
from firnmq.eventlog import EventLogger
from firnmq.record.document import bytes_of
from firnmq.server.documents import Deletion, ShardDeletion

OFFSETS_MAX = 100_000
"""Offsets of one call. The shard takes no appends while they are written."""

_log = EventLogger("deletion")


async def delete_records(
    manager: StorageDriverManager, name: str, wanted: Deletion
) -> list[ShardDeletion]:
    """Deletes a topic's records, durably, and returns what was deleted in each shard.

    Invalid arguments raise before anything is deleted. If storage fails in one of several shards,
    deletions in others remain; the call can be repeated.
    """
    topic = manager.catalog.get(name)
    try:
        return await _delete(manager, topic, wanted)
    except FirnError as error:
        topic.name_shard(error)
        raise


async def _delete(
    manager: StorageDriverManager, topic: Topic, wanted: Deletion
) -> list[ShardDeletion]:
    key = _key(wanted)
    ways = {"key": key, "offsets": wanted.offsets, "before": wanted.before}
    given = [way for way, value in ways.items() if value is not None]
    if len(given) != 1:
        told = " and ".join(given) or "none of them"
        raise InvalidArgument(", ".join(ways), f"give exactly one, not {told}")
    if wanted.shard is not None:
        manager.check_shard(topic, wanted.shard)
    work = _Work(manager, topic)
    if key is not None:
        chosen = range(topic.shard_count) if wanted.shard is None else [wanted.shard]
        return [await work.delete_key(seq, key) for seq in chosen]
    seq = _only_shard(topic, wanted.shard, given[0])
    if wanted.offsets is not None:
        return [await work.delete_offsets(seq, wanted.offsets)]
    assert wanted.before is not None
    return [await work.delete_before(seq, wanted.before)]


class _Work:
    """Deletes in the shards of one topic. Only the built-in engines can tell what existed."""

    def __init__(self, manager: StorageDriverManager, topic: Topic) -> None:
        self._manager = manager
        self._topic = topic
        self._driver = manager.driver(topic.config.storage_type)
        self._logs = self._driver.logs

    async def delete_key(self, seq: int, key: bytes) -> ShardDeletion:
        shard = self._topic.shard_name(seq)
        if self._logs is None:
            await self._driver.delete_by_key(shard, key)
            return await self._done(seq, deleted=None)
        below = await self._logs.delete_key(shard, key)
        # The key is not logged: it may be the very data that must be deleted.
        if below is not None:
            self._log("key", seq, below=below)
        else:
            self._log_absence("key", seq)
        return await self._done(seq, deleted=below is not None, key_below=below)

    async def delete_offsets(self, seq: int, offsets: list[int]) -> ShardDeletion:
        if not 1 <= len(offsets) <= OFFSETS_MAX:
            raise InvalidArgument(
                "offsets", f"must be 1 to {OFFSETS_MAX:,} of them, not {len(offsets):,}"
            )
        if min(offsets) < 0:
            raise InvalidArgument("offsets", f"must be 0 or more, not {min(offsets)}")
        shard = self._topic.shard_name(seq)
        start, end = await self._manager.bounds(self._topic, seq)
        if max(offsets) >= end:
            shown = shown_shard(self._topic.name, seq)
            raise OffsetOutOfRange(max(offsets), start=start, end=end, shard=shown)
        if self._logs is None:
            for offset in offsets:
                await self._driver.delete_by_offset(shard, offset)
            return await self._done(seq, deleted=None)
        gone = await self._logs.delete_offsets(shard, offsets)
        if gone:
            self._log("offsets", seq, first=gone[0], last=gone[-1], count=len(gone))
        else:
            self._log_absence("offsets", seq)
        return await self._done(seq, deleted=bool(gone), offsets=gone)

    async def delete_before(self, seq: int, offset: int) -> ShardDeletion:
        config = self._topic.config
        if self._logs is None:
            raise InvalidArgument(
                self._topic.name,
                f"is kept by {config.storage_type}, which cannot delete before an offset",
            )
        if config.compacts and not config.cleanup_policy.deletes:
            raise InvalidArgument(
                "before",
                f"{self._topic.name} keeps the newest record of every key (cleanup.policy=compact)"
                "; delete by key or by offset, or set cleanup.policy=compact,delete",
            )
        if offset < 0:
            raise InvalidArgument("before", f"must be 0 or more, not {offset}")
        old = await self._logs.delete_records_before(self._topic.shard_name(seq), offset)
        if old < offset:
            self._log("before", seq, start=offset, start_before=old)
        return await self._done(seq, deleted=old < offset, start_before=old)

    def _log(self, by: str, seq: int, **fields: int) -> None:
        _log.info("records_deleted", topic=self._topic.name, shard=seq, by=by, **fields)

    def _log_absence(self, by: str, seq: int) -> None:
        """Logs a deletion of records that only a lake table may still have."""
        _log.info("records_not_in_log", topic=self._topic.name, shard=seq, by=by)

    async def _done(
        self,
        seq: int,
        *,
        deleted: bool | None,
        offsets: list[int] | None = None,
        key_below: int | None = None,
        start_before: int | None = None,
    ) -> ShardDeletion:
        start, end = await self._manager.bounds(self._topic, seq)
        return ShardDeletion(
            topic=self._topic.name,
            shard=seq,
            start_offset=start,
            end_offset=end,
            deleted=deleted,
            offsets=offsets,
            key_below=key_below,
            start_before=start_before,
        )


def _key(wanted: Deletion) -> bytes | None:
    return bytes_of({"key": wanted.key, "key_base64": wanted.key_base64}, "key")


def _only_shard(topic: Topic, shard: int | None, way: str) -> int:
    if shard is not None:
        return shard
    if topic.shard_count > 1:
        raise InvalidArgument(
            "shard", f"is needed with {way}, since {topic.name} has {topic.shard_count:,} shards"
        )
    return 0
