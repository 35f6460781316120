"""Requests to append: prepared by the caller, so that the worker only numbers and writes them.

Encoding, checking and collecting index terms happen in the caller's thread, while the worker is
waiting for the disk. Requests of a few records stay records: the worker makes one batch of many
such requests, which is what makes single appends cheap on disk and to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from firnmq.config import TopicConfig
from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.api import Appended
from firnmq.errors import InvalidArgument, LimitExceeded
from firnmq.index import Terms
from firnmq.record import (
    Compression,
    NewRecord,
    checked,
    collect,
    encode,
    parse_header,
    validate,
)

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog

MERGE_RECORDS_MAX = 16
"""Requests of up to this many records are merged with others; larger ones are batches already."""
BATCH_RECORDS_MAX = 10_000
"""Records of one batch made here: a read decodes at least one batch."""
_RECORD_OVERHEAD_BYTES = 32
_BATCH_OVERHEAD_BYTES = 256
"""More than a batch's header and what a codec adds to bytes it cannot compress."""


class PreparedBatch:
    """One batch, ready but for its base offset. `terms` hold offsets relative to it."""

    __slots__ = ("data", "max_timestamp", "record_count", "terms")

    def __init__(
        self, data: bytearray, record_count: int, max_timestamp: int, terms: Terms | None
    ) -> None:
        self.data = data
        self.record_count = record_count
        self.max_timestamp = max_timestamp
        self.terms = terms


class Append:
    """One caller's request: either a few records or prepared batches."""

    __slots__ = ("appended", "batches", "log", "records", "size_bytes", "ticket")

    def __init__(
        self, records: list[NewRecord] | None, batches: list[PreparedBatch], size_bytes: int
    ) -> None:
        self.records = records
        self.batches = batches
        self.size_bytes = size_bytes
        self.appended: Appended | None = None
        self.log: ShardLog
        """Where it goes; set with the ticket when the request is handed to the pool."""
        self.ticket: Ticket[Appended]


def prepare_records(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> Append:
    """Checks a caller's records and encodes them unless they are few."""
    if not records:
        raise InvalidArgument("records", "there must be at least one")
    good = [checked(record, max_record_bytes=config.max_record_bytes) for record in records]
    if len(good) <= MERGE_RECORDS_MAX:
        stamped = [_stamped(record, now_ms) for record in good]
        size = sum(map(_rough_size, stamped))
        # What may not fit is encoded and judged here: the worker must never refuse a request,
        # since that would close the shard for everyone.
        if size + _BATCH_OVERHEAD_BYTES <= config.max_batch_bytes:
            return Append(stamped, [], size)
    parts = _parts(good, config.max_batch_bytes)
    batches = [_judged(_encoded(part, config, now_ms), config) for part in parts]
    return Append(None, batches, sum(len(batch.data) for batch in batches))


def prepare_batch(batch: Buffer, config: TopicConfig) -> PreparedBatch:
    """Checks one batch from a client. A writable buffer is patched in place later."""
    header = validate(
        batch, max_batch_bytes=config.max_batch_bytes, max_record_bytes=config.max_record_bytes
    )
    data = batch if isinstance(batch, bytearray) else bytearray(batch)
    data[0:8] = bytes(8)  # The client's own base offset means nothing here.
    return PreparedBatch(data, header.record_count, header.max_timestamp, terms_of(data, config))


def merge_records(records: list[NewRecord], config: TopicConfig, now_ms: int) -> PreparedBatch:
    """One batch from the records of several requests, all checked and stamped before."""
    return _encoded(records, config, now_ms)


def _judged(batch: PreparedBatch, config: TopicConfig) -> PreparedBatch:
    if batch.record_count == 1 and len(batch.data) > config.max_batch_bytes:
        raise LimitExceeded("batch", len(batch.data), config.max_batch_bytes)
    return batch


def _encoded(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> PreparedBatch:
    data = encode(
        records,
        now_ms=now_ms,
        compression=Compression[config.compression_type.name],
        tag_header=config.tag_headers[0].encode(),
        expire_header=config.expire_header.encode(),
    )
    header = parse_header(data, 0)
    return PreparedBatch(data, len(records), header.max_timestamp, terms_of(data, config))


def terms_of(data: Buffer, config: TopicConfig) -> Terms | None:
    """Keys and tags for the indexes the topic keeps, with offsets relative to the batch."""
    if not (config.index_key or config.index_tag):
        return None
    found = collect(data, tag_headers=tuple(name.encode() for name in config.tag_headers))
    keys = found.keys if config.index_key else {}
    tags = found.tags if config.index_tag else {}
    base = parse_header(data, 0).base_offset
    if base:
        keys = {key: offset - base for key, offset in keys.items()}
        tags = {tag: [offset - base for offset in offsets] for tag, offsets in tags.items()}
    return Terms(keys, tags)


def _stamped(record: NewRecord, now_ms: int) -> NewRecord:
    """The record with its timestamp fixed now, not when the worker gets to it."""
    if record.timestamp_ms is not None:
        return record
    return NewRecord(
        value=record.value,
        key=record.key,
        headers=record.headers,
        tags=record.tags,
        timestamp_ms=now_ms,
        expire_at_ms=record.expire_at_ms,
    )


def _rough_size(record: NewRecord) -> int:
    size = _RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")
    for name, value in record.headers:
        size += 4 * len(name) + len(value or b"")
    return size + sum(4 * len(tag) + 8 for tag in record.tags)


def _parts(records: list[NewRecord], bytes_max: int) -> list[list[NewRecord]]:
    """Runs of records that make batches within the limits."""
    parts: list[list[NewRecord]] = []
    part: list[NewRecord] = []
    size = 0
    for record in records:
        record_size = _rough_size(record)
        if part and (size + record_size > bytes_max or len(part) >= BATCH_RECORDS_MAX):
            parts.append(part)
            part, size = [], 0
        part.append(record)
        size += record_size
    parts.append(part)
    return parts
