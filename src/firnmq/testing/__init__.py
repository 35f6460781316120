"""Shipped for tests of FirnMQ and of programs that use it; never imported by the rest."""

from firnmq.testing.clock import FakeClock
from firnmq.testing.crash_disk import CrashFiles, CrashKeyValueStore, CrashMetaStore, PowerCut
from firnmq.testing.held_meta import HeldMetaStore
from firnmq.testing.lagging import LaggingReplication

__all__ = [
    "CrashFiles",
    "CrashKeyValueStore",
    "CrashMetaStore",
    "FakeClock",
    "HeldMetaStore",
    "LaggingReplication",
    "PowerCut",
]
