"""Whether anything may be appended where that takes room on the disk."""

from __future__ import annotations

from collections.abc import Callable

from firnmq.errors import DiskFull


class AppendGate:
    """Shut while the disk is full. What is left of the disk then is for reopening, deletions and
    offsets of groups. Safe with threads."""

    def __init__(self) -> None:
        self.is_shut = False
        self.reason: Callable[[], str | None] = _no_reason
        """Opens the gate if there is room again; else says why not."""

    def check(self, shard: str) -> None:
        """DiskFull if nothing may be appended. May wait for the file system."""
        if self.is_shut:
            reason = self.reason()
            if reason is not None:
                raise DiskFull(shard, OSError(reason))


def _no_reason() -> str | None:
    return None
