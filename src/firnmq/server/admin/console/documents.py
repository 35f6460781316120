"""Documents of the console's views: pages of long lists, and what a curve is drawn from."""

from __future__ import annotations

from typing import Any

import msgspec

from firnmq.server.documents import (
    AccessRule,
    GroupOffset,
    GroupSummary,
    NodeStatus,
    Readiness,
    Segment,
    StoredRecord,
    TopicSummary,
)


class NewSession(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    token: str = ""
    """A bearer token of the listener; not needed if it requires none."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, and what the listener allows."""

    name: str
    role: str
    """read, operate or administer."""
    needs_token: bool
    version: str
    cluster: bool
    """Whether the node is one of a cluster."""
    proof: str | None = None
    """Only told by the request that opens the session: the header x-firn-proof of the others."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What happened in the seconds before a moment; rates are per second."""

    time_ms: int
    received_bytes_rate: float
    """From Kafka clients."""
    sent_bytes_rate: float
    request_rate: float
    append_rate: float
    """Appends, each of one batch or several."""
    fetched_record_rate: float
    cpu_share: float
    """Of one core."""
    connection_count: int
    disk_free_bytes: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    status: NodeStatus
    readiness: Readiness
    samples: list[Sample]
    """Those that were not sent before, oldest first."""


class TopicRow(TopicSummary, frozen=True, kw_only=True):
    """A topic in a list."""

    record_count: int | None = None
    """Offsets from start to end. None if another system keeps them, or a shard cannot be opened."""
    length_bytes: int | None = None
    store_only_bytes: int | None = None
    """What of it is only in the object store."""
    record_rate: float | None = None
    """Records stored per second, of late."""
    lag: int | None = None
    """The greatest lag of a group."""
    lag_group: str | None = None
    """The group that has it."""
    failure: str | None = None
    """Why a shard cannot be opened."""


class TopicPage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    """Of all that fit the filter."""
    rows: list[TopicRow]


class GroupRow(GroupSummary, frozen=True, kw_only=True):
    """A group in a list."""

    lag: int
    """Records of all shards that the group has committed and not read."""
    shard_count: int
    """Shards with a committed offset."""
    topics: list[str]
    """At most five of their topics."""
    committed_ms: int | None
    """The last commit."""
    lag_rate: float | None = None
    """How the lag changes, in records per second, of late."""
    why: str | None = None
    """Why it lags; None if it does not."""


class GroupShard(GroupOffset, frozen=True, kw_only=True):
    """How far a group is in a shard, and why it is not further."""

    client: str | None = None
    """Name and address of the member that reads it."""
    why: str | None = None


class GroupPage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    lagging: int
    """Groups of all that have a lag."""
    rows: list[GroupRow]


class GroupShardPage(msgspec.Struct, frozen=True, kw_only=True):
    """A group's shards."""

    total: int
    lag: int
    """Of all its shards."""
    topics: list[str]
    rows: list[GroupShard]


class SegmentPage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    rows: list[Segment]


class PlaceRun(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring segments of a shard that are in the same place."""

    place: str
    """active; sealed: here and not in the store; both: here and in the store; store: only there;
    mixed: of a shard with very many runs."""
    segment_count: int
    length_bytes: int
    base_offset: int
    end_offset: int


class ShardPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a shard's records are."""

    shard: int
    start_offset: int | None = None
    end_offset: int | None = None
    length_bytes: int | None = None
    store_only_bytes: int | None = None
    segment_count: int | None = None
    failure: str | None = None
    table_end: int | None = None
    """Records below it are in the topic's table; None where there is none."""
    leader: int | None = None
    """Its node, in a cluster."""
    replicas: list[int] = []
    """Nodes that are to have the active segment."""
    in_sync: list[int] = []
    """Those of them that have all that is acknowledged."""
    runs: list[PlaceRun] = []
    """In the order of offsets; at most 200, neighbours being joined beyond that."""


class TopicPlaces(msgspec.Struct, frozen=True, kw_only=True):
    topic: str
    shard_count: int
    shards: list[ShardPlaces]


class BrowsedRecord(StoredRecord, frozen=True, kw_only=True):
    """A record whose value may be shortened."""

    value_length: int | None = None
    """Bytes of the whole value; None without one."""
    is_shortened: bool = False


class RecordPage(msgspec.Struct, frozen=True, kw_only=True):
    records: list[BrowsedRecord]
    next: str | None = None
    """The parameter `cursor` of the page after this one; None at the end."""
    note: str | None = None
    """What of the topic was not looked at."""


class Tailed(msgspec.Struct, frozen=True, kw_only=True):
    """Records that were stored just now."""

    records: list[BrowsedRecord]
    skipped: int = 0
    """Records that came with them and are not shown: more than a reader can follow."""


class RulePage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    rows: list[AccessRule]


class UserPage(msgspec.Struct, frozen=True, kw_only=True):
    total: int
    rows: list[str]


class OptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An option of a topic."""

    name: str
    value: str | None
    default: str | None
    """Of this node, for new topics."""
    text: str
    """What it is for."""
    is_fixed: bool = False
    """Whether it can only be given when the topic is made."""


class SqlQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: str
    max: int = 200


class SqlRows(msgspec.Struct, frozen=True, kw_only=True):
    columns: list[str]
    rows: list[list[Any]]
    has_more: bool
    seconds: float


class SqlReady(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the node answers SQL."""

    available: bool
    reason: str | None = None
    """Why not."""
