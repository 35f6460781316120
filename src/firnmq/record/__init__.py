"""Records, batches and the codec between them.

Records travel and rest as Kafka RecordBatch v2 bytes; when they are looked at, they are columns.
Importing this package does not import pyarrow; `Columns.to_arrow` does.
"""

from crc32c import crc32c

from firnmq.record.batch import (
    BATCH_BYTES_MAX,
    DECOMPRESSED_BYTES_MAX,
    HEADER_BYTES,
    PREFIX_BYTES,
    RECORD_BYTES_MAX,
    BatchHeader,
    Buffer,
    Compression,
    parse_header,
    patch_base,
    patched_prefix,
)
from firnmq.record.codec import (
    IS_COMPILED,
    BatchEntry,
    BatchKeys,
    BinaryViews,
    JudgedBatch,
    Walk,
    chain_batch_crc,
    collect,
    combine_crc,
    decode,
    encode,
    encode_columns,
    encode_some,
    judge,
    key_entries,
    tag_entries,
    validate,
    validate_header,
    walk,
)
from firnmq.record.columns import BinaryColumn, Columns, columns_of_records
from firnmq.record.compression import compress, decompress
from firnmq.record.rewrite import empty_batch, filtered, unpacked, with_header
from firnmq.record.selection import ALL_COLUMNS, EVERYTHING, ColumnName, Selection
from firnmq.record.stream import BatchStream, Reason, Run, Stop
from firnmq.record.types import BatchTerms, Headers, Keys, NewRecord, Record, checked

__all__ = [
    "ALL_COLUMNS",
    "BATCH_BYTES_MAX",
    "DECOMPRESSED_BYTES_MAX",
    "EVERYTHING",
    "HEADER_BYTES",
    "IS_COMPILED",
    "PREFIX_BYTES",
    "RECORD_BYTES_MAX",
    "BatchEntry",
    "BatchHeader",
    "BatchKeys",
    "BatchStream",
    "BatchTerms",
    "BinaryColumn",
    "BinaryViews",
    "Buffer",
    "ColumnName",
    "Columns",
    "Compression",
    "Headers",
    "JudgedBatch",
    "Keys",
    "NewRecord",
    "Reason",
    "Record",
    "Run",
    "Selection",
    "Stop",
    "Walk",
    "chain_batch_crc",
    "checked",
    "collect",
    "columns_of_records",
    "combine_crc",
    "compress",
    "crc32c",
    "decode",
    "decompress",
    "empty_batch",
    "encode",
    "encode_columns",
    "encode_some",
    "filtered",
    "judge",
    "key_entries",
    "parse_header",
    "patch_base",
    "patched_prefix",
    "tag_entries",
    "unpacked",
    "validate",
    "validate_header",
    "walk",
    "with_header",
]
