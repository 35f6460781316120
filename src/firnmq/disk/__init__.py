"""Disk: the I/O pool, the cache of open files, the key-value store and the directory lock.

This package is the only code that opens, writes or syncs data files.
"""

from firnmq.disk.directory import DirectoryLock, remove_tree, sync_directory
from firnmq.disk.files import FileCache, FileStatistics
from firnmq.disk.kv import Family, KeyValueStore
from firnmq.disk.pool import IoPool, Lane, PoolStatistics, Turn, TurnHandler
from firnmq.disk.ranges import FileRange
from firnmq.disk.waiting import Notice, Settlement, Ticket, call_blocking, run_blocking

__all__ = [
    "DirectoryLock",
    "Family",
    "FileCache",
    "FileRange",
    "FileStatistics",
    "IoPool",
    "KeyValueStore",
    "Lane",
    "Notice",
    "PoolStatistics",
    "Settlement",
    "Ticket",
    "Turn",
    "TurnHandler",
    "call_blocking",
    "remove_tree",
    "run_blocking",
    "sync_directory",
]
