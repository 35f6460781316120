"""Consumer groups: a state machine per group, and the coordinator that drives them."""

from firnmq.brokers.kafka.groups.config import GroupConfig, Migration
from firnmq.brokers.kafka.groups.coordinator import (
    CoordinatorStatistics,
    GroupCoordinator,
    MonotonicClock,
    random_member_id,
)
from firnmq.brokers.kafka.groups.core import MemberIdFactory
from firnmq.brokers.kafka.groups.encoding import (
    AnySnapshot,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.groups.machine import Group
from firnmq.brokers.kafka.groups.messages import (
    GENERATION_NONE,
    CommitRequest,
    GroupDescription,
    GroupType,
    HeartbeatRequest,
    JoinedMember,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveReply,
    LeaveRequest,
    LeaverReply,
    MemberDescription,
    OffsetRetention,
    SyncReply,
    SyncRequest,
)
from firnmq.brokers.kafka.groups.snapshot import (
    GroupProtocol,
    GroupSnapshot,
    MemberSnapshot,
)
from firnmq.brokers.kafka.groups.state import GroupState, IllegalTransition
from firnmq.brokers.kafka.groups.store import GroupStore
from firnmq.brokers.kafka.groups.subscription import CONSUMER_PROTOCOL_TYPE

__all__ = [
    "CONSUMER_PROTOCOL_TYPE",
    "GENERATION_NONE",
    "AnySnapshot",
    "CommitRequest",
    "CoordinatorStatistics",
    "Group",
    "GroupConfig",
    "GroupCoordinator",
    "GroupDescription",
    "GroupProtocol",
    "GroupSnapshot",
    "GroupState",
    "GroupStore",
    "GroupType",
    "HeartbeatRequest",
    "IllegalTransition",
    "JoinReply",
    "JoinRequest",
    "JoinedMember",
    "LeaveReply",
    "LeaveRequest",
    "Leaver",
    "LeaverReply",
    "MemberDescription",
    "MemberIdFactory",
    "MemberSnapshot",
    "Migration",
    "MonotonicClock",
    "OffsetRetention",
    "SyncReply",
    "SyncRequest",
    "decode_snapshot",
    "encode_snapshot",
    "random_member_id",
]
