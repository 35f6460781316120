"""Every error FirnMQ raises: one root, few kinds, the facts as attributes.

Callers decide by type and attribute, never by text. The text says what was wrong and, where
there is something to do about it, what to do.
"""

from __future__ import annotations

import errno


class FirnError(Exception):
    """Root of all errors raised by FirnMQ."""


class InvalidArgument(FirnError):
    """The caller asked for something that cannot be meant: a bad name, a negative limit."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument = argument
        self.reason = reason


class InvalidRecord(FirnError):
    """Bytes or records handed in by a client break the format or a limit; nothing was written."""


class LimitExceeded(InvalidRecord):
    """A client's record or batch is larger than the limit; nothing was written."""

    def __init__(self, what: str, size: int, limit: int) -> None:
        super().__init__(f"{what} is {size:,} bytes, the limit is {limit:,}")
        self.what = what
        self.size = size
        self.limit = limit


class KeyRequired(InvalidRecord):
    """A record without a key came to a topic that keeps the newest record of each key."""

    def __init__(self) -> None:
        super().__init__(
            "a record has no key, and the topic is compacted by key; give every record a key, "
            "or set cleanup.policy=delete"
        )


class Corruption(FirnError):
    """Stored bytes are not what was written. `where` names the file or shard."""

    def __init__(self, reason: str, *, where: str = "", position: int | None = None) -> None:
        place = f"{where or 'batch'}" + ("" if position is None else f" at byte {position:,}")
        super().__init__(f"{place}: {reason}")
        self.reason = reason
        self.where = where
        self.position = position


class OtherFormat(Corruption):
    """What is stored is of another version of this program, or of another program; nothing was
    changed."""


class ShardError(FirnError):
    """Something about one shard. `shard` is what storage calls it, until whoever knows the topic
    has it `call` the shard by what users know it by."""

    def __init__(self, before: str, shard: str, after: str) -> None:
        super().__init__(f"{before}{shard}{after}")
        self.shard = shard
        self._around = before, after

    def call(self, shard: str) -> None:
        before, after = self._around
        self.args = (f"{before}{shard}{after}",)
        self.shard = shard


class OffsetOutOfRange(ShardError):
    """The offset is outside the readable range [start, end)."""

    def __init__(self, offset: int, *, start: int, end: int, shard: str = "shard") -> None:
        super().__init__(f"offset {offset} of ", shard, f" is outside [{start}, {end})")
        self.offset = offset
        self.start = start
        self.end = end


class NotFound(FirnError):
    """A named thing does not exist."""

    kind = "thing"

    def __init__(self, name: str, *, within: str = "") -> None:
        super().__init__(f"no {self.kind} {name!r}" + (f" in {within}" if within else ""))
        self.name = name
        self.within = within


class TopicNotFound(NotFound):
    kind = "topic"


class ShardNotFound(NotFound):
    kind = "shard"


class KeyNotFound(NotFound):
    kind = "live record with key"

    def call(self, shard: str) -> None:
        """As ShardError does: `within` is the shard."""
        self.args = (str(KeyNotFound(self.name, within=shard)),)
        self.within = shard


class StorageTypeNotFound(NotFound):
    kind = "storage type"


class AlreadyExists(FirnError):
    """A thing of this name exists already."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"{kind} {name!r} exists already")
        self.kind = kind
        self.name = name


class IndexDisabled(ShardError):
    """The question needs an index that the topic does not keep."""

    def __init__(self, index: str, shard: str) -> None:
        advice = f"set index.{index}=true when creating the topic"
        super().__init__("", shard, f" keeps no {index} index; {advice}")
        self.index = index


class StorageFailed(ShardError):
    """A write or sync failed below us: the shard is closed and reopens from disk on next use.

    What was acknowledged before stays. Whether the failed request is stored is unknown until the
    shard has reopened and its end offset can be read.
    """

    def __init__(self, shard: str, cause: BaseException) -> None:
        super().__init__("storage of ", shard, f" failed: {cause}")
        self.cause = cause


class DiskFull(StorageFailed):
    """There is no room on the device. Free some; appends work again without a restart."""


class NoTiering(FirnError):
    """The question is about an object store, and there is none."""

    def __init__(self) -> None:
        super().__init__(
            "no object store is configured: give its URL as FIRN_TIERING_URL, or as url in the "
            "section [tiering] of the file that --config or FIRN_CONFIG names"
        )


class TierBacklogFull(FirnError):
    """Too many sealed bytes wait for their upload to the object store; nothing was written.

    Appends to tiered topics work again by themselves once uploads have caught up.
    """

    def __init__(self, waiting_bytes: int, limit: int) -> None:
        super().__init__(
            f"{waiting_bytes:,} bytes wait for their upload to the object store, "
            f"tiering.backlog_bytes allows {limit:,}; try again. firn tier status says why"
        )
        self.waiting_bytes = waiting_bytes
        self.limit = limit


class ProducerFenced(FirnError):
    """A newer instance of the producer exists; this one must stop."""

    def __init__(self, producer_id: int, epoch: int, current: int) -> None:
        super().__init__(f"producer {producer_id} has epoch {current}, this is epoch {epoch}")
        self.producer_id = producer_id
        self.epoch = epoch
        self.current = current


class OutOfOrderSequence(FirnError):
    """A batch of an idempotent producer does not follow the last one; nothing was written."""

    def __init__(self, producer_id: int, sequence: int, expected: int) -> None:
        super().__init__(f"producer {producer_id} sent sequence {sequence}, expected is {expected}")
        self.producer_id = producer_id
        self.sequence = sequence
        self.expected = expected


class InvalidTransactionState(FirnError):
    """A producer's batch does not fit the transaction it is in; nothing was written."""

    def __init__(self, producer_id: int, reason: str) -> None:
        super().__init__(f"producer {producer_id}: {reason}")
        self.producer_id = producer_id
        self.reason = reason


