"""Manifests: JSON objects from which segments, shards and topics are found again.

All have the same frame, `{"format", "version", "crc32c", "body"}`, the CRC being that of the body's
bytes as they stand. docs/formats/tiered-objects.md describes them. A field with a default may be
absent, and one that is unknown is passed over; what an older reader must not pass over raises the
version.
"""

from __future__ import annotations

from typing import ClassVar, Self

import msgspec
from crc32c import crc32c

from firnmq.disk.files import Buffer
from firnmq.engines.segments import Medium, SegmentMeta, SegmentState
from firnmq.engines.tier import TierCopy
from firnmq.engines.transactions import OpenTransaction
from firnmq.errors import Corruption

VERSION = 1
MANIFEST_BYTES_MAX = 256 * 1024 * 1024
"""More is refused before it is looked at. A million deleted records take 10 MB."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: int
    crc32c: str
    body: msgspec.Raw


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What all manifests do."""

    format: ClassVar[str]

    def pack(self) -> bytes:
        body = msgspec.json.encode(self)
        frame = _Frame(
            format=self.format,
            version=VERSION,
            crc32c=f"{crc32c(body):08x}",
            body=msgspec.Raw(body),
        )
        return msgspec.json.encode(frame)

    @classmethod
    def unpack(cls, data: Buffer, where: str) -> Self:
        """The manifest in an object; raises Corruption naming `where` if there is none."""
        if len(data) > MANIFEST_BYTES_MAX:
            raise Corruption(f"{len(data):,} bytes are too many for a manifest", where=where)
        try:
            frame = msgspec.json.decode(data, type=_Frame)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corruption(f"is no manifest: {error}", where=where) from error
        if frame.format != cls.format:
            raise Corruption(f"has format {frame.format!r}, not {cls.format!r}", where=where)
        if frame.version != VERSION:
            raise Corruption(
                f"has version {frame.version}, this release reads {VERSION}; use the release "
                "that wrote it or a newer one",
                where=where,
            )
        body = bytes(frame.body)
        if frame.crc32c != f"{crc32c(body):08x}":
            raise Corruption("the manifest's CRC does not match", where=where)
        try:
            return msgspec.json.decode(body, type=cls)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Corruption(f"is no {cls.format}: {error}", where=where) from error


class SegmentManifest(Manifest, frozen=True, kw_only=True):
    """A segment's copy, complete: written last, so that where it is the other objects are."""

    format: ClassVar[str] = "firn.segment"

    cluster: str
    topic: str
    topic_id: str
    shard: str
    seq: int
    key: str
    """Of the objects, without their suffixes."""
    upload_id: str
    epoch: int
    """Of the segment's description when the upload began; of two copies of a range with the same
    claim the one with the higher epoch counts."""
    base_offset: int
    end_offset: int
    length: int
    crc: int
    """CRC32C of all bytes of the .seg object."""
    index_length: int
    index_head_length: int
    index_crc: int
    """CRC32C of all bytes of the .idx object."""
    created_ms: int
    sealed_ms: int
    uploaded_ms: int
    max_timestamp: int
    first_expiry_ms: int
    claim: int = 0
    """Of the directory that made the copy. Whoever made a later one began where this one's copies
    ended for it: of two copies of a range the one with the higher claim counts."""
    compacted_ms: int = -1
    has_gaps: bool = False
    tombstone_count: int = 0
    transactions: tuple[tuple[int, int, int], ...] = ()
    """Open at the end: producer id, epoch, first offset."""
    producers: tuple[tuple[int, bytes], ...] = ()
    """Idempotent producers at the end: id, and state as in the index."""

    @classmethod
    def of(
        cls,
        meta: SegmentMeta,
        copy: TierCopy,
        *,
        cluster: str,
        topic: str,
        topic_id: str,
        shard: str,
        index_crc: int,
        uploaded_ms: int,
        claim: int = 0,
        producers: tuple[tuple[int, bytes], ...] = (),
    ) -> Self:
        """What a sealed segment's copy needs to be read again without anything else."""
        return cls(
            cluster=cluster,
            topic=topic,
            topic_id=topic_id,
            shard=shard,
            seq=meta.seq,
            key=copy.key,
            upload_id=copy.upload_id,
            epoch=meta.epoch,
            base_offset=meta.base_offset,
            end_offset=meta.end_offset,
            length=meta.length,
            crc=meta.crc,
            index_length=copy.index_length,
            index_head_length=copy.index_head_length,
            index_crc=index_crc,
            created_ms=meta.created_ms,
            sealed_ms=meta.sealed_ms,
            uploaded_ms=uploaded_ms,
            max_timestamp=meta.max_timestamp,
            first_expiry_ms=meta.first_expiry_ms,
            claim=claim,
            compacted_ms=meta.compacted_ms,
            has_gaps=meta.has_gaps,
            tombstone_count=meta.tombstone_count,
            transactions=tuple((each[0], each[1], each[2]) for each in meta.transactions),
            producers=producers,
        )

    def copy(self) -> TierCopy:
        return TierCopy(
            upload_id=self.upload_id,
            key=self.key,
            started_ms=self.uploaded_ms,
            index_length=self.index_length,
            index_head_length=self.index_head_length,
            is_done=True,
        )

    def meta(self) -> SegmentMeta:
        """The segment as a shard has it that knows the copy alone."""
        return SegmentMeta(
            seq=self.seq,
            base_offset=self.base_offset,
            created_ms=self.created_ms,
            state=SegmentState.TIERED,
            medium=Medium.NATIVE,
            epoch=self.epoch,
            end_offset=self.end_offset,
            length=self.length,
            crc=self.crc,
            max_timestamp=self.max_timestamp,
            sealed_ms=self.sealed_ms,
            transactions=tuple(OpenTransaction(*each) for each in self.transactions),
            first_expiry_ms=self.first_expiry_ms,
            compacted_ms=self.compacted_ms,
            has_gaps=self.has_gaps,
            tombstone_count=self.tombstone_count,
            tier=self.copy(),
            is_local=False,
        )


class ShardManifest(Manifest, frozen=True, kw_only=True):
    """What a shard knows beside its segments. The one with the highest number counts."""

    format: ClassVar[str] = "firn.shard"

    cluster: str
    topic: str
    topic_id: str
    shard: str
    number: int
    written_ms: int
    start_offset: int
    """First readable offset."""
    epoch: int = 0
    """Of the leader."""
    holes: tuple[int, ...] = ()
    """Offsets of deleted records."""
    dead_keys: tuple[tuple[bytes, int], ...] = ()
    """Deleted keys, each with the offset below which its records are gone."""
    has_lake: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether there is a table: those below the start are then among the deletions, until they are
    applied to it. Left out if there is none."""


class TopicManifest(Manifest, frozen=True, kw_only=True):
    """A topic as it was created and configured. The one with the highest number counts."""

    format: ClassVar[str] = "firn.topic"

    cluster: str
    topic: str
    topic_id: str
    number: int
    written_ms: int
    created_ms: int
    shard_count: int
    options: dict[str, str | None]
    """Every option as text, None where there is no limit."""


class StoredOffset(msgspec.Struct, frozen=True, array_like=True):
    """What a group has committed in a shard."""

    offset: int
    """The one that it reads next."""
    committed_ms: int
    leader_epoch: int = -1
    metadata: str | None = None


class GroupsManifest(Manifest, frozen=True, kw_only=True):
    """What consumer groups have committed. The one with the highest number counts."""

    format: ClassVar[str] = "firn.groups"

    cluster: str
    number: int
    written_ms: int
    groups: dict[str, dict[str, StoredOffset]]
    """By group, then by shard."""
