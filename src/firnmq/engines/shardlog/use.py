"""When a log was last used: what decides whether it stays open, and when upkeep visits it."""

from __future__ import annotations


class LogUse:
    """Of one log. Flags that any thread sets, and the owner of each clears."""

    __slots__ = ("due_ms", "is_changed", "is_left_to_system", "is_used")

    def __init__(self) -> None:
        self.is_used = True
        """Since `ShardLogs` last looked whether the log may be closed."""
        self.is_changed = True
        """Since upkeep visited it."""
        self.due_ms: int | None = None
        """When upkeep has to visit the shard, as far as that is stored; None if nothing is."""
        self.is_left_to_system = False
        """Its handler syncs the log and stores its checkpoint when it closes, if nothing did
        before."""

    def note_rolled(self) -> None:
        """With the next segment the next turn stores when the shard is due."""
        self.is_changed = True
        self.due_ms = None

    def note_changed(self) -> None:
        self.is_used = self.is_changed = True
