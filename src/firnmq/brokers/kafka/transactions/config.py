"""What an operator may set about transactions."""

from __future__ import annotations

from dataclasses import dataclass

from firnmq.errors import InvalidArgument


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Time-outs and limits of transactions; a refusal touches only the client that asked."""

    timeout_max_ms: int = 900_000
    """Milliseconds a producer may ask for; until its transaction ends, clients that read only what
    is committed see nothing that was written after its first record."""

    id_expiration_ms: int = 7 * 24 * 3_600_000
    """Milliseconds after which a transactional id that no producer has used is forgotten."""

    id_count_max: int = 100_000
    """Transactional ids held in memory and in the store. At the limit a new one takes the place of
    an id of the client that has most ids that may give way."""

    client_id_count_max: int = 25_000
    """Transactional ids that one client may begin, so that it cannot fill the limit for others. A
    client is an authenticated user or, without authentication, an address. At this limit and at
    the next one, the client's oldest id that never had a transaction gives way to a new one, if its
    connection is closed; its producer is told INVALID_PRODUCER_ID_MAPPING."""

    client_unused_id_count_max: int = 5_000
    """Of these, ids that never had a transaction."""

    id_chars_max: int = 1_024
    """Characters of a transactional id; it is a key in the store."""

    partition_count_max: int = 10_000
    """Partitions of one transaction: each gets a marker, and all are saved as one value."""

    offset_count_max: int = 100_000
    """Group offsets of one transaction; they are saved with it until it ends."""

    offset_bytes_max: int = 256 << 20
    """Bytes of the group offsets of all open transactions; they are held in memory."""

    client_offset_bytes_max: int = 64 << 20
    """The same of transactional ids that one client began."""

    retry_ms: int = 200
    """Milliseconds after which a failed write of a decision or of a marker is tried again."""

    end_wait_ms: int = 10_000
    """Milliseconds the end of a transaction waits for its markers. Its outcome is certain
    before; waiting lets the client find its records committed."""

    marker_concurrency_max: int = 64
    """Markers of one transaction on their way at once."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) < 1:
                raise InvalidArgument(name, "must be at least 1")
