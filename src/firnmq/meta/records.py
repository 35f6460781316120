"""Keys and values of the meta store; values are msgpack maps. docs/formats/meta.md describes them.

The records are those of a cluster: a segment names its leader, its replicas and its in-sync
replicas, even if all of them are the same single node.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from typing import TypeVar

import msgspec

from firnmq.config import TopicConfig
from firnmq.engines.catalog.segments import Medium, SegmentState
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import Corruption, InvalidArgument
from firnmq.meta.api import Entry

TOPICS, SHARDS, SEGMENTS, NODES = "topics/", "shards/", "segments/", "nodes/"
RANGES = "ranges/"
TIER_GRAVES = "tier_graves/"
LAKE = "lake/"
OFFSETS = "offsets/"
RULES = "rules/"
QUOTAS = "quotas/"
USERS = "users/"
MEMBERS = "members/"
COORDINATORS = "coordinators/"
CORDONS = "cordons/"
LOADS = "loads/"
CLUSTER = "cluster"
INCARNATIONS = "incarnations/"
NEXT_UID = "counters/next_shard_uid"
NEXT_PRODUCER_ID = "counters/next_producer_id"

T = TypeVar("T", bound=msgspec.Struct)


class TopicState(Enum):
    CREATING = "creating"
    """Its shards are being made."""
    READY = "ready"
    DELETING = "deleting"
    """Its shards are being removed."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A value. A field with a default may be absent; an unknown field is ignored."""


class TopicRecord(Record, frozen=True, kw_only=True):
    name: str
    topic_id: str
    shard_count: int
    options: dict[str, str | None]
    """Every option as text, None for no limit. Defaults are included, so that later defaults do not
    change an existing topic."""
    created_ms: int
    state: TopicState
    is_placed: bool = False
    """The controller makes and removes its shards; otherwise the node that registered it does."""
    was_ready: bool = False
    """Of a topic that is placed: its shards may have records."""

    @property
    def is_for_controller(self) -> bool:
        """Whether the controller has something to do."""
        return self.is_placed and self.state is not TopicState.READY

    def config(self) -> TopicConfig:
        return config_of(self.options, topic_key(self.name))


class ShardRecord(Record, frozen=True, kw_only=True):
    name: str
    uid: int
    """The shard's number in the key-value store; never reused."""
    active: int
    """The active segment."""
    epoch: int = 0
    """Goes up when the leader changes, and is written into batches."""
    leader: int = 0
    """The node of the active segment; 0 where the store is of one node."""
    start: int = 0
    """First readable offset."""
    topic_id: str | None = None
    """The topic whose options count."""
    options: dict[str, str | None] | None = None
    """Of a shard without a topic."""


class RangeRecord(Record, frozen=True, kw_only=True):
    """Shards of a topic with consecutive numbers, on a store of one node. Each has records of its
    own from its first roll, or move of its start, on; until then it is as this says."""

    topic_id: str
    first_seq: int
    first_uid: int
    count: int
    created_ms: int
    medium: Medium
    """Of the shards' first segments."""


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """A registered node."""

    node: int
    incarnation: int


class SegmentRecord(Record, frozen=True, kw_only=True):
    """Offsets are half-open: [start, end). Fields that only sealing sets have defaults."""

    state: SegmentState
    epoch: int
    """Goes up with every change; a change names the epoch that it read."""
    leader: int
    replicas: tuple[int, ...]
    isr: tuple[Replica, ...]
    start: int
    created_ms: int
    leader_epoch: int = 0
    """The shard's epoch when the segment was opened: its batches name it."""
    fence: int = 0
    """Of a segment with more than one replica: goes up when leadership is taken away."""
    opened: tuple[Replica, ...] = ()
    """Of such a segment: the incarnation of every replica when it was opened."""
    lossy: bool = False
    """Sealed though too few replicas were known to have kept everything."""
    medium: Medium = Medium.NATIVE
    end: int = -1
    length: int = 0
    crc: int = 0
    """CRC32C of all bytes."""
    max_timestamp: int = -1
    sealed_ms: int = -1
    first_expiry_ms: int = 0
    """No record expires by its own header before this."""
    slot: int = 0
    """Which of its two slots holds the bytes and the indexes; compaction writes the other."""
    compacted_ms: int = -1
    """Since when it holds at most one record of each key; -1: it may hold more."""
    has_gaps: bool = False
    """Records were removed, so its batches need not be contiguous."""
    tombstone_count: int = 0
    """Tombstones that compaction has kept."""
    transactions: tuple[tuple[int, int, int], ...] = ()
    """Open at the end: producer id, epoch, first offset."""
    producers: tuple[tuple[int, bytes], ...] = ()
    """Of an earlier version: idempotent producers at the end, by id, in their stored form."""
    tier: TierCopy | None = None
    """Its copy in the object store, in progress or finished."""
    is_local: bool = True
    """Whether any node has bytes and indexes; otherwise they are only in the object store."""

    @property
    def holders(self) -> tuple[int, ...]:
        """The nodes that have bytes and indexes. An earlier version did not empty `replicas`."""
        return self.replicas if self.is_local else ()


class GraveRecord(Record, frozen=True, kw_only=True):
    """A copy in the object store whose shard was deleted; removed with its objects."""

    shard: str
    seq: int
    tier: TierCopy
    length: int
    buried_ms: int


