"""What operators are shown, by HTTP and by the command line alike: one class per document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    from firnmq.adapter import Topic, Written
    from firnmq.engines import ShardStatus
    from firnmq.health import Problem
from firnmq.server.replication_documents import ReplicationStatus


class CommandLine(msgspec.Struct, frozen=True, kw_only=True):
    """A `firn read` that the launcher asks the node to answer."""

    version: str
    """The launcher's; a node of another version might print something else."""
    device: int
    inode: int
    """The data directory that the launcher found: the node serves it, or another one by now."""
    data: str | None
    """What the launcher took for the value of --data."""
    is_terminal: bool
    """Whether standard output is a terminal."""
    arguments: list[str]
    """What follows `firn read`."""


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    topic_id: str
    shard_count: int
    storage_type: str
    created_ms: int

    @classmethod
    def of(cls, topic: Topic) -> TopicSummary:
        return cls(**_summary(topic))


class ShardSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard stands; bytes and segments only where an engine of ours keeps it."""

    shard: int
    start_offset: int | None = None
    """None if the shard cannot be opened."""
    end_offset: int | None = None
    length_bytes: int | None = None
    segment_count: int | None = None
    store_only_bytes: int | None = None
    """What of it is only in the object store."""
    quorum_mark: int | None = None
    """Of a shard with replicas: most of them have the records below; those below `end_offset`, the
    high watermark, can be read."""
    failure: str | None = None

    @classmethod
    def of(cls, seq: int, status: ShardStatus) -> ShardSummary:
        return cls(
            shard=seq,
            start_offset=status.start_offset,
            end_offset=status.end_offset,
            length_bytes=status.length_bytes,
            segment_count=len(status.segments),
            store_only_bytes=sum(each.length for each in status.segments if not each.is_on_nodes),
            quorum_mark=status.quorum_mark,
            failure=status.failure,
        )


class TopicDescription(TopicSummary, frozen=True, kw_only=True):
    options: dict[str, str | None]
    shards: list[ShardSummary]

    @classmethod
    def described(cls, topic: Topic, shards: list[ShardSummary]) -> TopicDescription:
        return cls(**_summary(topic), options=topic.config.options(), shards=shards)


def _summary(topic: Topic) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "shard_count": topic.shard_count,
        "storage_type": topic.config.storage_type,
        "created_ms": topic.created_ms,
    }


class NewTopic(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    topic: str
    shard_count: int = 1
    options: dict[str, str | int | float | bool | None] = {}


class TopicDeleted(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    deleted: bool = True


class TopicOptions(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    options: dict[str, str | None]


class OptionChanges(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options to set; null puts one back to the node's default."""

    options: dict[str, str | int | float | bool | None]
    dry_run: bool = False


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    shard: int
    segment_seq: int
    state: str
    medium: str
    is_local: bool
    """Whether nodes have the bytes; otherwise they are only in the object store."""
    holders: list[int]
    """The nodes that have them; empty if the node is alone."""
    object_key: str | None
    """Its objects' name in the object store, without suffix, if a copy is there or under way."""
    base_offset: int
    end_offset: int
    length_bytes: int
    crc: str | None
    created_ms: int
    sealed_ms: int | None
    compacted_ms: int | None


def segments_of(topic: str, seq: int, status: ShardStatus) -> list[Segment]:
    active_bytes = status.length_bytes
    segments: list[Segment] = []
    for meta in status.segments:
        is_sealed = meta.is_sealed
        active_bytes -= meta.length if is_sealed else 0
        segments.append(
            Segment(
                topic=topic,
                shard=seq,
                segment_seq=meta.seq,
                state=meta.state.value,
                medium=meta.medium.value,
                is_local=meta.is_on_nodes,
                holders=list(meta.holders),
                object_key=None if meta.tier is None else meta.tier.key,
                base_offset=meta.base_offset,
                end_offset=meta.end_offset if is_sealed else status.end_offset,
                length_bytes=meta.length if is_sealed else active_bytes,
                crc=f"{meta.crc:08x}" if is_sealed else None,
                created_ms=meta.created_ms,
                sealed_ms=meta.sealed_ms if is_sealed else None,
                compacted_ms=meta.compacted_ms if meta.is_compacted else None,
            )
        )
    return segments


class StoredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record and where it is stored. A key or value that is not UTF-8 is in the field whose name
    ends in `_base64`."""

    topic: str
    shard: int
    offset: int
    timestamp_ms: int
    key: str | None = None
    key_base64: str | None = None
    value: str | None = None
    value_base64: str | None = None
    tags: list[str] = []
    headers: list[dict[str, str | None]] = []
    expire_at_ms: int | None = None


RECORDS_MAX = 10_000
"""Records of one request. The event loop appends them in one step of about 0.1 s."""


class NewRecords(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    records: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=RECORDS_MAX)]
    shard: int | None = None


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """Where records were stored: [base_offset, next_offset)."""

    topic: str
    shard: int
    base_offset: int
    next_offset: int
    record_count: int

    @classmethod
    def of(cls, topic: str, written: Written) -> Placement:
        return cls(
            topic=topic,
            shard=written.shard,
            base_offset=written.base_offset,
            next_offset=written.next_offset,
            record_count=written.next_offset - written.base_offset,
        )


class Deletion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which records to delete: those of a key, those at offsets, or those before one."""

    key: str | None = None
    """All that the key has so far."""
    key_base64: str | None = None
    """Instead of `key`, for one that is not UTF-8."""
    offsets: list[int] | None = None
    before: int | None = None
    """Where the shard is to start; its end, if nothing is to be left."""
    shard: int | None = None
    """Needed with `offsets` and `before`, unless the topic has only one shard. Without it, a key's
    records are deleted in all shards: the producers, and the former number of shards, decide which
    shards hold some."""


class ShardDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted of a shard, and where it stands."""

    topic: str
    shard: int
    start_offset: int
    end_offset: int
    deleted: bool | None
    """False if the log had nothing of it (a table of the topic may have, and loses it at its next
    sync all the same); null if the topic's storage does not tell. A key
    counts as deleted also where it takes a look at every record to know: in a topic without an
    index of keys, and in what is only in the object store."""
    offsets: list[int] | None = None
    """By offset: those that had not been deleted before and are not below the start."""
    key_below: int | None = None
    """By key: all its records below this offset are deleted. Later ones are not, nor are those of
    transactions that had not ended; the first of these begins here."""
    start_before: int | None = None
    """Before an offset: where the shard started until now."""


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    state: str
    protocol_type: str
    member_count: int


class GroupMember(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str


class GroupOffset(msgspec.Struct, frozen=True, kw_only=True):
    """How far a group is in a shard; `lag` is what it has not read yet."""

    topic: str
    shard: int
    committed_offset: int | None
    start_offset: int
    end_offset: int
    lag: int | None
    committed_ms: int | None
    metadata: str | None
    member_id: str | None


class GroupDescription(GroupSummary, frozen=True, kw_only=True):
    generation: int
    protocol: str
    leader: str
    members: list[GroupMember]
    offsets: list[GroupOffset]


class OffsetReset(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`to` is earliest, latest, offset, time or shift; the last three need a `value`."""

    topic: str
    to: str
    value: int | None = None
    shards: list[int] | None = None
    dry_run: bool = False


