"""Copies one sealed segment to the object store. The order of the steps makes it crash-safe.

1. The metadata records that a copy with this name was begun, so that its objects can be found after
   a crash.
2. The objects are written, the manifest last: a copy with a manifest is complete.
3. The stored objects are compared with what was sent.
4. The metadata marks the segment as tiered, in one conditional change. If the segment was changed
   concurrently, the change fails, and the uploader removes its objects.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from firnmq.clock import Clock
from firnmq.disk.files import Buffer
from firnmq.engines.api import CopyEngine
from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.shardlog.producers import newest_producers
from firnmq.engines.tiering.api import SealedSource, TierCopy
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
from firnmq.tiering.format.index_object import write_index
from firnmq.tiering.format.manifest import SegmentManifest
from firnmq.tiering.format.object_names import INDEX, MANIFEST, SEGMENT, object_key
from firnmq.tiering.rate_limit import RateLimiter
from firnmq.tiering.stores import ObjectInfo, ObjectStore

SUFFIXES = (MANIFEST, INDEX, SEGMENT)
"""In the order of their removal: objects without a manifest are no copy."""
MANIFEST_PRODUCERS_MAX = 2_000
"""At most this many producers are in a manifest, which is read whole; the index has all."""
_CHUNK_BYTES = 4 * 1024 * 1024
_READ_BACK_BYTES = 8 * 1024 * 1024

_log = EventLogger("tiering")


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
    """Safe with threads: each call is an independent upload."""

    def __init__(
        self,
        store: ObjectStore,
        cluster: str,
        clock: Clock,
        *,
        limiter: RateLimiter,
        claim: Callable[[], int] = lambda: 0,
        read_back: bool = False,
        is_stopping: Callable[[], bool] = lambda: False,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._store = store
        self._cluster = cluster
        self._clock = clock
        self._limiter = limiter
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

        `began` is called with the upload id before the id is visible in the metadata.
        `before_manifest` is called when all objects but the manifest are written. An earlier
        unfinished copy is replaced, and its objects are removed. Raises StaleEpoch or
        ShardNotFound if a concurrent change won; this upload's objects are then removed. After a
        StoreError the metadata still says that the copy was begun, and the next attempt replaces
        it.
        """
        source = engine.sealed_source(shard, seq)
        upload_id = self._new_id()
        key = object_key(self._cluster, topic.name, topic.topic_id, shard, source.meta, upload_id)
        copy = TierCopy(upload_id=upload_id, key=key, started_ms=self._clock.now_ms())
        began(upload_id)
        before = engine.begin_copy(shard, seq, copy)
        try:
            if before.tier is not None:
                # Its uploader can no longer finish it, so nothing will ever refer to it.
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
            # An uploader that took the segment over removes our objects while we verify them.
            if not self._has_lost(engine, shard, seq, copy):
                raise
            self._remove_lost(shard, seq, copy)
            raise StaleEpoch(f"{shard}/{seq}", before.epoch + 1, -1) from error

    def remove(self, *copies: TierCopy) -> None:
        """Removes all objects of copies that nothing refers to now or will refer to."""
        for suffix in SUFFIXES:
            self._store.delete([copy.key + suffix for copy in copies])

    def check(self, meta: SegmentMeta) -> Buffer:
        """Checks that the store still has the complete copy; returns the head of its index.

        Called before the local bytes are dropped: an object may have been removed by hand.
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
        """Writes the three objects and verifies them; returns the copy and the bytes sent."""
        content = self._store.upload(
            copy.key + SEGMENT, self._checked(source, meta, shard), size=meta.length
        )
        self._check_stopping()
        dump = source.index()
        index, head_length = write_index(dump, meta)
        self._limiter.take(len(index))
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
            producers=newest_producers(dump.producers, MANIFEST_PRODUCERS_MAX),
        ).pack()
        sent = [_Sent(SEGMENT, meta.length, meta.crc, content)]
        # An object is verified during the next one's upload, which saves a round trip each.
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
        """The segment's bytes, rate limited. If they differ from what was sealed, the upload is
        aborted before its end, and no object appears."""
        crc = 0
        length = 0
        for chunk in source.chunks(_CHUNK_BYTES):
            self._check_stopping()
            self._limiter.take(len(chunk))
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
            # Only this upload uses the name: the first response was lost, and the client retried.
            self._compare_crc(key + suffix, len(data), crc32c(data))
            info = self._store.head(key + suffix)
        return _Sent(suffix, len(data), crc32c(data), info)

    def _verify(self, key: str, sent: _Sent) -> None:
        """Checks size and ETag of a stored object. Some stores report another ETag than in the
        response to the write; then the object is read and its CRC compared."""
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
        """Whether the segment is deleted or another copy has replaced ours."""
        try:
            current = engine.sealed_source(shard, seq).meta.tier
        except (StaleEpoch, ShardNotFound):
            return True
        return current is None or current.upload_id != copy.upload_id

    def _remove_lost(self, shard: str, seq: int, copy: TierCopy) -> None:
        """Removes our objects after another copy or a deletion won."""
        _log.info("upload_lost", shard=shard, segment=seq, upload_id=copy.upload_id)
        try:
            self.remove(copy)
        except StoreError as error:  # The scrubber finds what is left.
            _log.warning("objects_left", key=copy.key, error=str(error))
