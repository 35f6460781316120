"""The memory engine: shards in memory, within a limit; sealed segments may spill to disk."""

from firnmq.engines.media.memory.engine import memory_engine

__all__ = ["memory_engine"]
