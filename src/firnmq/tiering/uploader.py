"""Copies one sealed segment to the object store, so that at every moment nothing can be lost.

The order is what makes it so. The metadata first says that a copy with this name was begun: from
then on whoever finds the name knows what may be lying there. Then come the objects, the manifest
last, so that where there is a manifest there is everything. What the store holds is compared with
what was sent. Only then does the metadata call the segment tiered, in one change that fails if
anyone else has touched the segment meanwhile; whoever loses removes what it has written.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from firnmq.clock import Clock
from firnmq.disk.files import Buffer
from firnmq.engines.segments import SegmentMeta
from firnmq.engines.tier import SealedSource, TierCopy
from firnmq.errors import (
    Closed,
    Corruption,
    InvalidArgument,
    ObjectCorrupt,
    ObjectExists,
    ObjectTruncated,
    ShardNotFound,
    StaleEpoch,
    StoreError,
)
from firnmq.eventlog import EventLogger
from firnmq.meta.records import TopicRecord
from firnmq.record import crc32c
from firnmq.tiering.indexobject import write_index
from firnmq.tiering.keys import INDEX, MANIFEST, SEGMENT, object_key
from firnmq.tiering.manifest import SegmentManifest
from firnmq.tiering.stores import ObjectInfo, ObjectStore

SUFFIXES = (MANIFEST, INDEX, SEGMENT)
"""In the order of their removal: what is left without its manifest is no copy."""
_CHUNK_BYTES = 4 * 1024 * 1024
_READ_BACK_BYTES = 8 * 1024 * 1024

_log = EventLogger("tiering")


class CopyEngine(Protocol):
    """What an uploader asks of an engine."""

    def sealed_source(self, shard: str, seq: int) -> SealedSource: ...

    def begin_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta:
        """The segment as it was, with the unfinished copy that this one replaces, if any."""

    def finish_copy(self, shard: str, seq: int, copy: TierCopy) -> SegmentMeta: ...


class Pace(Protocol):
    """Limits how fast bytes go."""

    def take(self, size: int) -> None:
        """Returns when so many bytes may be sent."""


class Uploaded(NamedTuple):
    """A finished copy."""

    meta: SegmentMeta
    upload_id: str
    sent_bytes: int


class _Sent(NamedTuple):
    """An object as it was written."""

    suffix: str
    size: int
    crc: int
    info: ObjectInfo


class SegmentUploader:
    """Safe with threads: each call is one upload of its own."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: str,
        clock: Clock,
        *,
        pace: Pace,
        claim: Callable[[], int] = lambda: 0,
        read_back: bool = False,
        is_stopping: Callable[[], bool] = lambda: False,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._pace = pace
        self._claim = claim
        self._read_back = read_back
        self._is_stopping = is_stopping
        self._new_id = new_id

    def upload(
        self,
        engine: CopyEngine,
        topic: TopicRecord,
        shard: str,
        seq: int,
        began: Callable[[str], None] = lambda upload_id: None,
        before_manifest: Callable[[], None] = lambda: None,
    ) -> Uploaded:
        """Copies a segment, verifies the copy and marks the segment tiered.

        `began` is told the upload's id before anyone else can see it; `before_manifest` is called
        when all but the manifest is there. An unfinished copy that was there before is replaced,
        and its objects are removed. Raises StaleEpoch or ShardNotFound if somebody else's change
        came first; our objects are then removed. After a StoreError the copy stays begun in the
        metadata, for the next attempt to replace it.
        """
        source = engine.sealed_source(shard, seq)
        upload_id = self._new_id()
        key = object_key(self._cluster, topic.name, topic.topic_id, shard, source.meta, upload_id)
        copy = TierCopy(upload_id=upload_id, key=key, started_ms=self._clock.now_ms())
        began(upload_id)
        before = engine.begin_copy(shard, seq, copy)
        try:
            if before.tier is not None:
                # Its uploader cannot finish it any more, so nothing will ever refer to it.
                self.remove(before.tier)
            done, sent_bytes = self._send(source, before, copy, topic, shard, before_manifest)
            return Uploaded(engine.finish_copy(shard, seq, done), upload_id, sent_bytes)
        except StaleEpoch:
            if self._has_lost(engine, shard, seq, copy):
                self._remove_lost(shard, seq, copy)
            raise
        except ShardNotFound:
            self._remove_lost(shard, seq, copy)
            raise
        except StoreError as error:
            # Whoever has taken the segment over removes our objects while we still look for them.
            if not self._has_lost(engine, shard, seq, copy):
                raise
            self._remove_lost(shard, seq, copy)
            raise StaleEpoch(f"{shard}/{seq}", before.epoch + 1, -1) from error

    def remove(self, *copies: TierCopy) -> None:
        """Removes all objects of copies that nothing refers to, or is about to."""
        for suffix in SUFFIXES:
            self._store.delete([copy.key + suffix for copy in copies])

    def check(self, meta: SegmentMeta) -> Buffer:
        """Whether the store still has a finished copy in full; the head of its index.

        Asked before the bytes here are dropped: an object may have been removed by hand since.
        """
        copy = meta.tier
        if copy is None or not copy.is_done:
            raise InvalidArgument("segment", f"{meta.seq} has no finished copy to rely on")
        for suffix, size in ((SEGMENT, meta.length), (INDEX, copy.index_length)):
            self._require_size(copy.key + suffix, size)
        self._store.head(copy.key + MANIFEST)
        return self._store.get_range(copy.key + INDEX, 0, copy.index_head_length)

    # Steps --------------------------------------------------------------------------------------

    def _send(
        self,
        source: SealedSource,
        meta: SegmentMeta,
        copy: TierCopy,
        topic: TopicRecord,
        shard: str,
        before_manifest: Callable[[], None],
    ) -> tuple[TierCopy, int]:
        """Writes the three objects and verifies them; the finished copy, and bytes sent."""
        content = self._store.upload(
            copy.key + SEGMENT, self._checked(source, meta, shard), size=meta.length
        )
        self._check_stopping()
        dump = source.index()
        index, head_length = write_index(dump, meta)
        self._pace.take(len(index))
        done = dataclasses.replace(
            copy, index_length=len(index), index_head_length=head_length, is_done=True
        )
        manifest = SegmentManifest.of(
            meta,
            done,
            cluster=self._cluster,
            topic=topic.name,
            topic_id=topic.topic_id,
            shard=shard,
            index_crc=crc32c(index),
            uploaded_ms=self._clock.now_ms(),
            claim=self._claim(),
            producers=dump.producers,
        ).pack()
        sent = [_Sent(SEGMENT, meta.length, meta.crc, content)]
        # An object is verified beside the next one's upload: a round trip less for each.
        with ThreadPoolExecutor(1, thread_name_prefix="firn-tier-verify") as verifier:
            for suffix, data in ((INDEX, index), (MANIFEST, manifest)):
                if suffix == MANIFEST:
                    before_manifest()
                verified = verifier.submit(self._verify, copy.key, sent[-1])
                try:
                    sent.append(self._put(copy.key, suffix, data))
                finally:
                    verified.result()
        if self._read_back:
            self._compare_crc(copy.key + SEGMENT, meta.length, meta.crc)
            self._compare_crc(copy.key + INDEX, len(index), crc32c(index))
            self._compare_crc(copy.key + MANIFEST, len(manifest), crc32c(manifest))
        return done, sum(each.size for each in sent)

    def _checked(self, source: SealedSource, meta: SegmentMeta, shard: str) -> Iterator[Buffer]:
        """The segment's bytes at the allowed pace. If they are not what was sealed, the upload is
        broken off before its end, and no object appears."""
        crc = 0
        length = 0
        for chunk in source.chunks(_CHUNK_BYTES):
            self._check_stopping()
            self._pace.take(len(chunk))
            crc = crc32c(chunk, crc)
            length += len(chunk)
            if length >= meta.length and (length, crc) != (meta.length, meta.crc):
                break
            yield chunk
        if (length, crc) != (meta.length, meta.crc):
            raise Corruption(
                f"the segment's {length:,} bytes have CRC {crc:08x}, sealed were {meta.length:,} "
                f"with {meta.crc:08x}; they are not uploaded. firn verify shows more",
                where=f"{shard}/{meta.seq}",
            )

    def _check_stopping(self) -> None:
        if self._is_stopping():
            raise Closed("the uploader is stopping")

    def _put(self, key: str, suffix: str, data: bytes) -> _Sent:
        self._check_stopping()
        try:
            info = self._store.put(key + suffix, data)
        except ObjectExists:
            # The name is ours alone: a first answer was lost and the store tried again.
            self._compare_crc(key + suffix, len(data), crc32c(data))
            info = self._store.head(key + suffix)
        return _Sent(suffix, len(data), crc32c(data), info)

    def _verify(self, key: str, sent: _Sent) -> None:
        """Whether the store has what was written, by size and tag. A store may call an object
        otherwise than it did when it answered; then it is read."""
        found = self._require_size(key + sent.suffix, sent.size)
        written = sent.info
        if None not in (written.e_tag, found.e_tag) and written.e_tag != found.e_tag:
            self._compare_crc(key + sent.suffix, sent.size, sent.crc)

    def _require_size(self, key: str, size: int) -> ObjectInfo:
        found = self._store.head(key)
        if found.size != size:
            raise ObjectTruncated(self._store.url, key, expected=size, found=found.size)
        return found

    def _compare_crc(self, key: str, size: int, wanted: int) -> None:
        """Reads an object in full."""
        crc = 0
        self._require_size(key, size)
        for start in range(0, size, _READ_BACK_BYTES):
            part = min(_READ_BACK_BYTES, size - start)
            crc = crc32c(self._store.get_range(key, start, part), crc)
        if crc != wanted:
            raise ObjectCorrupt(
                self._store.url, f"has CRC {crc:08x}, written was {wanted:08x}", key=key
            )

    def _has_lost(self, engine: CopyEngine, shard: str, seq: int, copy: TierCopy) -> bool:
        """Whether the segment is gone or somebody else's copy has taken the place of ours."""
        try:
            current = engine.sealed_source(shard, seq).meta.tier
        except (StaleEpoch, ShardNotFound):
            return True
        return current is None or current.upload_id != copy.upload_id

    def _remove_lost(self, shard: str, seq: int, copy: TierCopy) -> None:
        """Removes our own objects after somebody else's copy, or a deletion, came first."""
        _log.info("upload_lost", shard=shard, segment=seq, upload_id=copy.upload_id)
        try:
            self.remove(copy)
        except StoreError as error:  # The scrubber finds what is left.
            _log.warning("objects_left", key=copy.key, error=str(error))
