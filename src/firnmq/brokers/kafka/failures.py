"""The one table from our errors to the protocol's codes."""

from __future__ import annotations

from firnmq.brokers.kafka.protocol import ErrorCode
from firnmq.errors import (
    AlreadyExists,
    Corruption,
    DiskFull,
    FirnError,
    InvalidArgument,
    InvalidRecord,
    InvalidTransactionState,
    LimitExceeded,
    NoObjectStore,
    NotFound,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ProducerFenced,
    StorageFailed,
    StoreError,
    TierBacklogFull,
    TimedOut,
)

_CODES: tuple[tuple[type[FirnError], ErrorCode], ...] = (
    # The first class that fits counts, so the narrower come first.
    (OffsetOutOfRange, ErrorCode.OFFSET_OUT_OF_RANGE),
    (LimitExceeded, ErrorCode.MESSAGE_TOO_LARGE),
    (InvalidRecord, ErrorCode.INVALID_RECORD),
    (ProducerFenced, ErrorCode.INVALID_PRODUCER_EPOCH),
    (InvalidTransactionState, ErrorCode.INVALID_TXN_STATE),
    (OutOfOrderSequence, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (NotFound, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (AlreadyExists, ErrorCode.TOPIC_ALREADY_EXISTS),
    (DiskFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (StorageFailed, ErrorCode.KAFKA_STORAGE_ERROR),
    (Corruption, ErrorCode.KAFKA_STORAGE_ERROR),
    (NoObjectStore, ErrorCode.KAFKA_STORAGE_ERROR),
    (TierBacklogFull, ErrorCode.KAFKA_STORAGE_ERROR),
    (StoreError, ErrorCode.KAFKA_STORAGE_ERROR),
    (TimedOut, ErrorCode.REQUEST_TIMED_OUT),
    (InvalidArgument, ErrorCode.INVALID_REQUEST),
)


def code_of(error: FirnError) -> ErrorCode:
    """What a client is told about an error."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR
