"""Whether a client's batch is sound."""

import cython
from crc32c import crc32c

from firnmq.errors import InvalidRecord, LimitExceeded
from firnmq.record.batch import (
    ATTRIBUTE_CODEC,
    BATCH_BYTES_MAX,
    CRC_START,
    DECOMPRESSED_BYTES_MAX,
    HEADER_BYTES,
    MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    BatchHeader,
    Buffer,
    parse_header,
)
from firnmq.record.compression import check_framing
from firnmq.record.rewrite import unpacked

if not cython.compiled:
    from firnmq.record.codec.constants import (
        BAD_OFFSET_DELTA,
        HEADER_SIZE,
        REASONS,
        RECORD_SIZE_MIN,
        TOO_LARGE,
    )
    from firnmq.record.codec.fields import Fields, Found, walk_records
    from firnmq.record.codec.memory import View, view_of

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_AS_STRING

NO_HEADER = b"\xff"
"""A name that no header has: names are UTF-8."""

# Records of this many bytes and more are judged without the interpreter's lock; getting the lock
# back costs more than judging fewer.
_UNLOCKED_BYTES_MIN = cython.declare(cython.Py_ssize_t, 64 * 1024)


def validate_header(
    batch: Buffer,
    *,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
) -> BatchHeader:
    """The header of a client's batch, judged without a look at the records.

    Sound are: one whole batch and nothing else, magic, codec, CRC, offset delta and a count of
    records that the bytes can hold. InvalidRecord or LimitExceeded otherwise.
    """
    size = memoryview(batch).nbytes
    if size > max_batch_bytes:
        raise LimitExceeded("batch", size, max_batch_bytes, option="max.batch.bytes")
    header = parse_header(batch)
    if header.size_bytes != size:
        raise InvalidRecord(
            f"batch of {size:,} bytes says in its header that it has {header.size_bytes:,}"
        )
    if header.magic != MAGIC:
        raise InvalidRecord(f"batch has magic {header.magic}, only {MAGIC} is supported")
    codec = header.attributes & ATTRIBUTE_CODEC
    if codec > 4:
        raise InvalidRecord(f"batch has unknown compression codec {codec}")
    crc = crc32c(memoryview(batch)[CRC_START:])
    if crc != header.crc:
        raise InvalidRecord(f"batch has crc {crc:08x}, its header says {header.crc:08x}")
    count = header.record_count
    payload_max = size - HEADER_BYTES if codec == 0 else max_decompressed
    if not 1 <= count <= payload_max // RECORD_BYTES_MIN:
        raise InvalidRecord(f"batch of {size:,} bytes cannot have {count:,} records")
    if header.last_offset_delta != count - 1:
        raise InvalidRecord(
            f"batch of {count:,} records has last offset delta {header.last_offset_delta:,}"
        )
    return header


def validate(
    batch: Buffer,
    *,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    max_record_bytes: int = RECORD_BYTES_MAX,
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
) -> BatchHeader:
    """The header of a client's batch all of whose bytes have been judged, as `judge` does it."""
    judged: JudgedBatch = judge(
        batch,
        max_batch_bytes=max_batch_bytes,
        max_record_bytes=max_record_bytes,
        max_decompressed=max_decompressed,
    )
    return judged.header


@cython.final
@cython.cclass
class JudgedBatch:
    """A client's batch that is sound, and what its records have in common."""

    # The header, with the newest timestamp of the records.
    header = cython.declare(object, visibility="readonly")
    # Whether the batch's own header has another newest timestamp, so that it must be rewritten.
    is_corrected = cython.declare(cython.bint, visibility="readonly")
    # The whole batch with its records not compressed: the batch itself if they never were. The
    # CRC in it is that of the compressed batch.
    plain = cython.declare(object, visibility="readonly")
    # Whether a record has a key or headers, so that an index may want it.
    has_terms = cython.declare(cython.bint, visibility="readonly")
    # Whether a record has no key.
    has_keyless = cython.declare(cython.bint, visibility="readonly")
    # When the first record expires by its own header; -1 if none does.
    first_expiry_ms = cython.declare(cython.longlong, visibility="readonly")


