"""Requests to append: prepared by the caller, so that the worker only numbers and writes them.

Encoding, checking and collecting index terms happen in the caller's thread, while the worker is
waiting for the disk. Requests of a few records stay records: the worker makes one batch of many
such requests, which is what makes single appends cheap on disk and to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Literal

from firnmq.config import TopicConfig
from firnmq.disk import Ticket, call_blocking
from firnmq.disk.files import Buffer
from firnmq.disk.waiting import is_blocking
from firnmq.engines.api import Acks, Appended
from firnmq.engines.shardlog.rules import BatchRules
from firnmq.errors import (
    AppendTimedOut,
    FirnError,
    InvalidArgument,
    InvalidRecord,
    InvalidTimestamp,
    KeyRequired,
    LimitExceeded,
)
from firnmq.index import NEVER_MS, Terms
from firnmq.record import (
    BatchHeader,
    Compression,
    Keys,
    NewRecord,
    Selection,
    checked,
    collect,
    decode,
    encode,
    encode_some,
    judge,
    parse_header,
    validate_header,
    with_header,
)
from firnmq.record.batch import (
    ATTRIBUTE_APPEND_TIME,
    ATTRIBUTE_CODEC,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    DECOMPRESSED_BYTES_MAX,
    attributes_of,
)

if TYPE_CHECKING:
    from firnmq.engines.shardlog.log import ShardLog

MERGE_RECORDS_MAX = 16
"""Requests of up to this many records are merged with others; larger ones are batches already."""
BATCH_RECORDS_MAX = 10_000
"""Records that requests are merged up to: a read decodes at least one batch."""
_RECORD_OVERHEAD_BYTES = 32
_BATCH_OVERHEAD_BYTES = 256
"""More than a batch's header and what a codec adds to bytes it cannot compress."""
_NO_OFFSET = bytes(8)
_SEARCHED_BYTES_MAX = 4096
"""In a batch up to this size the expiry header's name is looked for before records are."""
_INLINE_BYTES_MAX = 2 * 1024 * 1024
_INLINE_PACKED_BYTES_MAX = 64 * 1024
_INLINE_UNPACKED_BYTES_MAX = 256 * 1024
_INLINE_LARGE_BYTES_MAX = 1024 * 1024
_INLINE_LARGE_RECORDS_MAX = 2_000
_INLINE_LARGE_TERMS_MAX = 4_096
"""What an event loop judges by itself: at most two or three milliseconds of work with the slowest
codec. Handing a smaller batch to a thread would cost more than judging it. What a batch for a topic
with an index takes depends on its records, keys and tags more than on its bytes: a megabyte of
records of one KiB takes 0.2 ms."""
TERMS_MAX = 100_000
"""Keys and tags of a client's batch for a topic with an index, so that a small compressed batch
cannot take the memory of the process."""
_TERM_BYTES = 300
"""What a key or tag and its index entry take in memory."""
_TOLD_INDEXES_MAX = 100
"""Records that one refusal names, so that a small batch cannot make a large answer."""
_KEYS_ONLY = Selection(columns=frozenset({"key"}))
_TIMESTAMPS_ONLY = Selection(columns=frozenset())
_NO_TIMESTAMP = -1
_NEEDS_CHECK = ATTRIBUTE_CONTROL | ATTRIBUTE_TRANSACTIONAL | ATTRIBUTE_APPEND_TIME
"""Attributes that may not be a producer's to set."""


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

    @property
    def held_bytes(self) -> int:
        """Memory that the batch takes until it is stored, the index entries to be made included."""
        terms = self.terms
        term_count = 0 if terms is None else len(terms.keys) + len(terms.tags)
        return len(self.data) + _TERM_BYTES * term_count


