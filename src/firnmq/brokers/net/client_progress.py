"""Whether a client makes progress: sends the rest of its frame, takes the answers it was sent."""

from __future__ import annotations

STALL_S = 2.0
"""Seconds without progress after which other clients may have the memory that a connection holds.
As long as no other client waits for memory, there is no hurry."""
PROGRESS_BYTES = 64 * 1024
"""Fewer bytes than this are no progress, so that a client that sends single bytes gains no time."""


class SendProgress:
    """How a client sends one frame. Time counts while the node reads and stands still while it does
    not: one deadline for the whole frame, which only bytes move on."""

    __slots__ = ("_new_bytes", "_paused_s", "_received_bytes", "_since_s", "began_s")

    def __init__(self, now_s: float) -> None:
        self.began_s = now_s
        """When the frame began."""
        self._since_s = now_s
        self._paused_s: float | None = None
        self._new_bytes = 0
        self._received_bytes = 0

    def received(self, count: int, now_s: float) -> None:
        self._received_bytes += count
        self._new_bytes += count
        if self._new_bytes >= PROGRESS_BYTES:
            self._new_bytes = 0
            self._since_s = now_s

    def pause(self, now_s: float) -> None:
        """The node does not read: it waits for memory, or has enough of this client's requests."""
        if self._paused_s is None:
            self._paused_s = now_s

    def resume(self, now_s: float) -> None:
        if self._paused_s is not None:
            self._since_s += now_s - self._paused_s
            self._paused_s = None

    def is_stalled(self, now_s: float) -> bool:
        return self._paused_s is None and now_s - self._since_s > STALL_S

    def bytes_per_s(self, now_s: float) -> float:
        """The average since the frame began, pauses included."""
        return self._received_bytes / max(now_s - self.began_s, 1e-3)


class DrainWatch:
    """Whether a client takes what was written to it, judged each time `is_stuck` is called."""

    __slots__ = ("_left_bytes", "_moved_s")

    def __init__(self) -> None:
        self._left_bytes = 0
        self._moved_s = 0.0

    def begin(self, left_bytes: int, now_s: float) -> None:
        """Begins with what the client has not taken yet."""
        self._left_bytes = left_bytes
        self._moved_s = now_s

    def is_stuck(self, left_bytes: int, now_s: float) -> bool:
        """Whether the client has taken too little for too long."""
        if left_bytes <= self._left_bytes - min(PROGRESS_BYTES, self._left_bytes // 2):
            self.begin(left_bytes, now_s)
        elif left_bytes > self._left_bytes:  # More was written.
            self._left_bytes = left_bytes
        return now_s - self._moved_s > STALL_S