class LakeRecord(Record, frozen=True, kw_only=True):
    """How many of a shard's records are in its topic's table."""

    end: int
    """First offset that is not in the table."""
    changed_ms: int


class OffsetRecord(Record, frozen=True, kw_only=True):
    """A group's committed offset in a shard."""

    offset: int
    metadata: str = ""
    committed_ms: int = 0


class RuleRecord(Record, frozen=True, kw_only=True):
    """Who may do what: one rule, its fields as words in lower case where Kafka has numbers."""

    resource_type: str
    pattern: str
    name: str
    principal: str
    host: str
    operation: str
    permission: str


class QuotaRecord(Record, frozen=True, kw_only=True):
    """What clients may do per second: for whom, and the values by Kafka's names."""

    entity: dict[str, str | None]
    """By `user`, `client-id` or `ip`; None stands for all that have none of their own."""
    limits: dict[str, float]


class UserEntry(Record, frozen=True, kw_only=True):
    """What a cluster keeps of a user of the Kafka listeners: a row as a node that is alone has
    it."""

    key: bytes
    value: bytes


class NodeRecord(Record, frozen=True, kw_only=True):
    """A node that is there. In a cluster it belongs to the node's session."""

    node: int
    incarnation: int
    registered_ms: int
    kafka: str = ""
    """Where Kafka clients reach it, HOST:PORT."""
    peers: str = ""
    """Where other nodes reach it, HOST:PORT."""
    http: str = ""
    """URL of its HTTP listener, if it has one."""


class ClusterRecord(Record, frozen=True, kw_only=True):
    """What all nodes of a cluster share."""

    cluster_id: str
    secret: bytes
    """Nodes prove to each other that they know it."""
    made_ms: int


class MemberRecord(Record, frozen=True, kw_only=True):
    """A node that belongs to the cluster, whether it is there or not."""

    node: int
    directory_id: str
    """Of its data directory: no other one may take its place."""
    joined_ms: int
    kafka: str = ""
    """Where Kafka clients reach it, or reached it last, HOST:PORT."""


class MarkRecord(Record, frozen=True, kw_only=True):
    """How new a node's directory is at least."""

    node: int
    incarnation: int
    mark: int
    """Goes up while this incarnation stores something; the directory had it before."""
    renewed_ms: int


class CordonRecord(Record, frozen=True, kw_only=True):
    """A node that is to get no shards."""

    node: int
    since_ms: int


class LoadRecord(Record, frozen=True, kw_only=True):
    """How much a node holds, as it told last. It belongs to the node's session."""

    node: int
    stored_bytes: int
    free_bytes: int
    """Of its disk."""


class CoordinatorRecord(Record, frozen=True, kw_only=True):
    """Which node keeps the groups and transactional ids of a slot."""

    node: int


class Incarnation(Record, frozen=True, kw_only=True):
    """Kept when the node is removed, so that its next incarnation is higher."""

    incarnation: int


class Counter(Record, frozen=True, kw_only=True):
    value: int


def topic_key(name: str) -> str:
    return f"{TOPICS}{name}"


def shard_key(name: str) -> str:
    return f"{SHARDS}{name}"


def range_key(topic_id: str, first_seq: int) -> str:
    return f"{RANGES}{topic_id}/{first_seq:06d}"


def lake_key(shard: str) -> str:
    return f"{LAKE}{shard}"


def rule_key(record: RuleRecord) -> str:
    """The same for the same rule: a rule is there once, however often it is added."""
    return f"{RULES}{hashlib.sha256(encode(record)).hexdigest()}"


def quota_key(entity: dict[str, str | None]) -> str:
    """Names may have any characters, keys only few."""
    named = repr(sorted(entity.items()))
    return f"{QUOTAS}{hashlib.sha256(named.encode()).hexdigest()}"


def segments_prefix(shard: str) -> str:
    return f"{SEGMENTS}{shard}/"


def segment_key(shard: str, seq: int) -> str:
    return f"{SEGMENTS}{shard}/{seq:010d}"


def segment_seq_of(key: str) -> int:
    return int(key.rsplit("/", 1)[1])


def shard_of_segment(key: str) -> str:
    return key.removeprefix(SEGMENTS).rpartition("/")[0]


def node_key(node: int) -> str:
    return f"{NODES}{node:010d}"


def member_key(node: int) -> str:
    return f"{MEMBERS}{node:010d}"


def cordon_key(node: int) -> str:
    return f"{CORDONS}{node:010d}"


def load_key(node: int) -> str:
    return f"{LOADS}{node:010d}"


def mark_key(node: int) -> str:
    return f"marks/{node:010d}"


def coordinator_key(slot: int) -> str:
    return f"{COORDINATORS}{slot:04d}"


def topic_claim_key(name: str) -> str:
    return f"claims/topics/{name}"


def incarnation_key(node: int) -> str:
    return f"{INCARNATIONS}{node:010d}"


def encode(record: Record) -> bytes:
    return msgspec.msgpack.encode(record)


def decode(entry: Entry, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(entry.value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=f"metadata {entry.key}") from error


def config_of(options: dict[str, str | None], where: str) -> TopicConfig:
    try:
        return TopicConfig.from_options(options)
    except InvalidArgument as error:
        raise Corruption(str(error), where=f"metadata {where}") from error
