"""The columns of a topic's raw table, for Arrow, Spark and Iceberg alike."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

TIME: Final = pa.timestamp("us", tz="UTC")
HEADER: Final = pa.struct(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())]
)
RAW: Final = pa.schema(
    [
        pa.field("shard", pa.int32(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("timestamp", TIME, nullable=False),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.field("element", HEADER, nullable=False)), nullable=False),
        pa.field(
            "tags", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
        ),
    ]
)
"""A record without a timestamp (-1) has 1969-12-31 23:59:59.999 there, as Kafka clients see it."""

RAW_DDL: Final = (
    "shard INT NOT NULL, offset BIGINT NOT NULL, timestamp TIMESTAMP NOT NULL, key BINARY, "
    "value BINARY, headers ARRAY<STRUCT<key: STRING NOT NULL, value: BINARY>> NOT NULL, "
    "tags ARRAY<STRING> NOT NULL"
)
"""The same for Spark. (Nullability of array elements is the data source's to declare exactly.)"""
