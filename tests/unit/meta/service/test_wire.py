"""Messages and errors of the meta service as bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firnmq.errors import (
    AlreadyExists,
    Closed,
    CreationTimedOut,
    DiskFull,
    FirnError,
    InvalidArgument,
    ShardNotFound,
    StaleIncarnation,
    StorageFailed,
    TimedOut,
    TopicNotFound,
)
from firnmq.meta import Changes, Compacted, Entry, Event, SessionLapsed
from firnmq.meta.service import answers
from firnmq.meta.service import meta_service_pb2 as pb
from firnmq.meta.service.errors import MetaServiceFailed, error_of, status_of

_GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "meta_service_v1.json"
_ENTRY = Entry(key="topics/t", value=b"\x80", create_revision=5, mod_revision=7)
_CHANGES = Changes(
    revision=9,
    events=(
        Event(key="topics/t", revision=7, entry=_ENTRY),
        Event(key="topics/u", revision=9, entry=None),
    ),
)


def samples() -> dict[str, str]:
    """One message of each kind that is stored or that clients of other versions send."""
    messages = {
        "RegisterNodeRequest": pb.RegisterNodeRequest(node=3, ttl_ms=4000),
        "HeartbeatRequest": pb.HeartbeatRequest(node=3, incarnation=2, session_id=99),
        "CreateTopicRequest": pb.CreateTopicRequest(
            name="t", topic_id="0" * 32, shard_count=2, options={"storage.type": "EngineMemory"}
        ),
        "AwaitTopicRequest": pb.AwaitTopicRequest(name="t", topic_id="0" * 32, timeout_ms=30_000),
        "TopicRequest": pb.TopicRequest(name="t"),
        "SegmentsRequest": pb.SegmentsRequest(shard="0_1"),
        "CommitOffsetsRequest": pb.CommitOffsetsRequest(
            group="g", offsets={"0_1": pb.Offset(offset=5, metadata="m", committed_ms=1)}
        ),
        "GetOffsetsRequest": pb.GetOffsetsRequest(group="g"),
        "WatchRequest": pb.WatchRequest(prefix="topics/", from_revision=8),
        "SnapshotPage": pb.SnapshotPage(revision=9, entries=[answers.entry_message(_ENTRY)]),
        "Changes": answers.changes_message(_CHANGES),
    }
    return {name: message.SerializeToString().hex() for name, message in messages.items()}


def test_messages_have_the_bytes_that_are_committed() -> None:
    assert samples() == json.loads(_GOLDEN.read_text())


def test_changes_come_back_as_they_were() -> None:
    assert answers.changes_of(answers.changes_message(_CHANGES)) == _CHANGES


def unknown_outcome() -> StorageFailed:
    failure = StorageFailed("x", OSError("gone"))
    failure.is_outcome_unknown = True
    return failure


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgument("a", "is wrong"),
        AlreadyExists("topic", "t"),
        TopicNotFound("t"),
        ShardNotFound("s"),
        StaleIncarnation(1, 2, 3),
        SessionLapsed(7),
        Compacted(3, 9),
        CreationTimedOut("t", "it", 30.0),
        DiskFull("x", OSError("full")),
        TimedOut("too late"),
        unknown_outcome(),
        StorageFailed("x", OSError("refused")),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_come_back_as_the_type_they_were(error: FirnError) -> None:
    _, raw = status_of(error)
    again = error_of(raw)
    assert type(again) is type(error)
    for name in ("argument", "current", "session_id", "oldest", "timeout_s", "is_outcome_unknown"):
        assert getattr(again, name, None) == getattr(error, name, None)


def test_other_errors_keep_their_text() -> None:
    again = error_of(status_of(Closed("the store is closed"))[1])
    assert isinstance(again, MetaServiceFailed)
    assert "Closed: the store is closed" in str(again)
    assert isinstance(error_of(b"\xff"), MetaServiceFailed)
    assert isinstance(error_of(b'{"type": "TopicNotFound"}'), MetaServiceFailed)


def test_a_group_of_any_name_has_a_key_of_its_own() -> None:
    names = ["a", "a/b", "a%2Fb", "α", "a b", "~"]
    prefixes = [answers.offsets_prefix(name) for name in names]
    assert len(set(prefixes)) == len(names)
    assert all(prefix.isascii() and prefix.isprintable() for prefix in prefixes)
    for bad in ("", "x" * 256):
        with pytest.raises(InvalidArgument):
            answers.offsets_prefix(bad)
