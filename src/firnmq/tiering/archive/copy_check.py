"""Checks copies in the object store against the metadata, for `firn verify`.

By default each object must have its size and the manifest must describe this segment: one list per
shard and one small read per segment, many at a time. A deep check reads everything and compares
CRCs. Nothing is written, removed or repaired.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.errors import Corruption, ObjectNotFound, ObjectTruncated, StoreError
from firnmq.record import crc32c
from firnmq.tiering.format.manifest import SegmentManifest, read_manifest
from firnmq.tiering.format.object_names import INDEX, MANIFEST, SEGMENT
from firnmq.tiering.stores import ObjectStore

_PARALLEL = 16
"""Segments checked in parallel: each takes at least one round trip."""
_AHEAD = 4 * _PARALLEL
_READ_BYTES = 8 * 1024 * 1024


class CopyChecker:
    """Checks the cold segments of one shard after the other. Not safe with threads."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        is_deep: bool = False,
        progress: Callable[[int], None] = lambda size: None,
    ) -> None:
        """`progress` is called with the size of every part that a deep check reads."""
        self._store = store
        self._is_deep = is_deep
        self._progress = progress
        self._telling = threading.Lock()
        self._failure: StoreError | None = None

    def __call__(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> Iterator[str | None]:
        """For each segment in order the error of its copy, or None.

        Raises StoreError if the store cannot be used, now and for all later shards, so that a check
        of many shards does not wait for a time-out each.
        """
        if self._failure is not None:
            raise self._failure
        try:
            yield from self._check(metas)
        except StoreError as error:
            self._failure = error
            raise

    def _check(self, metas: Sequence[SegmentMeta]) -> Iterator[str | None]:
        folders = {meta.tier.key.rpartition("/")[0] for meta in metas if meta.tier is not None}
        sizes = {info.key: info.size for each in folders for info in self._store.list(each)}
        with ThreadPoolExecutor(_PARALLEL, thread_name_prefix="firn-verify") as threads:
            left = iter(metas)
            under_way: list[Future[str | None]] = []
            try:
                while True:
                    for meta in islice(left, _AHEAD - len(under_way)):
                        under_way.append(threads.submit(self._wrong, meta, sizes))
                    if not under_way:
                        return
                    yield under_way.pop(0).result()
            finally:
                threads.shutdown(cancel_futures=True)

    def _wrong(self, meta: SegmentMeta, sizes: dict[str, int]) -> str | None:
        copy = meta.tier
        if copy is None or not copy.is_done:
            return "has no finished copy, and is not here either"
        for suffix, size in ((SEGMENT, meta.length), (INDEX, copy.index_length)):
            found = sizes.get(copy.key + suffix)
            if found is None:
                return f"its {suffix} object is not in {self._store.url}"
            if found != size:
                return f"its {suffix} object has {found:,} bytes where {size:,} belong"
        try:
            manifest = self._manifest(copy.key + MANIFEST, sizes)
            if manifest is None:
                return f"its {MANIFEST} object is not in {self._store.url}"
            if not _describes(manifest, meta):
                return "its manifest describes another segment"
            if not self._is_deep:
                return None
            for suffix, size, crc in (
                (SEGMENT, meta.length, meta.crc),
                (INDEX, copy.index_length, manifest.index_crc),
            ):
                found_crc = self._crc(copy.key + suffix, size)
                if found_crc != crc:
                    return f"its {suffix} object has CRC {found_crc:08x}, copied was {crc:08x}"
        except (Corruption, ObjectNotFound, ObjectTruncated) as error:
            return str(error)
        return None

    def _manifest(self, key: str, sizes: dict[str, int]) -> SegmentManifest | None:
        if key not in sizes:
            return None
        return read_manifest(self._store, key, SegmentManifest)

    def _crc(self, key: str, size: int) -> int:
        crc = 0
        for start in range(0, size, _READ_BYTES):
            part = min(_READ_BYTES, size - start)
            crc = crc32c(self._store.get_range(key, start, part), crc)
            with self._telling:
                self._progress(part)
        return crc


def _describes(manifest: SegmentManifest, meta: SegmentMeta) -> bool:
    copy = meta.tier
    assert copy is not None
    return (
        manifest.key,
        manifest.upload_id,
        manifest.base_offset,
        manifest.end_offset,
        manifest.length,
        manifest.crc,
        manifest.index_length,
    ) == (
        copy.key,
        copy.upload_id,
        meta.base_offset,
        meta.end_offset,
        meta.length,
        meta.crc,
        copy.index_length,
    )
