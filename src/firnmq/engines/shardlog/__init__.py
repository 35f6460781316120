"""A shard's log: the chain of segments that all engines share, whatever the bytes are kept in."""

from firnmq.engines.shardlog.append import (
    Append,
    PreparedBatch,
    prepare_inline,
    prepare_records,
    prepare_request,
)
from firnmq.engines.shardlog.backend import Backend
from firnmq.engines.shardlog.log import ShardLog
from firnmq.engines.shardlog.reading.raw import RawReader
from firnmq.engines.shardlog.reading.records import LogReader
from firnmq.engines.shardlog.reading.times import TimeReader
from firnmq.engines.shardlog.recovery import open_log, truncate_log
from firnmq.engines.shardlog.rules import BatchRules
from firnmq.engines.shardlog.turn import LogTurnHandler

__all__ = [
    "Append",
    "Backend",
    "BatchRules",
    "LogReader",
    "LogTurnHandler",
    "PreparedBatch",
    "RawReader",
    "ShardLog",
    "TimeReader",
    "open_log",
    "prepare_inline",
    "prepare_records",
    "prepare_request",
    "truncate_log",
]
