"""Layouts: how segments' bytes are laid into files."""

from firnmq.engines.media.layouts.by_medium import LayoutByMedium
from firnmq.engines.media.layouts.partition_per_file import PartitionPerFile
from firnmq.engines.media.layouts.shared_file import SharedFile

__all__ = ["LayoutByMedium", "PartitionPerFile", "SharedFile"]
