"""The one table from our errors to the protocol's codes."""

from __future__ import annotations

from firnmq.brokers.kafka.protocol import ErrorCode, TopicIdNotFound
from firnmq.errors import (
    AlreadyExists,
    Corruption,
    DiskFull,
    FirnError,
    InvalidArgument,
    InvalidRecord,
    InvalidTimestamp,
    InvalidTransactionState,
    LimitExceeded,
    NodeUnavailable,
    NoObjectStore,
    NotEnoughReplicas,
    NotFound,
    NotLeader,
    OffsetLimitReached,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFailed,
    StoreError,
    TierBacklogFull,
    TimedOut,
    TooFewNodes,
    TooManyShards,
)

_CODES: tuple[tuple[type[FirnError], ErrorCode], ...] = (
    # The first class that fits counts, so the narrower come first.
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (LimitExceeded, ErrorCode.MESSAGE_TOO_LARGE),
    (InvalidTimestamp, ErrorCode.INVALID_TIMESTAMP),
    (InvalidRecord, ErrorCode.INVALID_RECORD),
    (ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (TopicIdNotFound, ErrorCode.UNKNOWN_TOPIC_ID),
    (NotEnoughReplicas, ErrorCode.NOT_ENOUGH_REPLICAS),
    (TooFewNodes, ErrorCode.INVALID_REPLICATION_FACTOR),
    (NotLeader, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (NodeUnavailable, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (NotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (AlreadyExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (DiskFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (StorageFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (Corruption, ErrorCode.KAFKA_STORAGE_ERROR),
    (NoObjectStore, ErrorCode.KAFKA_STORAGE_ERROR),
    (TierBacklogFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (StoreError, ErrorCode.KAFKA_STORAGE_ERROR),
    (TooManyShards, ErrorCode.POLICY_VIOLATION),
    (TimedOut, ErrorCode.REQUEST_TIMED_OUT),
    (InvalidArgument, ErrorCode.INVALID_REQUEST),
)


_RETRIED_BY_GROUPS = {
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.NOT_COORDINATOR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.UNKNOWN_SERVER_ERROR: ErrorCode.NOT_COORDINATOR,
}
"""Over the first of each pair consumers give up. Over the second they look for the coordinator
again and repeat the request."""


def group_code_of(error: FirnError) -> ErrorCode:
    """What a member of a group, or a client that keeps offsets there, is told about an error."""
    if isinstance(error, InvalidArgument):
        return ErrorCode.INVALID_GROUP_ID  # Its name is all that a store can object to.
    if isinstance(error, OffsetLimitReached):
        is_size = error.unit == "bytes"
        size, count = ErrorCode.INVALID_COMMIT_OFFSET_SIZE, ErrorCode.GROUP_MAX_SIZE_REACHED
        return size if is_size else count
    if isinstance(error, Corruption):
        return ErrorCode.KAFKA_STORAGE_ERROR  # Repeating the request would not help.
    code = code_of(error)
    return _RETRIED_BY_GROUPS.get(code, code)


def offset_fetch_code_of(error: FirnError) -> ErrorCode:
    """What a client is told that asks for a group's offsets: never NOT_COORDINATOR for the whole
    request, after which librdkafka looks for the coordinator but does not ask it again, so that the
    partitions stand still until the next rebalance. It repeats the request after the code here."""
    code = group_code_of(error)
    is_retried = code is ErrorCode.NOT_COORDINATOR
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_retried else code


def code_of_read(error: FirnError) -> ErrorCode:
    """What a consumer is told about an error. Clients tell their users of CORRUPT_MESSAGE; after
    KAFKA_STORAGE_ERROR they ask for ever, and say nothing."""
    return ErrorCode.CORRUPT_MESSAGE if isinstance(error, Corruption) else code_of(error)


def code_of(error: FirnError) -> ErrorCode:
    """What a client is told about an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
