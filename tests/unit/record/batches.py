"""Batches made by hand, so that a test can say exactly which byte is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from firnmq.record import BatchHeader, Compression, compress
from firnmq.record.batch import CRC_START, HEADER_BYTES


def varint(number: int) -> bytes:
    """A zigzag varint, written independently of the codec."""
    raw = (number << 1) ^ (number >> 63)
    output = bytearray()
    while raw > 0x7F:
        output.append(raw & 0x7F | 0x80)
        raw >>= 7
    output.append(raw)
    return bytes(output)


def field(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


def record(
    delta: int = 0,
    *,
    key: bytes | None = None,
    value: bytes | None = b"v",
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    timestamp_delta: int = 0,
) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(delta) + field(key) + field(value)
    body += varint(len(headers))
    for name, content in headers:
        body += field(name) + field(content)
    return varint(len(body)) + body


@dataclass(frozen=True, kw_only=True)
class Made:
    """A batch under construction; every field can be made wrong."""

    records: Sequence[bytes]
    base_offset: int = 0
    attributes: int = 0
    magic: int = 2
    last_offset_delta: int | None = None
    base_timestamp: int = 1_000
    max_timestamp: int = 1_000
    record_count: int | None = None
    batch_length: int | None = None
    compression: Compression = Compression.NONE

    def with_(self, **changes: object) -> "Made":
        return replace(self, **changes)  # type: ignore[arg-type]

    def build(self) -> bytes:
        payload = bytes(compress(self.compression, b"".join(self.records)))
        count = len(self.records) if self.record_count is None else self.record_count
        last = count - 1 if self.last_offset_delta is None else self.last_offset_delta
        length = HEADER_BYTES - 12 + len(payload)
        header = BatchHeader(
            base_offset=self.base_offset,
            batch_length=length if self.batch_length is None else self.batch_length,
            leader_epoch=0,
            magic=self.magic,
            crc=0,
            attributes=self.attributes | self.compression,
            last_offset_delta=last,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            producer_id=-1,
            producer_epoch=-1,
            base_sequence=-1,
            record_count=count,
        )
        return with_crc(header.pack() + payload)


def made(*records: bytes, **changes: object) -> bytes:
    """A batch of these records."""
    return Made(records=records).with_(**changes).build()


def with_crc(batch: bytes) -> bytes:
    """The batch with the CRC that its bytes have."""
    crc = crc32c(batch[CRC_START:])
    return batch[: CRC_START - 4] + crc.to_bytes(4, "big") + batch[CRC_START:]
