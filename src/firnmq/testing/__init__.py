"""Shipped for tests of FirnMQ and of programs that use it; never imported by the rest."""

from firnmq.testing.clock import FakeClock
from firnmq.testing.crash_disk import CrashFiles, CrashKeyValueStore, PowerCut

__all__ = ["CrashFiles", "CrashKeyValueStore", "FakeClock", "PowerCut"]
