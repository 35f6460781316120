"""Batches as transactional producers send them."""

from firnmq import NewRecord
from firnmq.record import encode, parse_header, with_header
from firnmq.record.batch import ATTRIBUTE_TRANSACTIONAL


def transactional_batch(producer_id: int, sequence: int, value: bytes) -> bytearray:
    made = encode(
        [NewRecord(value=value)],
        now_ms=1_700_000_000_000,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=sequence,
    )
    header = parse_header(made)
    with_header(made, header._replace(attributes=header.attributes | ATTRIBUTE_TRANSACTIONAL))
    return made