class Append:
    """One caller's request: a few records, or one prepared batch.

    A batch is what is stored whole or not at all, whatever fails, so a request never needs two.
    """

    __slots__ = (
        *("acks", "appended", "batch", "deadline_s", "log", "records", "refusal", "size_bytes"),
        "ticket",
    )

    def __init__(
        self, records: list[NewRecord] | None, batch: PreparedBatch | None, size_bytes: int
    ) -> None:
        self.acks = Acks.ALL
        self.deadline_s: float | None = None
        """By `time.monotonic`: queued until then, the request is refused; appended and not
        acknowledged by then, its outcome is unknown. None: it waits for as long as it takes."""
        self.records = records
        self.batch = batch
        self.size_bytes = size_bytes
        self.appended: Appended | None = None
        self.refusal: FirnError | None = None
        """Why the shard does not take it, where that is the sender's fault alone."""
        self.log: ShardLog
        """Where it goes; set with the ticket before the request is submitted."""
        self.ticket: Ticket[Appended]

    def promise(self, acks: Acks, deadline_s: float | None) -> None:
        """What its sender waits for, and how long; one that wants no acknowledgement never does."""
        self.acks = acks
        self.deadline_s = None if acks is Acks.NONE else deadline_s

    def overdue(self) -> AppendTimedOut:
        """What it fails with if it is still queued at its deadline."""
        return AppendTimedOut(is_unknown=False)

    def let_go(self) -> None:
        """Drops the records, which are in the log: waiting for replicas takes no more memory."""
        self.records = self.batch = None


