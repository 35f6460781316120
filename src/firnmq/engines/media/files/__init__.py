"""The segment engine: shards as files, one per segment."""

from firnmq.engines.media.files.engine import segment_engine, segment_layout

__all__ = ["segment_engine", "segment_layout"]
