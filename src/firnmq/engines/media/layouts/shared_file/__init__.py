"""Layout shared-file: many shards in one file."""

from firnmq.engines.media.layouts.shared_file.layout import SharedFile

__all__ = ["SharedFile"]