def prepare_records(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> Append:
    """Checks a caller's records and encodes them unless they are few."""
    if not records:
        raise InvalidArgument("records", "there must be at least one")
    _check_records(records, config, now_ms)
    if len(records) <= MERGE_RECORDS_MAX:
        good = [checked(record, max_record_bytes=config.max_record_bytes) for record in records]
        stamped = [_stamped(record, now_ms) for record in good]
        size = sum(map(_rough_size, stamped))
        # What may not fit is encoded and judged here: the worker must never refuse a request,
        # since that would close the shard for everyone.
        if size + _BATCH_OVERHEAD_BYTES <= config.max_batch_bytes:
            return Append(stamped, None, size)
    batch = _encoded(records, config, now_ms)
    return Append(None, batch, len(batch.data))


def check_append(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> None:
    """Raises what an append of these records would be refused with."""
    _check_records(records, config, now_ms)
    good = [checked(record, max_record_bytes=config.max_record_bytes) for record in records]
    if sum(map(_rough_size, good)) + _BATCH_OVERHEAD_BYTES > config.max_batch_bytes:
        _encoded(records, config, now_ms)


def prepare_batch(
    batch: Buffer,
    rules: BatchRules,
    now_ms: int,
    *,
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
    max_terms: int | None = None,
) -> PreparedBatch:
    """Judges one batch from a client, records included. A writable buffer is patched later.

    Records are decompressed and walked once. Only a topic with `check.compressed=false` that needs
    nothing from the records takes a compressed batch by its header and CRC alone. A batch that is
    refused has lost nothing but its own base offset, and can be prepared again with higher limits.
    """
    config = rules.config
    if not rules.unpacks and _is_compressed(batch):
        header = validate_header(batch, max_batch_bytes=rules.max_batch_bytes)
        _check_producer(header)
        data = _writable(batch)
        header = _stamp_batch(data, header, config, now_ms)
        return PreparedBatch(_without_offset(data), header, None)
    judged = judge(
        batch,
        max_batch_bytes=rules.max_batch_bytes,
        max_record_bytes=rules.max_record_bytes,
        max_decompressed=max_decompressed,
        expire_header=rules.expire_header,
    )
    header = judged.header
    _check_producer(header)
    data = _without_offset(_writable(batch))
    if rules.limits_timestamps:
        _check_timestamps(judged.plain, config, now_ms)
    terms = None
    if rules.needs_records:
        plain = data if judged.plain is batch else _without_offset(judged.plain)
        if config.compacts and judged.has_keyless:
            raise KeyRequired(_keyless_indexes(plain))
        if judged.has_terms:
            terms = terms_of(plain, config, max_terms=max_terms or TERMS_MAX, is_packed=True)
    if rules.has_append_time:
        header = _stamp_batch(data, header, config, now_ms)
        _without_offset(data)  # A new header has it again.
    elif judged.is_corrected:
        with_header(data, header)
        _without_offset(data)
    expiry_ms = judged.first_expiry_ms
    return PreparedBatch(data, header, terms, expiry_ms if expiry_ms >= 0 else NEVER_MS)


def prepare_inline(batch: Buffer, rules: BatchRules, now_ms: int) -> PreparedBatch | None:
    """`prepare_batch` for an event loop; None if other clients would have to wait too long."""
    if not attributes_of(batch) & ATTRIBUTE_CODEC:
        if not rules.needs_records:
            return prepare_batch(batch, rules, now_ms) if len(batch) <= _INLINE_BYTES_MAX else None
        if len(batch) <= _INLINE_UNPACKED_BYTES_MAX:
            return prepare_batch(batch, rules, now_ms)
        return _prepare_large_inline(batch, rules, now_ms)
    if len(batch) > _INLINE_PACKED_BYTES_MAX:
        return None
    try:
        return prepare_batch(batch, rules, now_ms, max_decompressed=_INLINE_UNPACKED_BYTES_MAX)
    except LimitExceeded:
        return None  # The batch may only be above the limit for event loops.


def _prepare_large_inline(batch: Buffer, rules: BatchRules, now_ms: int) -> PreparedBatch | None:
    """`prepare_inline` for a plain batch of more bytes, of a topic that needs its records."""
    if (
        len(batch) > _INLINE_LARGE_BYTES_MAX
        or parse_header(batch).record_count > _INLINE_LARGE_RECORDS_MAX
    ):
        return None
    try:
        return prepare_batch(batch, rules, now_ms, max_terms=_INLINE_LARGE_TERMS_MAX)
    except LimitExceeded:
        return None  # Refused by the slow path, if it is not for an event loop's limit alone.


async def prepare_request(
    batch: Buffer, rules: BatchRules, judges: Executor | None, now_ms: int
) -> Append:
    """`prepare_batch` for a request, in a thread of `judges` where an event loop would take too
    long."""
    prepared = None if is_blocking() else prepare_inline(batch, rules, now_ms)
    if prepared is None:
        prepared = await call_blocking(judges, prepare_batch, batch, rules, now_ms)
    return Append(None, prepared, prepared.held_bytes)


def _stamp_batch(
    data: bytearray | memoryview, header: BatchHeader, config: TopicConfig, now_ms: int
) -> BatchHeader:
    """Gives a batch the time of its append, where the topic's records have that."""
    if not config.has_append_time:
        return header
    attributes = header.attributes | ATTRIBUTE_APPEND_TIME
    stamped = header._replace(attributes=attributes, max_timestamp=now_ms)
    with_header(data, stamped)
    return stamped


def _check_timestamps(plain: Buffer, config: TopicConfig, now_ms: int) -> None:
    """Refuses a batch with a record that is too old or too far in the future."""
    columns = decode([plain], _TIMESTAMPS_ONLY, verify=False, source="client")
    _check_times(columns.timestamps, config, now_ms)


def _check_times(times: Sequence[int], config: TopicConfig, now_ms: int) -> None:
    before, after = config.message_timestamp_before_max_ms, config.message_timestamp_after_max_ms
    oldest_ms = -(2**63) if before is None else now_ms - before
    newest_ms = 2**63 if after is None else now_ms + after
    if oldest_ms <= min(times) and max(times) <= newest_ms:
        return
    wrong = [
        index
        for index, at_ms in enumerate(times)
        if at_ms != _NO_TIMESTAMP and not oldest_ms <= at_ms <= newest_ms
    ]
    if wrong:
        at_ms = times[wrong[0]]
        option = f"message.timestamp.{'before' if at_ms < oldest_ms else 'after'}.max.ms"
        raise InvalidTimestamp(at_ms, now_ms, option, wrong[:_TOLD_INDEXES_MAX])


def _check_producer(header: BatchHeader) -> None:
    """Refuses what only the node may write, and producers that do not count their batches."""
    if header.producer_id < 0 and not header.attributes & _NEEDS_CHECK:
        return
    if header.attributes & ATTRIBUTE_CONTROL:
        raise InvalidRecord("control batches are written by the coordinator of transactions only")
    if header.producer_id >= 0:
        if header.producer_epoch < 0 or header.base_sequence < 0:
            raise InvalidRecord(
                f"a batch of producer {header.producer_id} needs an epoch and a sequence number, "
                f"not {header.producer_epoch} and {header.base_sequence}"
            )
    elif header.attributes & ATTRIBUTE_TRANSACTIONAL:
        raise InvalidRecord("a transactional batch needs a producer and its epoch")
    if header.attributes & ATTRIBUTE_APPEND_TIME:
        raise InvalidRecord("a producer must not say that a batch has the time of its append")


def _without_offset(batch: bytearray | memoryview) -> bytearray | memoryview:
    """The batch without the client's own base offset, which means nothing here."""
    batch[0:8] = _NO_OFFSET
    return batch


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
    header = _stamp_batch(data, parse_header(data, 0), config, now_ms)
    may_expire = any(map(partial(_may_expire, name=config.expire_header), records))
    expiry = first_expiry(data, config) if may_expire else NEVER_MS
    return PreparedBatch(data, header, terms_of(data, config), expiry)


def _encoded(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> PreparedBatch:
    """One batch of all records; LimitExceeded if they do not fit."""
    limit = config.max_batch_bytes
    encode_from = partial(
        encode_some,
        records,
        now_ms=now_ms,
        tag_header=config.tag_headers[0].encode(),
        expire_header=config.expire_header_bytes,
        max_record_bytes=config.max_record_bytes,
        max_batch_bytes=limit,
    )
    data, end, has_terms = encode_from(0, compression=Compression[config.compression_type.name])
    if end < len(records):
        size_bytes = end = 0
        while end < len(records):
            part, end, _ = encode_from(end)
            size_bytes += len(part)
        what = f"a request of {len(records):,} records, stored whole or not at all,"
        raise LimitExceeded(what, size_bytes, limit, option="max.batch.bytes")
    if len(records) == 1 and len(data) > limit:
        raise LimitExceeded("batch", len(data), limit, option="max.batch.bytes")
    terms, expiry = None, NEVER_MS
    if has_terms:
        terms, expiry = terms_of(data, config), first_expiry(data, config)
    header = _stamp_batch(data, parse_header(data, 0), config, now_ms)
    return PreparedBatch(data, header, terms, expiry)


def terms_of(
    data: Buffer, config: TopicConfig, *, max_terms: int = 2**62, is_packed: bool = False
) -> Terms | None:
    """Keys and tags for the indexes the topic keeps, with offsets relative to the batch. Keys of a
    batch without an offset of its own may be packed."""
    if not (config.index_key or config.index_tag):
        return None
    names = tuple(name.encode() for name in config.tag_headers)
    found = collect(data, tag_headers=names, max_terms=max_terms, is_packed=is_packed)
    keys: Keys = found.keys if config.index_key else {}
    tags = found.tags if config.index_tag else {}
    base = parse_header(data, 0).base_offset
    if base:
        assert not is_packed
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


def _keyless_indexes(batch: Buffer) -> list[int]:
    """Which records have no key, as many as a client is told of."""
    keys = decode([batch], _KEYS_ONLY, verify=False, source="client").keys
    assert keys is not None
    keyless = (index for index, key in enumerate(keys.entries()) if key is None)
    return list(islice(keyless, _TOLD_INDEXES_MAX))


def _check_records(records: Sequence[NewRecord], config: TopicConfig, now_ms: int) -> None:
    """Refuses what the topic's options do not allow of a record; its fields are judged later."""
    if config.limits_timestamps:
        given = (getattr(record, "timestamp_ms", None) for record in records)
        times = [each if isinstance(each, int) else now_ms for each in given]
        _check_times(times, config, now_ms)
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
