"""What an operator may set about consumer groups."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from firnmq.adapter import OffsetLimits
from firnmq.errors import InvalidArgument


class Migration(enum.Enum):
    """The values are those of Kafka's group.consumer.migration.policy."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    """Only from classic to consumer."""
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"


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

    client_group_count_max: int = 2_500
    """Groups in use that one client may have begun, so that it cannot fill the limit for others. A
    client is an authenticated user or, without authentication, an address."""

    consumer_session_timeout_ms: int = 45_000
    """Milliseconds after which a member that uses the consumer protocol counts as crashed."""

    consumer_heartbeat_interval_ms: int = 5_000
    """Milliseconds from one heartbeat of such a member to the next; it learns of changes then."""

    consumer_assignment_interval_ms: int = 1_000
    """Milliseconds between two assignments of a group of that protocol with thousands of members
    and partitions, so that a fleet that starts together is assigned a few times."""

    consumer_migration: Migration = Migration.BIDIRECTIONAL
    """Which groups with members may go over to the other protocol."""

    promise_ms: int = 20_000
    """Milliseconds for a client to follow up on what it began: to join with the member id it was
    given, and to sync after its first join, or to come back if its connection was lost before.
    Session and rebalance time-outs are the client's choice and may be much longer."""

    total_bytes_max: int = 256 << 20
    """Bytes of all members and assignments; they are held in memory."""

    client_bytes_max: int = 64 << 20
    """The same of what one client has brought."""

    offset_group_count_max: int = 100_000
    """Groups with committed offsets, members or not."""

    client_offset_group_count_max: int = 25_000
    """The same of groups whose first offset one client has committed."""

    offset_bytes_max: int = 256 << 20
    """Bytes of all committed offsets in the store, names and notes included; an offset without a
    note takes about 150."""

    client_offset_bytes_max: int = 64 << 20
    """The same of what one client has committed."""

    group_id_chars_max: int = 1_024
    """Characters of a group's name; it is a key in the store and a field in every log line."""

    member_bytes_max: int = 1 << 20
    """Bytes of one member: its protocols and ids are kept in memory for as long as the member."""

    assignment_bytes_max: int = 16 << 20
    """Bytes of all assignments of one generation; they are saved as one value."""

    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """Milliseconds after which committed offsets are forgotten: since the group has been empty, or
    since the commit where a group has no members ever or does not subscribe to the topic any more.
    Seven days, as `offsets.retention.minutes` of Apache Kafka."""

    offsets_retention_check_ms: int = 600_000
    """Milliseconds between searches for such offsets; each reads all committed offsets."""

    store_timeout_ms: int = 10_000
    """Milliseconds a save may take before the clients that wait for it are told to try again."""

    store_concurrency_max: int = 8
    """Saves under way at once, so that a mass restart does not flood the store."""

    def __post_init__(self) -> None:
        if not 0 < self.session_timeout_min_ms <= self.session_timeout_max_ms:
            raise InvalidArgument("session_timeout_min_ms", "must be positive and at most the max")
        if self.initial_rebalance_delay_ms < 0:
            raise InvalidArgument("initial_rebalance_delay_ms", "must not be negative")
        if self.consumer_heartbeat_interval_ms >= self.consumer_session_timeout_ms:
            raise InvalidArgument(
                "consumer_heartbeat_interval_ms", "must be less than consumer_session_timeout_ms"
            )
        for name in (
            "member_count_max",
            "group_count_max",
            "client_group_count_max",
            "consumer_session_timeout_ms",
            "consumer_heartbeat_interval_ms",
            "consumer_assignment_interval_ms",
            "promise_ms",
            "total_bytes_max",
            "client_bytes_max",
            "offset_group_count_max",
            "client_offset_group_count_max",
            "offset_bytes_max",
            "client_offset_bytes_max",
            "group_id_chars_max",
            "member_bytes_max",
            "assignment_bytes_max",
            "offsets_retention_ms",
            "offsets_retention_check_ms",
            "store_timeout_ms",
            "store_concurrency_max",
        ):
            if getattr(self, name) < 1:
                raise InvalidArgument(name, "must be at least 1")

    @property
    def offset_limits(self) -> OffsetLimits:
        return OffsetLimits(
            group_count_max=self.offset_group_count_max,
            client_group_count_max=self.client_offset_group_count_max,
            bytes_max=self.offset_bytes_max,
            client_bytes_max=self.client_offset_bytes_max,
        )
