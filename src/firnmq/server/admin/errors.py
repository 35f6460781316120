"""The one table from our errors to HTTP's status codes."""

from __future__ import annotations

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.errors import (
    AlreadyExists,
    Closed,
    FirnError,
    IndexDisabled,
    InvalidArgument,
    InvalidRecord,
    LimitExceeded,
    NodeUnavailable,
    NotFound,
    NoTiering,
    NotLeader,
    OffsetOutOfRange,
    StorageFailed,
    StoreError,
    TierBacklogFull,
    TimedOut,
    TooManyShards,
)


class Refused(FirnError):
    """A request that the HTTP listener itself refuses."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class GroupNotFound(NotFound):
    kind = "group"


class GroupElsewhere(FirnError):
    """Another node of the cluster coordinates the group, and gets the request."""

    def __init__(self, group: str, node: int) -> None:
        super().__init__(f"group {group!r} is coordinated by node {node}")
        self.group = group
        self.node = node


class GroupInUse(FirnError):
    """The group has members, whose own commits would undo the change."""

    def __init__(self, group: str, state: str) -> None:
        super().__init__(f"group {group!r} is in use ({state}); stop its consumers first")
        self.group = group
        self.state = state


class BrokerRefused(FirnError):
    """The broker answered with an error code of its protocol."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message or code.name)
        self.code = code


_STATUSES: tuple[tuple[type[FirnError], int], ...] = (
    # The first class that fits counts, so the narrower come first.
    (NotFound, 404),
    (AlreadyExists, 409),
    (GroupInUse, 409),
    (GroupElsewhere, 421),
    (NotLeader, 503),
    (NodeUnavailable, 503),
    (LimitExceeded, 413),
    (InvalidRecord, 400),
    (InvalidArgument, 400),
    (IndexDisabled, 400),
    (OffsetOutOfRange, 416),
    (NoTiering, 409),
    (TooManyShards, 409),
    (TierBacklogFull, 503),
    (StoreError, 502),
    (StorageFailed, 503),
    (Closed, 503),
    (TimedOut, 504),
)


def status_of(error: FirnError) -> int:
    if isinstance(error, Refused):
        return error.status
    for kind, status in _STATUSES:
        if isinstance(error, kind):
            return status
    return 500