class StaleEpoch(FirnError):
    """A segment's metadata has changed since it was read; nothing was changed. Read it again."""

    def __init__(self, segment: str, epoch: int, current: int) -> None:
        super().__init__(f"segment {segment} is at epoch {current}, this change knows {epoch}")
        self.segment = segment
        self.epoch = epoch
        self.current = current


class StaleIncarnation(FirnError):
    """The node was registered again by another process; this one must stop."""

    def __init__(self, node: int, incarnation: int, current: int) -> None:
        super().__init__(f"node {node} is in incarnation {current}, this process is {incarnation}")
        self.node = node
        self.incarnation = incarnation
        self.current = current


class Closed(FirnError):
    """The store, engine or pool has been closed."""


class NoObjectStore(ShardError):
    """A segment is only in the object store, and this process was not told of one."""

    def __init__(self, shard: str, seq: int) -> None:
        super().__init__(
            f"segment {seq} of ",
            shard,
            " is only in the object store, and this process was told of none: give its URL as "
            "FIRN_TIERING_URL, or as url in the section [tiering] of the file that --config or "
            "FIRN_CONFIG names; in a program, as tiering= of firnmq.open",
        )
        self.seq = seq


class DirectoryInUse(FirnError):
    """Another process has the data directory open."""

    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"data directory {path} is in use by {holder}; stop it, or choose another directory"
        )
        self.path = path
        self.holder = holder


class TimedOut(FirnError):
    """No answer within the time allowed. For a write that means unknown, not failed."""


class CreationTimedOut(TimedOut):
    """A new topic did not come up in the node's cache in time; what was made of it is removed."""

    def __init__(self, topic: str, awaited: str, timeout_s: float) -> None:
        super().__init__(
            f"topic {topic!r} was not created: {awaited} did not come up within {timeout_s:g} s; "
            "try again"
        )
        self.topic = topic
        self.awaited = awaited
        self.timeout_s = timeout_s


class StoreError(FirnError):
    """An object store could not do what was asked. Trying again will not help by itself.

    `store` is its URL without credentials, `key` the object if there is one.
    """

    def __init__(self, store: str, reason: str, *, key: str = "") -> None:
        super().__init__(f"{store}" + (f", object {key}" if key else "") + f": {reason}")
        self.store = store
        self.reason = reason
        self.key = key


class StoreUnavailable(StoreError):
    """The object store is down, too slow, full, or answered with an error of its own.

    Trying again later may help. For a write it means unknown, not failed.
    """


class StoreTimedOut(StoreUnavailable):
    """The object store has not answered in time; `operation` is what it was asked to do."""

    def __init__(
        self, store: str, operation: str, timeout_ms: int, *, key: str = "", try_count: int = 1
    ) -> None:
        tries = f", tried {try_count} times" if try_count > 1 else ""
        super().__init__(
            store,
            f"no answer to {operation} within {timeout_ms:,} ms (tiering.timeout_ms){tries}",
            key=key,
        )
        self.operation = operation
        self.timeout_ms = timeout_ms
        self.try_count = try_count


class StoreDenied(StoreError):
    """The object store refuses the credentials or the operation; an operator must act."""


class StorePackageMissing(StoreError):
    """The package that talks to this kind of object store is not installed."""

    def __init__(self, store: str, extra: str) -> None:
        super().__init__(store, f"its package is not installed: pip install 'firnmq[{extra}]'")
        self.extra = extra


class ObjectNotFound(StoreError):
    """The object store has no object of this name."""

    def __init__(self, store: str, key: str) -> None:
        super().__init__(store, "is not there", key=key)


class ObjectExists(StoreError):
    """An object of this name is there already, and was to be created.

    After a write whose outcome was unknown it may be the caller's own.
    """

    def __init__(self, store: str, key: str) -> None:
        super().__init__(store, "exists already", key=key)


class ObjectTruncated(StoreError):
    """The object, or what was to become one, is shorter or longer than it has to be."""

    def __init__(self, store: str, key: str, *, expected: int, found: int) -> None:
        super().__init__(store, f"has {found:,} bytes where {expected:,} belong", key=key)
        self.expected = expected
        self.found = found


class ObjectCorrupt(StoreError):
    """The object's bytes are not what was written."""


def storage_failure(shard: str, cause: BaseException) -> StorageFailed:
    """The right StorageFailed for an error from the operating system or RocksDB."""
    full_disk = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(cause, OSError) and cause.errno in full_disk:
        return DiskFull(shard, cause)
    if "no space left" in str(cause).lower():  # RocksDB reports errno only as text.
        return DiskFull(shard, cause)
    return StorageFailed(shard, cause)
