"""Shipped for tests of FirnMQ and of programs that use it; never imported by the rest."""

from firnmq.testing.clock import FakeClock
from firnmq.testing.crash_disk import CrashFiles, CrashKeyValueStore, CrashMetaStore, PowerCut

__all__ = ["CrashFiles", "CrashKeyValueStore", "CrashMetaStore", "FakeClock", "PowerCut"]
