"""The four indexes of a segment: by offset, by time, by key, by tag."""

from firnmq.index.api import NEVER_MS, IndexSink, KeyHit, Point, SegmentIndex, TagHit, Terms
from firnmq.index.builder import RECORDS_PER_POINT, IndexBuilder
from firnmq.index.checkpoint import Checkpoint
from firnmq.index.entries import IndexEntries
from firnmq.index.memory import MemorySegmentIndex
from firnmq.index.rocks import RocksIndexEntries, RocksSegmentIndex

__all__ = [
    "NEVER_MS",
    "RECORDS_PER_POINT",
    "Checkpoint",
    "IndexBuilder",
    "IndexEntries",
    "IndexSink",
    "KeyHit",
    "MemorySegmentIndex",
    "Point",
    "RocksIndexEntries",
    "RocksSegmentIndex",
    "SegmentIndex",
    "TagHit",
    "Terms",
]
