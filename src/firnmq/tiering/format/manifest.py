"""Manifests: JSON objects from which segments, shards and topics are recovered.

All have the same frame, `{"format", "version", "crc32c", "body"}`, the CRC being that of the body's
bytes as they stand. docs/formats/tiered-objects.md describes them. A field with a default may be
absent, and an unknown field is ignored; a field that an older reader must not ignore raises the
version.
"""

from __future__ import annotations

from typing import ClassVar, Self, TypeVar

import msgspec
from crc32c import crc32c

from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import Medium, SegmentMeta, SegmentState
from firnmq.engines.catalog.transactions import OpenTransaction
from firnmq.engines.tiering.api import TierCopy
from firnmq.errors import Corruption, InvalidField
from firnmq.tiering.format.fields import (
    ClaimNumber,
    Cluster,
    Count,
    Crc,
    Epoch,
    GroupName,
    GroupNote,
    LeaderEpoch,
    Millis,
    Number,
    ObjectKey,
    Offset,
    OptionName,
    OptionText,
    ProducerEpoch,
    ProducerId,
    Seq,
    ShardCount,
    ShardName,
    Size,
    TopicId,
    TopicName,
    UploadId,
)
from firnmq.tiering.stores import ObjectStore

VERSION = 1
MANIFEST_BYTES_MAX = 256 * 1024 * 1024
"""A larger object is refused before it is read. A million deleted records take 10 MB."""

S = TypeVar("S", bound=msgspec.Struct)
M = TypeVar("M", bound="Manifest")


class _Frame(msgspec.Struct, frozen=True, kw_only=True):
    format: str
    version: int
    crc32c: str
    body: msgspec.Raw


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all manifests: packing, and unpacking with checks."""

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
        manifest = decode_checked(body, cls, where)
        manifest.check(where)
        return manifest

    def check(self, where: str) -> None:
        """Raises InvalidField if the fields contradict each other."""


def decode_checked(body: bytes, kind: type[S], where: str) -> S:
    """A JSON document as a struct. InvalidField, naming object and field, if it is none."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at ")
        raise InvalidField(
            path.rpartition("$.")[2].strip("`$") or "body", reason, where=where
        ) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Corruption(f"is no JSON: {error}", where=where) from error


def read_manifest(store: ObjectStore, key: str, kind: type[M]) -> M:
    """The manifest in the store. Its size is checked before it is read."""
    size = store.head(key).size
    if size > MANIFEST_BYTES_MAX:
        raise Corruption(f"{size:,} bytes are too many for a manifest", where=key)
    return kind.unpack(store.get_range(key, 0, size), key)


class SegmentManifest(Manifest, frozen=True, kw_only=True):
    """A segment's complete copy. Written last: if it exists, the other objects do too."""

    format: ClassVar[str] = "firn.segment"

    cluster: Cluster
    topic: TopicName
    topic_id: TopicId
    shard: ShardName
    seq: Seq
    key: ObjectKey
    """Of the objects, without their suffixes."""
    upload_id: UploadId
    epoch: Epoch
    """Of the segment's description when the upload began; of two copies of a range with the same
    claim the one with the higher epoch counts."""
    base_offset: Offset
    end_offset: Offset
    length: Size
    crc: Crc
    """CRC32C of all bytes of the .seg object."""
    index_length: Size
    index_head_length: Size
    index_crc: Crc
    """CRC32C of all bytes of the .idx object."""
    created_ms: Millis
    sealed_ms: Millis
    uploaded_ms: Millis
    max_timestamp: Millis
    first_expiry_ms: Millis
    claim: ClaimNumber = 0
    """Number of the claim under which the directory made the copy. A later claim continued from the
    copies that it found: of two copies of a range the one with the higher claim counts."""
    compacted_ms: Millis = -1
    has_gaps: bool = False
    tombstone_count: Count = 0
    transactions: tuple[tuple[ProducerId, ProducerEpoch, Offset], ...] = ()
    """Open at the end: producer id, epoch, first offset."""
    producers: tuple[tuple[ProducerId, bytes], ...] = ()
    """Idempotent producers at the end: id, and state in its stored form."""

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
        """The manifest of a sealed segment, with all that a recovery needs to read its copy."""
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

    def check(self, where: str) -> None:
        for field, is_right in (
            ("shard", self.shard.rpartition("_")[0] == self.topic_id),
            ("end_offset", self.base_offset <= self.end_offset),
            ("index_head_length", self.index_head_length <= self.index_length),
            ("transactions", all(each[2] < self.end_offset for each in self.transactions)),
        ):
            if not is_right:
                raise InvalidField(field, "does not fit the other fields", where=where)

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
        """The segment's metadata in a shard that has only the copy."""
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
    """A shard's state beside its segments. The one with the highest number counts."""

    format: ClassVar[str] = "firn.shard"

    cluster: Cluster
    topic: TopicName
    topic_id: TopicId
    shard: ShardName
    number: Number
    written_ms: Millis
    start_offset: Offset
    """First readable offset."""
    epoch: Epoch = 0
    """Of the leader."""
    holes: tuple[Offset, ...] = ()
    """Offsets of deleted records."""
    dead_keys: tuple[tuple[bytes, Offset], ...] = ()
    """Deleted keys, each with the offset below which its records are gone."""
    has_lake: bool | msgspec.UnsetType = msgspec.UNSET
    """Whether there is a table: those below the start are then among the deletions, until they are
    applied to it. Left out if there is none."""

    def check(self, where: str) -> None:
        if self.shard.rpartition("_")[0] != self.topic_id:
            raise InvalidField("shard", "is none of the topic", where=where)


class TopicManifest(Manifest, frozen=True, kw_only=True):
    """A topic as it was created and configured. The one with the highest number counts."""

    format: ClassVar[str] = "firn.topic"

    cluster: Cluster
    topic: TopicName
    topic_id: TopicId
    number: Number
    written_ms: Millis
    created_ms: Millis
    shard_count: ShardCount
    options: dict[OptionName, OptionText | None]
    """Every option as text, None where there is no limit."""


class StoredOffset(msgspec.Struct, frozen=True, array_like=True):
    """A group's committed offset in a shard."""

    offset: Offset
    """The next offset to read."""
    committed_ms: Millis
    leader_epoch: LeaderEpoch = -1
    metadata: GroupNote | None = None


class GroupsManifest(Manifest, frozen=True, kw_only=True):
    """Committed offsets of consumer groups. The one with the highest number counts."""

    format: ClassVar[str] = "firn.groups"

    cluster: Cluster
    number: Number
    written_ms: Millis
    groups: dict[GroupName, dict[ShardName, StoredOffset]]
    """By group, then by shard."""

    def check(self, where: str) -> None:
        for group in self.groups:
            if not group.isprintable():
                raise InvalidField("groups", f"{group!r} is no name of a group", where=where)
