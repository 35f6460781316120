"""Both layouts of the segment engine: each segment is in the one that it was begun in.

So a topic can change its layout, which counts from each shard's next segment on.
"""

from __future__ import annotations

from collections.abc import Sequence

from firnmq.engines.catalog.ranges import ShardRange
from firnmq.engines.catalog.segments import Medium, SegmentBytes, SegmentMeta
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.media.layouts.partition_per_file import PartitionPerFile
from firnmq.engines.media.layouts.shared_file import SharedFile


class LayoutByMedium:
    """A ByteLayout."""

    def __init__(self, files: PartitionPerFile, shared: SharedFile) -> None:
        self._files = files
        self._shared = shared

    def open_bytes(self, spec: ShardSpec, meta: SegmentMeta) -> SegmentBytes:
        layout = self._shared if meta.medium is Medium.SHARED else self._files
        return layout.open_bytes(spec, meta)

    def drop_shard(self, spec: ShardSpec) -> None:
        self._files.drop_shard(spec)
        self._shared.drop_shard(spec)

    def drop_range(self, shards: ShardRange) -> None:
        self._files.drop_range(shards)
        self._shared.drop_range(shards)

    def drop_strays(self, spec: ShardSpec, metas: Sequence[SegmentMeta]) -> None:
        self._files.drop_strays(spec, metas)
        self._shared.drop_strays(spec, metas)
