"""Every error FirnMQ raises: one root, few kinds, the facts as attributes.

Callers decide by type and attribute, never by text. The text says what was wrong and, where
there is something to do about it, what to do.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Sequence
from itertools import islice

_SUGGESTED_NAME_MAX = 249
_SUGGESTED_COUNT_MAX = 300


class FirnError(Exception):
    """Root of all errors raised by FirnMQ."""


class InvalidArgument(FirnError):
    """An argument is invalid: a bad name, a negative limit."""

    def __init__(self, argument: str, reason: str) -> None:
        super().__init__(f"{argument}: {reason}")
        self.argument = argument
        self.reason = reason


class InvalidRecord(FirnError):
    """Bytes or records handed in by a client break the format or a limit; nothing was written."""

    def __init__(self, message: str, *, record_indexes: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.record_indexes = record_indexes
        """Which records of the batch are at fault, counted from 0; none if it is the batch."""


class LimitExceeded(InvalidRecord):
    """A client's record or batch is larger than the limit; nothing was written."""

    def __init__(
        self,
        what: str,
        size: int,
        limit: int,
        *,
        option: str = "",
        record_indexes: Sequence[int] = (),
        unit: str = "bytes",
    ) -> None:
        """`option` is the topic option or setting that raises the limit, if one does."""
        advice = f" ({option})" if option else ""
        verb = "is" if unit == "bytes" else "has"
        message = f"{what} {verb} {size:,} {unit}, the limit is {limit:,}{advice}"
        super().__init__(message, record_indexes=record_indexes)
        self.what = what
        self.size = size
        self.limit = limit
        self.option = option


class KeyRequired(InvalidRecord):
    """A record without a key came to a topic that keeps the newest record of each key."""

    def __init__(self, record_indexes: Sequence[int] = ()) -> None:
        super().__init__(
            "a record has no key, and the topic is compacted by key; give every record a key, "
            "or set cleanup.policy=delete",
            record_indexes=record_indexes,
        )


class InvalidTimestamp(InvalidRecord):
    """A record's timestamp lies further in the past or the future than the topic takes."""

    def __init__(
        self, timestamp_ms: int, now_ms: int, option: str, record_indexes: Sequence[int] = ()
    ) -> None:
        super().__init__(
            f"a record has the timestamp {timestamp_ms}, it is {now_ms} now, and the topic's "
            f"{option} is less than the difference",
            record_indexes=record_indexes,
        )
        self.timestamp_ms = timestamp_ms
        self.option = option


class Corruption(FirnError):
    """Stored bytes are not what was written. `where` names the file or shard."""

    def __init__(self, reason: str, *, where: str = "", position: int | None = None) -> None:
        place = f"{where or 'batch'}" + ("" if position is None else f" at byte {position:,}")
        super().__init__(f"{place}: {reason}")
        self.reason = reason
        self.where = where
        self.position = position


class InvalidField(Corruption):
    """A field of a stored object has an invalid value: the object is damaged or forged."""

    def __init__(self, field: str, reason: str, *, where: str) -> None:
        super().__init__(f"field {field}: {reason}", where=where)
        self.field = field


class OtherFormat(Corruption):
    """The stored data is from another version of this program, or from another program; nothing was
    changed."""


class ShardError(FirnError):
    """An error of one shard. `shard` is its name in storage, until a caller that knows the topic
    replaces it with the name that users know, by `call`."""

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

    def suggest(self, known: Iterable[str]) -> None:
        """Names the closest of the topics that there are. Best effort: of the first few
        hundred, so that an event loop may call it."""
        from difflib import get_close_matches

        if len(self.name) <= _SUGGESTED_NAME_MAX:
            closest = get_close_matches(self.name, islice(known, _SUGGESTED_COUNT_MAX), n=1)
            if closest:
                self.args = (f"{self}; did you mean {closest[0]}?",)


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


class TooManyShards(FirnError):
    """The node may not have so many shards; nothing was made."""

    def __init__(self, wanted: int, there: int, limit: int, *, shares_files: bool = False) -> None:
        setting = "shared_shard_count_max" if shares_files else "shard_count_max"
        super().__init__(
            f"{wanted:,} shards beside the {there:,} of other topics are more than the "
            f"{limit:,} that this node may have; delete topics, or raise {setting} in [store]"
        )
        self.wanted = wanted
        self.there = there
        self.limit = limit


class OffsetLimitReached(FirnError):
    """The node keeps no more committed offsets, of one client or of all; nothing was committed."""

    def __init__(self, unit: str, limit: int, client: str = "") -> None:
        """`unit` is groups or bytes. Without a client the limit is that of all clients."""
        whose = f"of {client}" if client else "of all clients"
        super().__init__(
            f"the limit of {limit:,} {unit} of committed offsets {whose} is reached; delete groups "
            "that are not needed, or raise the limit in [groups]"
        )
        self.unit = unit
        self.limit = limit
        self.client = client


class IndexDisabled(ShardError):
    """The query needs an index that the topic does not keep."""

    def __init__(self, index: str, shard: str) -> None:
        advice = (
            f"only a new topic can have one: with index.{index}=true if a Kafka client creates it, "
            "by default if firn topic create does"
        )
        super().__init__("", shard, f" keeps no {index} index; {advice}")
        self.index = index


class StorageFailed(ShardError):
    """The device refused. After a write or sync the shard is closed and reopens from disk on next
    use; after a read nothing has changed.

    What was acknowledged before stays. Whether the failed request is stored is unknown until the
    shard has reopened and its end offset can be read.
    """

    def __init__(self, shard: str, cause: BaseException) -> None:
        super().__init__("storage of ", shard, f" failed: {cause}")
        self.cause = cause
        self.is_outcome_unknown = False
        """Of a metadata transaction: it may have happened. Otherwise it has changed nothing."""


