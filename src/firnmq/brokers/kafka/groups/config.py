"""What an operator may set about consumer groups."""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Time-outs and limits of consumer groups; a refusal touches only the client that asked."""

    session_timeout_min_ms: int = 6_000
    """Milliseconds; shorter ones turn a garbage collection pause into a rebalance."""

    session_timeout_max_ms: int = 1_800_000
    """Milliseconds; longer ones leave the partitions of a crashed consumer unread for too long."""

    initial_rebalance_delay_ms: int = 3_000
    """Milliseconds an empty group waits for more members after the first, so that a fleet that
    starts together is assigned once and not once per consumer."""

    member_count_max: int = 2_000
    """Members of one group, those that were only promised an id included: a rebalance sends
    every member's metadata to one of them."""

    group_count_max: int = 10_000
    """Groups held in memory. At the limit the group that has been empty longest is forgotten."""

    group_id_chars_max: int = 1_024
    """Characters of a group's name; it is a key in the store and a field in every log line."""

    member_bytes_max: int = 1 << 20
    """Bytes of one member's protocols: they are kept in memory for as long as the member."""

    assignment_bytes_max: int = 16 << 20
    """Bytes of all assignments of one generation; they are saved as one value."""

    store_timeout_ms: int = 10_000
    """Milliseconds a save may take before the clients that wait for it are told to try again."""

    store_concurrency_max: int = 8
    """Saves under way at once, so that a mass restart does not flood the store."""

    def __post_init__(self) -> None:
        if not 0 < self.session_timeout_min_ms <= self.session_timeout_max_ms:
            raise InvalidArgument("session_timeout_min_ms", "must be positive and at most the max")
        if self.initial_rebalance_delay_ms < 0:
            raise InvalidArgument("initial_rebalance_delay_ms", "must not be negative")
        for name in (
            "member_count_max",
            "group_count_max",
            "group_id_chars_max",
            "member_bytes_max",
            "assignment_bytes_max",
            "store_timeout_ms",
            "store_concurrency_max",
        ):
            if getattr(self, name) < 1:
                raise InvalidArgument(name, "must be at least 1")
