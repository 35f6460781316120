"""Requests to append: prepared by the caller, so that the worker only numbers and writes them.

Encoding, checking and collecting index terms happen in the caller's thread, while the worker is
waiting for the disk. Requests of a few records stay records: the worker makes one batch of many
such requests, which is what makes single appends cheap on disk and to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal

from firnmq.config import TopicConfig
from firnmq.disk import Ticket
from firnmq.disk.files import Buffer
from firnmq.engines.api import Appended
from firnmq.errors import (
    FirnError,
    InvalidArgument,
    InvalidRecord,
    KeyRequired,
    LimitExceeded,
)
from firnmq.index import NEVER_MS, Terms
from firnmq.record import (
    BatchHeader,
    Compression,
    NewRecord,
    Selection,
    checked,
    collect,
    decode,
    encode,
    encode_some,
    parse_header,
    unpacked,
    validate,
    validate_header,
)
from firnmq.record.batch import (
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    attributes_of,
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
_NO_OFFSET = bytes(8)
_SEARCHED_BYTES_MAX = 4096
"""In a batch up to this size the expiry header's name is looked for before records are."""
_KEYS_ONLY = Selection(columns=frozenset({"key"}))


class PreparedBatch:
    """One batch, ready but for its base offset. `terms` hold offsets relative to it."""

    __slots__ = ("data", "first_expiry_ms", "header", "max_timestamp", "record_count", "terms")

    def __init__(
        self,
        data: bytearray | memoryview,
        header: BatchHeader,
        terms: Terms | None,
        first_expiry_ms: int = NEVER_MS,
    ) -> None:
        self.data = data
        self.header = header
        self.record_count = header.record_count
        self.max_timestamp = header.max_timestamp
        self.terms = terms
        self.first_expiry_ms = first_expiry_ms


class Append:
    """One caller's request: either a few records or prepared batches."""

    __slots__ = ("appended", "batches", "log", "records", "refusal", "size_bytes", "ticket")

    def __init__(
        self, records: list[NewRecord] | None, batches: list[PreparedBatch], size_bytes: int
    ) -> None:
        self.records = records
        self.batches = batches
        self.size_bytes = size_bytes
        self.appended: Appended | None = None
        self.refusal: FirnError | None = None
        """Why the shard does not take it, where that is the sender's fault alone."""
        self.log: ShardLog
        """Where it goes; set with the ticket when the request is handed to the pool."""
        self.ticket: Ticket[Appended]


