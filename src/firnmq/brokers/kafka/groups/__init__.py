"""Classic consumer groups: a state machine per group, and the coordinator that drives them."""

from firnmq.brokers.kafka.groups.config import GroupConfig
from firnmq.brokers.kafka.groups.coordinator import (
    CoordinatorStatistics,
    GroupCoordinator,
    MonotonicClock,
    random_member_id,
)
from firnmq.brokers.kafka.groups.core import MemberIdFactory
from firnmq.brokers.kafka.groups.machine import Group
from firnmq.brokers.kafka.groups.messages import (
    GENERATION_NONE,
    CommitRequest,
    GroupDescription,
    HeartbeatRequest,
    JoinedMember,
    JoinReply,
    JoinRequest,
    Leaver,
    LeaveReply,
    LeaveRequest,
    LeaverReply,
    MemberDescription,
    SyncReply,
    SyncRequest,
)
from firnmq.brokers.kafka.groups.snapshot import (
    GroupProtocol,
    GroupSnapshot,
    MemberSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from firnmq.brokers.kafka.groups.state import GroupState, IllegalTransition
from firnmq.brokers.kafka.groups.store import GroupStore

__all__ = [
    "GENERATION_NONE",
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
    "MonotonicClock",
    "SyncReply",
    "SyncRequest",
    "decode_snapshot",
    "encode_snapshot",
    "random_member_id",
]