class OffsetMoved(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    topic: str
    shard: int
    before: int | None
    after: int
    start_offset: int
    end_offset: int
    dry_run: bool


class GroupDeleted(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    deleted: bool = True


class User(msgspec.Struct, frozen=True, kw_only=True):
    user: str


class NewPassword(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    password: str


class UserChanged(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    change: str
    """added, changed or removed."""


class AccessRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may do what."""

    principal: str
    """`User:ann`, or `User:*`."""
    operation: str
    """all, read, write, create, delete, alter, describe, cluster_action, describe_configs,
    alter_configs, idempotent_write."""
    resource_type: str
    """topic, group, transactional_id or cluster."""
    name: str
    """Of the resource; `*` is every name, `kafka-cluster` the cluster."""
    pattern: str = "literal"
    """literal, or prefixed: every name that begins with this one."""
    host: str = "*"
    """An IP address, or `*`."""
    permission: str = "allow"
    """allow or deny."""


class NewRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rules: list[AccessRule]


class RulesAdded(msgspec.Struct, frozen=True, kw_only=True):
    added: int
    """How many were not there before."""


class RuleSelection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which rules are meant; without any field `all` must be true."""

    principal: str | None = None
    operation: str | None = None
    resource_type: str | None = None
    name: str | None = None
    pattern: str | None = None
    host: str | None = None
    permission: str | None = None
    all: bool = False


class UploadRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which waiting segments are to be uploaded now, without their delay."""

    topic: str | None = None
    """All topics if none is given."""
    roll: bool = False
    """Seal active segments first, so that everything written so far is uploaded."""


class UploadsRequested(msgspec.Struct, frozen=True, kw_only=True):
    segment_count: int


class ScrubRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    dry_run: bool = True
    """Only look."""
    grace_ms: int | None = None
    """Orphans younger than this stay; the node's setting if none is given."""


class LakeProgress(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """How far a topic's records are in its table."""

    topic_id: str
    ends: dict[int, int]
    """Shard → first offset that is not in the table."""
    applied: dict[int, str] = {}
    """Shard → what a plan had as `retired`, once all its deletions below that offset are applied to
    the table. They are forgotten then."""
    retired_counts: dict[int, int] = {}
    """Shard → deletions that are kept for the table alone. Only told, for shards that have some."""


class StorageProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is wrong with a node's storage now."""

    kind: str
    """shard_failed, segment_unreadable, object_store_missing, database_failed or disk_full."""
    subject: str
    reason: str
    effect: str
    since_ms: int

    @classmethod
    def of(cls, problem: Problem) -> StorageProblem:
        return cls(
            kind=problem.kind.value,
            subject=problem.shown or "the node",
            reason=problem.reason,
            effect=problem.kind.effect,
            since_ms=problem.since_ms,
        )


class ProcessStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One of several processes of a machine."""

    process: int
    node_id: int
    state: str
    """ready, failing, stopping or away."""
    kafka: str = ""
    started_ms: int = 0
    leaders: int = 0
    """Shards that it leads."""
    stored_bytes: int = 0
    connection_count: int = 0
    queued_requests: int = 0


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    version: str
    node_id: int
    cluster_id: str
    kafka: str
    tls: bool
    sasl_mechanisms: list[str]
    data: str
    durability: str
    """Of topics that do not say otherwise."""
    started_ms: int
    topic_count: int
    shard_count: int
    group_count: int
    connection_count: int
    bytes_in_flight: int
    queued_requests: int
    queued_bytes: int
    disk_free_bytes: int
    tiering: str | None = None
    """How the object store is: `ok`, `unknown`, or the kind of failure; None without one."""
    problems: list[StorageProblem] = []
    """What is wrong with the storage, oldest first, at most a hundred."""
    processes: list[ProcessStatus] = []
    """Of a machine that is served by several; the numbers above are then those of all together."""


class ClusterNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node that belongs to a cluster."""

    node: int
    state: str
    """here, registered or away."""
    incarnation: int
    """How often it was started; 0 while it is away."""
    registered_ms: int
    leaders: int
    """Shards that it leads; while it is away, so are they."""
    stored_bytes: int | None = None
    """Of segments that it holds. An active one counts once it was used since the node's start. None
    if the node does not answer."""
    coordinator_slots: int
    """Of 64, over which groups are spread; those without a node get one when they are used."""
    cordoned: bool = False
    """Whether it gets no shards any more."""
    free_bytes: int | None = None
    """Of its disk, as it told within the last minute."""
    kafka: str
    http: str


class NewLeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: int
    """The node that is to lead the shard."""


class ShardMoved(msgspec.Struct, frozen=True, kw_only=True):
    """A shard that another node leads now; nothing was copied."""

    topic: str
    shard: int
    source: int
    """The node that led it."""
    target: int
    error: str | None = None
    """Why it has not moved, if so."""


class RebalanceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: int | None = None
    """Only shards that this node leads."""
    dry_run: bool = False
    """Only say what would move."""


class Rebalanced(msgspec.Struct, frozen=True, kw_only=True):
    moves: list[ShardMoved]
    """Those of this call, or with `dry_run` those to come, at most a hundred."""
    left_count: int
    """Moves for the next calls, at most a hundred."""


class NodeCordon(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    cordoned: bool
    """Whether the node is to get no shards any more."""


class NodeStays(msgspec.Struct, frozen=True, kw_only=True):
    """What a node leads and holds."""

    node: int
    cordoned: bool
    movable_count: int
    """Shards that it leads and that can move."""
    pinned_count: int
    """Shards that it leads and that cannot: of memory and RocksDB."""
    pinned: list[str]
    """At most a hundred of them."""
    held_segments: int
    """Sealed segments that no other node has; they stay."""
    held_bytes: int
    coordinator_slots: int
    """Of 64, over which groups are spread; they stay."""


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    cluster_id: str
    meta: str
    """What keeps the metadata: etcd or sqlite."""
    revision: int
    """Of the metadata, as far as the answering node has it."""
    shard_count: int
    nodes: list[ClusterNode]
    replication: ReplicationStatus


class Readiness(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    """live, ready, stopping or failing."""
    reasons: list[str] = []
    """Why it is not ready: each kind of problem with how many there are. No token is needed to read
    this, so nothing is named; `/v1/node` names it."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """What every refused request gets: the kind of the error and what it says."""

    error: str
    message: str
