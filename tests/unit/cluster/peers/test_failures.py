"""Errors that cross from one node to another arrive as what they were."""

from __future__ import annotations

import errno

import pytest

from firnmq.cluster.peers.failures import decode_error, encode_error
from firnmq.errors import (
    AppendTimedOut,
    Corruption,
    DiskFull,
    FirnError,
    InvalidRecord,
    LimitExceeded,
    NotLeader,
    OffsetOutOfRange,
    OutOfOrderSequence,
    ShardNotFound,
    StorageFailed,
    storage_failure,
)
from firnmq.meta import CacheBehind

_ERRORS = [
    OffsetOutOfRange(7, start=1, end=5, shard="t_0"),
    LimitExceeded("record", 9, 5, option="max.record.bytes", record_indexes=(1, 2)),
    InvalidRecord("bad", record_indexes=[3]),
    OutOfOrderSequence(4, 2, 1),
    ShardNotFound("t_9", within="EngineSegment"),
    AppendTimedOut(is_unknown=True),
    NotLeader("t_0", 1, 2),
    NotLeader("t_0", 1, None),
    Corruption("torn", where="file", position=3),
]


@pytest.mark.parametrize("error", _ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_keeps_its_kind_text_and_fields(error: FirnError) -> None:
    arrived = decode_error(encode_error(error))

    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    fields = {name: tuple(v) if isinstance(v, list) else v for name, v in vars(error).items()}
    assert vars(arrived) == fields


def test_an_error_of_a_shard_can_still_be_given_the_name_that_users_know() -> None:
    arrived = decode_error(encode_error(OffsetOutOfRange(7, start=1, end=5, shard="id_0")))
    assert isinstance(arrived, OffsetOutOfRange)
    arrived.call("shard 0 of topic 'a'")
    assert "shard 0 of topic 'a'" in str(arrived)


def test_what_the_system_refused_becomes_text() -> None:
    failure = storage_failure("t_0", OSError(errno.ENOSPC, "No space left on device"))
    arrived = decode_error(encode_error(failure))
    assert type(arrived) is DiskFull
    assert "No space left" in str(arrived.cause)


def test_an_error_within_an_error_stays_one() -> None:
    arrived = decode_error(encode_error(StorageFailed("t_0", Corruption("torn", where="f"))))
    assert isinstance(arrived, StorageFailed)
    assert isinstance(arrived.cause, Corruption)


def test_an_error_that_only_one_process_knows_becomes_the_nearest_common_kind() -> None:
    arrived = decode_error(encode_error(CacheBehind(1, 2, 3.0)))
    assert type(arrived).__name__ == "TimedOut"
    assert "did not reach" in str(arrived)


def test_bytes_that_are_no_error_are_told_as_such() -> None:
    assert isinstance(decode_error(b"\xff\xff"), Corruption)