class DiskFull(StorageFailed):
    """The device is full. Free some space; appends work again without a restart."""


class NoTiering(FirnError):
    """The operation needs an object store, and none is configured."""

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


class NotLeader(ShardError):
    """The shard is another node's; nothing was changed. Ask its leader."""

    def __init__(self, shard: str, node: int, leader: int | None) -> None:
        """`node` was asked; `leader` is the one that it knows of, if any."""
        who = "no node leads it" if leader is None else f"node {leader} does"
        super().__init__(f"node {node} does not lead ", shard, f": {who}; try again")
        self.node = node
        self.leader = leader


class TooFewNodes(FirnError):
    """A topic cannot have so many replicas; nothing was made."""

    def __init__(self, factor: int, node_count: int) -> None:
        text = f"replication.factor {factor} needs as many nodes, and there are {node_count}"
        super().__init__(f"{text}; start more nodes, or ask for fewer replicas")
        self.factor = factor
        self.node_count = node_count


class NotEnoughReplicas(ShardError):
    """Too few replicas are in sync for an append with acks=all; nothing was changed. Try again."""

    def __init__(self, shard: str, in_sync: int, needed: int) -> None:
        super().__init__(
            "", shard, f" has {in_sync} replicas in sync, and {needed} are needed; try again"
        )
        self.in_sync = in_sync
        self.needed = needed


class NodeUnavailable(FirnError):
    """Another node cannot be asked now; nothing was sent to it. Try again."""

    def __init__(self, node: int, reason: str) -> None:
        super().__init__(f"node {node} cannot be reached: {reason}; try again")
        self.node = node
        self.reason = reason


class Closed(FirnError):
    """The store, engine or pool has been closed."""


class NoObjectStore(ShardError):
    """A segment is only in the object store, and this process was not told of one."""

    def __init__(self, shard: str, seq: int) -> None:
        super().__init__(
            f"segment {seq} of ",
            shard,
            " is only in the object store, and the process that has the data directory open (the "
            "node, if one serves it) was started without one: start it with the URL in "
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


class SeveralProcesses(FirnError):
    """The data directory belongs to several processes, and one alone does not open it."""

    def __init__(self, path: str, count: int) -> None:
        super().__init__(
            f"{path} belongs to {count} processes: serve it with --processes {count}, and commands "
            "go through them"
        )
        self.path = path
        self.count = count


class CannotListen(FirnError):
    """A listener's address is taken, not allowed, or not one of this machine."""

    def __init__(
        self,
        setting: str,
        host: str,
        port: int,
        cause: OSError,
        *,
        other: CannotListen | None = None,
    ) -> None:
        """`setting` is the section with `host` and `port`, such as kafka. `other` is what is wrong
        with the node's other listener."""
        reason, advice = {
            errno.EADDRINUSE: (
                "another program listens there",
                f"stop it, or set {setting}.port to another port (0: any free port)",
            ),
            errno.EACCES: (
                "this user may not use that port",
                f"set {setting}.port to a port from 1024 on",
            ),
            errno.EADDRNOTAVAIL: (
                "this machine does not have that address",
                f"set {setting}.host to an address of this machine, or to 0.0.0.0 for all",
            ),
        }.get(cause.errno or 0, (cause.strerror or str(cause), f"check {setting}.host"))
        text = f"cannot listen on {host}:{port}: {reason}; {advice}"
        super().__init__(text if other is None else f"{text}; and {other}")
        self.setting = setting
        self.host = host
        self.port = port
        self.cause = cause
        self.other = other


class PortsTaken(FirnError):
    """Other programs have some of the Kafka ports of several processes."""

    def __init__(self, host: str, taken: Sequence[int], first: int, count: int) -> None:
        shown = ", ".join(map(str, taken))
        super().__init__(
            f"other programs listen on {host}:{shown}; {count} processes need the ports {first} to "
            f"{first + count - 1}: stop those programs, or set kafka.port to the first of {count} "
            "free ports (0: any free ports)"
        )
        self.host = host
        self.taken = taken


class TimedOut(FirnError):
    """No answer within the time allowed. For a write that means unknown, not failed."""


class AppendTimedOut(TimedOut):
    """An append was not acknowledged by its deadline."""

    def __init__(self, *, is_unknown: bool) -> None:
        super().__init__(
            "the append was not acknowledged by its deadline: whether it is stored is unknown"
            if is_unknown
            else "the append waited until its deadline: nothing of it is stored"
        )
        self.is_unknown = is_unknown
        """Whether the records may be stored all the same."""


class PeerTimedOut(TimedOut):
    """Another node was asked and has not answered: whether it did what was asked is unknown."""

    def __init__(self, node: int, reason: str) -> None:
        super().__init__(f"node {node} gave no answer: {reason}; the outcome is unknown")
        self.node = node
        self.reason = reason


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


class AuthorizationOff(FirnError):
    """The node decides by no rules, so clients cannot change them."""

    def __init__(self) -> None:
        super().__init__("this node has no authorizer; security.authorization turns it on")


class TooManyRules(FirnError):
    """The rules would be more than there may be; none of the request's was added."""

    def __init__(self, count: int, limit: int) -> None:
        super().__init__(
            f"there would be {count:,} rules, at most {limit:,} fit; rules with prefixes or "
            "for User:* replace many others"
        )
        self.count = count
        self.limit = limit


def storage_failure(shard: str, cause: BaseException) -> StorageFailed:
    """The right StorageFailed for an error of the operating system."""
    full_disk = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(cause, DiskFull) or (isinstance(cause, OSError) and cause.errno in full_disk):
        return DiskFull(shard, cause)
    return StorageFailed(shard, cause)
