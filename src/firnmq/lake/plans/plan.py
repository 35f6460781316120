"""What of a topic there is to read, and from where: the plan that a node or a bucket gives.

A plan is a document (JSON by msgspec), so that a driver can fetch it from a node by HTTP and send
parts of it to executors. It names every segment with all places its bytes may be had from: a file
of the node's machine, objects of the store, and the node itself, which is asked by offset where no
other place has them. It holds no credentials.
"""

from __future__ import annotations

import msgspec

OFFSET_END = 2**63 - 1


class Wanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a reader wants. A plan leaves out what cannot have it; readers drop the other rows."""

    shards: tuple[int, ...] | None = None
    start_offsets: dict[int, int] = {}
    """Shard → first offset wanted; from the beginning where there is none."""
    end_offsets: dict[int, int] = {}
    """Shard → first offset no longer wanted; to the end where there is none."""
    min_timestamp_ms: int | None = None
    """Only records with this timestamp or a later one."""
    end_timestamp_ms: int | None = None
    """Only records with an earlier timestamp than this."""
    keys: tuple[bytes, ...] | None = None
    """Only records with one of these keys."""
    tags: tuple[str, ...] | None = None
    """Only records with at least one of these tags."""
    is_durable: bool = False
    """Only records that survive a power failure: unless durability is fsync, records that are
    synced before the plan is made. For readers that store offsets, which the log must not lose."""


class ObjectPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A segment's verified copy in the object store."""

    key: str
    """Without suffix (.seg, .idx)."""
    index_length: int
    index_head_length: int


class SegmentPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One segment, or the part of it that is wanted: offsets [base_offset, end_offset)."""

    base_offset: int
    end_offset: int
    is_sealed: bool
    length: int
    """Bytes from `position` on; of an active segment those at the moment of the plan."""
    position: int = 0
    """Position of the batch of `base_offset` in the file or object."""
    crc: int | None = None
    """CRC32C of all bytes of a sealed one, where this is all of it."""
    max_timestamp_ms: int = -1
    """-1: not known."""
    has_gaps: bool = False
    """Records were removed by compaction: batches need not follow each other."""
    path: str | None = None
    """A file on the node's machine that has its bytes, if there is one."""
    file_id: str | None = None
    """Tells that file from others of the same name (see lake/plans/machine.py)."""
    file_length: int | None = None
    """What a sealed segment's file has in all."""
    object: ObjectPlace | None = None
    points: tuple[tuple[int, int], ...] = ()
    """Offset and position of some batches in a large segment, where it may be divided."""


class AbortedRange(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Records of this producer in [first_offset, marker_offset) were never committed."""

    producer_id: int
    first_offset: int
    marker_offset: int


class ShardPlan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    shard: int
    start_offset: int
    end_offset: int
    """End of what may be read: nothing beyond it is durable or decided (open transactions)."""
    leader: str | None = None
    """host:port of the Kafka listener that serves it; None: no node is running."""
    segments: tuple[SegmentPlan, ...] = ()
    """In order, without segments that certainly hold nothing wanted."""
    holes: tuple[int, ...] = ()
    """Offsets of deleted records."""
    dead_keys: tuple[tuple[bytes, int], ...] = ()
    """Records with the key and an offset below the number are deleted."""
    aborted: tuple[AbortedRange, ...] = ()
    """Those that overlap the plan's segments."""
    retired: str | None = None
    """Which of these deletions the node keeps for the table alone, in its own words: to be told
    when they are applied there. None: it keeps none for this shard."""


class StorePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where objects are. Credentials come from the reader's own options or environment."""

    url: str
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False


def is_rest(catalog: str) -> bool:
    """Whether it is the address of a catalog that is asked by HTTP."""
    return catalog.startswith(("http://", "https://"))


class TablePlace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the topic's Iceberg table is, or would be."""

    catalog: str
    """`sqlite:////path/catalog.db`, or the http(s) address of a REST catalog."""
    warehouse: str
    """URL of the folder that holds the tables: file:// or s3://. What a REST catalog calls one of
    its own, or empty: the one that it has."""
    name: str
    """`topics.clicks`."""


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    cluster: str
    topic: str
    topic_id: str
    made_ms: int
    options: dict[str, str | None]
    """The topic's, as text; readers need tag.headers, expire.header and ttl.ms."""
    machine: str | None = None
    """Identity of the machine the paths are of (see lake/plans/machine.py)."""
    store: StorePlace | None = None
    table: TablePlace | None = None
    no_table_because: str | None = None
    """Why the table's location is unknown: the node's HTTP listener could not be reached."""
    shards: tuple[ShardPlan, ...] = ()


class Split(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A task's part of one shard: neighbouring segments, and the fields of the plan that it needs.

    Offsets [start_offset, end_offset) of the shard are read by this split and no other.
    """

    topic: str
    topic_id: str
    shard: int
    start_offset: int
    end_offset: int
    segments: tuple[SegmentPlan, ...]
    """Empty: ask the leader for everything."""
    leader: str | None
    machine: str | None
    store: StorePlace | None
    options: dict[str, str | None]
    holes: tuple[int, ...] = ()
    dead_keys: tuple[tuple[bytes, int], ...] = ()
    aborted: tuple[AbortedRange, ...] = ()

    @property
    def length(self) -> int:
        return sum(segment.length for segment in self.segments)
