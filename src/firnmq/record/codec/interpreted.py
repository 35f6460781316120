"""The codec as its modules are, without a compiler: slow, and otherwise the same."""

from firnmq.record.codec.collecting import BatchKeys, collect, key_entries, tag_entries
from firnmq.record.codec.crc import chain_batch_crc, combine_crc
from firnmq.record.codec.decoding import decode
from firnmq.record.codec.encoding import encode, encode_columns, encode_some
from firnmq.record.codec.headers import BatchEntry, Walk, walk
from firnmq.record.codec.judging import JudgedBatch, judge, validate, validate_header
from firnmq.record.codec.memory import IS_COMPILED
from firnmq.record.codec.strings import BinaryViews

__all__ = [
    "IS_COMPILED",
    "BatchEntry",
    "BatchKeys",
    "BinaryViews",
    "JudgedBatch",
    "Walk",
    "chain_batch_crc",
    "collect",
    "combine_crc",
    "decode",
    "encode",
    "encode_columns",
    "encode_some",
    "judge",
    "key_entries",
    "tag_entries",
    "validate",
    "validate_header",
    "walk",
]