def prepare_records(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> Append:
    """Checks a caller's records and encodes them unless they are few."""
    if not records:
        raise InvalidArgument("records", "there must be at least one")
    _check_records(records, config)
    if len(records) <= MERGE_RECORDS_MAX:
        good = [checked(record, max_record_bytes=config.max_record_bytes) for record in records]
        stamped = [_stamped(record, now_ms) for record in good]
        size = sum(map(_rough_size, stamped))
        # What may not fit is encoded and judged here: the worker must never refuse a request,
        # since that would close the shard for everyone.
        if size + _BATCH_OVERHEAD_BYTES <= config.max_batch_bytes:
            return Append(stamped, [], size)
    batches = []
    start = 0
    while start < len(records):
        batch, start = _encoded(records, start, config, now_ms)
        batches.append(_judged(batch, config))
    return Append(None, batches, sum(len(batch.data) for batch in batches))


def prepare_batch(batch: Buffer, config: TopicConfig) -> PreparedBatch:
    """Checks one batch from a client. A writable buffer is patched in place later.

    Records are checked one by one unless that means decompressing them for nobody: then only the
    header and the CRC are.
    """
    is_indexed = config.index_key or config.index_tag
    if is_indexed or not attributes_of(batch) & ATTRIBUTE_CODEC:
        header = validate(
            batch, max_batch_bytes=config.max_batch_bytes, max_record_bytes=config.max_record_bytes
        )
    else:
        header = validate_header(batch, max_batch_bytes=config.max_batch_bytes)
    if header.attributes & ATTRIBUTE_CONTROL:
        raise InvalidRecord("control batches are written by the coordinator of transactions only")
    if (
        header.attributes & ATTRIBUTE_TRANSACTIONAL
        and min(header.producer_id, header.producer_epoch) < 0
    ):
        raise InvalidRecord("a transactional batch needs a producer and its epoch")
    data = _writable(batch)
    data[0:8] = _NO_OFFSET  # The client's own base offset means nothing here.
    if config.expire_header is None and not (is_indexed or config.compacts):
        return PreparedBatch(data, header, None)
    plain: Buffer = unpacked(data) if _is_compressed(data) else data
    if config.compacts and _has_keyless(plain):
        raise KeyRequired
    return PreparedBatch(
        data, header, terms_of(plain, config), first_expiry(plain, config, "client")
    )


def _is_compressed(batch: Buffer) -> bool:
    return bool(attributes_of(batch) & ATTRIBUTE_CODEC)


def _writable(batch: Buffer) -> bytearray | memoryview:
    if isinstance(batch, bytearray):
        return batch
    view = memoryview(batch)
    return bytearray(view) if view.readonly else view


def merge_records(records: list[NewRecord], config: TopicConfig, now_ms: int) -> PreparedBatch:
    """One batch from the records of several requests, all checked and stamped before."""
    data = encode(
        records,
        now_ms=now_ms,
        compression=Compression[config.compression_type.name],
        tag_header=config.tag_headers[0].encode(),
        expire_header=config.expire_header_bytes,
    )
    may_expire = any(map(partial(_may_expire, name=config.expire_header), records))
    expiry = first_expiry(data, config) if may_expire else NEVER_MS
    return PreparedBatch(data, parse_header(data, 0), terms_of(data, config), expiry)


def _judged(batch: PreparedBatch, config: TopicConfig) -> PreparedBatch:
    if batch.record_count == 1 and len(batch.data) > config.max_batch_bytes:
        raise LimitExceeded("batch", len(batch.data), config.max_batch_bytes)
    return batch


def _encoded(
    records: Sequence[NewRecord], start: int, config: TopicConfig, now_ms: int
) -> tuple[PreparedBatch, int]:
    """A batch of records from `start` on, as many as fit, and the index of the next record."""
    data, end, has_terms = encode_some(
        records,
        start,
        now_ms=now_ms,
        compression=Compression[config.compression_type.name],
        tag_header=config.tag_headers[0].encode(),
        expire_header=config.expire_header_bytes,
        max_record_bytes=config.max_record_bytes,
        max_batch_bytes=config.max_batch_bytes,
        max_records=BATCH_RECORDS_MAX,
    )
    terms, expiry = None, NEVER_MS
    if has_terms:
        terms, expiry = terms_of(data, config), first_expiry(data, config)
    return PreparedBatch(data, parse_header(data, 0), terms, expiry), end


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


def first_expiry(
    data: Buffer, config: TopicConfig, source: Literal["disk", "client"] = "disk"
) -> int:
    """When the first of a batch's records expires by its own header; NEVER_MS if none does."""
    if config.expire_header is None:
        return NEVER_MS
    name = config.expire_header_bytes
    if len(data) <= _SEARCHED_BYTES_MAX and not _is_compressed(data) and name not in bytes(data):
        return NEVER_MS
    columns = decode([data], _expiries_only(name), verify=False, source=source)
    expiries = columns.expiries
    if expiries is None:
        return NEVER_MS
    if columns.expiry_validity is None:
        return min(expiries)
    found = map(columns.expire_at_ms, range(len(columns)))
    return min((each for each in found if each is not None), default=NEVER_MS)


@lru_cache(maxsize=64)
def _expiries_only(expire_header: bytes) -> Selection:
    return Selection(columns=frozenset(), expire_header=expire_header)


def _has_keyless(batch: Buffer) -> bool:
    keys = decode([batch], _KEYS_ONLY, verify=False, source="client").keys
    return keys is not None and keys.null_count > 0


def _check_records(records: Sequence[NewRecord], config: TopicConfig) -> None:
    """Refuses what the topic's options do not allow of a record; its fields are judged later."""
    if config.compacts and any(getattr(record, "key", b"") is None for record in records):
        raise KeyRequired
    if config.expire_header is None and any(
        getattr(record, "expire_at_ms", None) is not None for record in records
    ):
        raise InvalidArgument("expire_at_ms", "the topic has expire.header=none")


def _may_expire(record: NewRecord, *, name: str | None) -> bool:
    return record.expire_at_ms is not None or any(each == name for each, _ in record.headers)


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
