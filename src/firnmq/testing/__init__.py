"""Shipped for tests of FirnMQ and of programs that use it; never imported by the rest."""

from firnmq.testing.clock import FakeClock

__all__ = ["FakeClock"]