def judge(
    batch: Buffer,
    *,
    max_batch_bytes: int = BATCH_BYTES_MAX,
    max_record_bytes: int = RECORD_BYTES_MAX,
    max_decompressed: int = DECOMPRESSED_BYTES_MAX,
    expire_header: bytes = NO_HEADER,
) -> JudgedBatch:
    """Judges every byte of a client's batch. The records are decompressed and walked once.

    Besides what `validate_header` asks: compressed bytes that every client can read, as many
    records as counted and nothing after them, offset deltas 0 to n - 1, lengths that fit, no record
    above `max_record_bytes`, and header names in UTF-8. InvalidRecord or LimitExceeded otherwise.
    A max timestamp that is not the records' own is corrected in the header that the result has, not
    in the batch: some clients set it wrongly.
    """
    header = validate_header(
        batch, max_batch_bytes=max_batch_bytes, max_decompressed=max_decompressed
    )
    result: JudgedBatch = JudgedBatch.__new__(JudgedBatch)
    result.header = header
    result.plain = batch
    if header.attributes & ATTRIBUTE_CODEC:
        result.plain = unpacked(batch, max_bytes=max_decompressed)
        packed = memoryview(batch)[HEADER_BYTES:]
        check_framing(header.compression, packed, len(result.plain) - HEADER_BYTES)
    view: View = view_of(result.plain)
    found: Found = Found.__new__(Found)
    _judge_records(
        view,
        header.record_count,
        header.base_timestamp,
        max_record_bytes,
        expire_header,
        found,
    )
    result.is_corrected = not header.is_append_time and found.newest != header.max_timestamp
    if result.is_corrected:
        result.header = header._replace(max_timestamp=found.newest)
    result.has_terms = found.has_terms
    result.has_keyless = found.has_keyless
    result.first_expiry_ms = found.first_expiry
    return result


@cython.cfunc
@cython.exceptval(-1)
def _judge_records(
    view: View,
    record_count: cython.longlong,
    base_timestamp: cython.longlong,
    max_record_bytes: cython.longlong,
    expire_header: bytes,
    found: Found,
) -> cython.int:
    """Judges the records that follow the header at the start of `view`, and fills `found`."""
    fields: Fields = Fields.__new__(Fields)
    code: cython.int
    name: cython.p_uchar = _characters(expire_header)
    name_length: cython.Py_ssize_t = len(expire_header)
    p: cython.p_uchar = view.p
    end: cython.Py_ssize_t = view.size
    if record_count > (view.size - HEADER_SIZE) // RECORD_SIZE_MIN:
        raise InvalidRecord(f"batch cannot hold the {record_count:,} records it counts")
    if view.size < _UNLOCKED_BYTES_MIN:
        code = walk_records(
            p, end, record_count, base_timestamp, max_record_bytes, name, name_length, fields, found
        )
    else:
        with cython.nogil:
            code = walk_records(
                p,
                end,
                record_count,
                base_timestamp,
                max_record_bytes,
                name,
                name_length,
                fields,
                found,
            )
    if code == TOO_LARGE:
        raise LimitExceeded(
            f"record {found.index}",
            found.size,
            max_record_bytes,
            option="max.record.bytes",
            record_indexes=(found.index,),
        )
    if code == BAD_OFFSET_DELTA:
        reason = f"record {found.index} has offset delta {found.offset_delta}"
        raise InvalidRecord(reason, record_indexes=(found.index,))
    if code != 0:
        reason = f"record {found.index} at byte {found.at:,}: {REASONS[code]}"
        raise InvalidRecord(reason, record_indexes=(found.index,))
    if found.at != view.size:
        raise InvalidRecord(f"{view.size - found.at:,} bytes are left over after the last record")
    return 0


@cython.cfunc
@cython.inline
def _characters(text: bytes) -> cython.p_uchar:
    if cython.compiled:
        return cython.cast(cython.p_uchar, PyBytes_AS_STRING(text))
    else:
        return text
