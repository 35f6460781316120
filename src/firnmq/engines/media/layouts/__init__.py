"""Layouts: how segments' bytes are laid into files."""

from firnmq.engines.media.layouts.partition_per_file import PartitionPerFile

__all__ = ["PartitionPerFile"]
