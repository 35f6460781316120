"""The core's messages as bytes: what is packed arrives, and the bytes stay what they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from firnmq.cluster.replication.driving import wire
from firnmq.cluster.replication.driving.wire import (
    Facts,
    Fetched,
    FetchedBytes,
    Packed,
    TailBytes,
    Watermarks,
    WithFacts,
    unpack,
)
from firnmq.cluster.replication.messages import (
    CopyTail,
    FenceAnswer,
    FenceAnswers,
    FenceRequest,
    FenceSegment,
    Fetch,
    FetchSegment,
    ReadTail,
    SealReason,
    SealRequest,
    TailCopied,
)
from firnmq.cluster.replication.values import (
    Crc,
    Fence,
    Incarnation,
    NodeId,
    Point,
    SegmentId,
)
from firnmq.errors import Corruption
from firnmq.ids import Offset, SegmentSeq, ShardUid

_GOLDEN = Path(__file__).parents[3] / "golden" / "replication_messages_v1.json"
_ID = SegmentId(ShardUid(7), SegmentSeq(3))
_OTHER = SegmentId(ShardUid(8), SegmentSeq(0))
_AT = Point(Offset(1_000), Crc(0xDEADBEEF))
_FACTS = Facts(4_096, 1_700_000_000_000, 2**63 - 1, ((5, 1, 990),))
_NODE, _INCARNATION, _FENCE = NodeId(2), Incarnation(9), Fence(4)

_ANSWER = FenceAnswer(
    segment=_ID,
    fence=_FENCE,
    node=_NODE,
    incarnation=_INCARNATION,
    continuous_since=Incarnation(1),
    at=_AT,
)
_COPIED = TailCopied(segment=_ID, fence=_FENCE, node=_NODE, incarnation=_INCARNATION, at=_AT)
_FETCH = Fetch(
    node=_NODE,
    incarnation=_INCARNATION,
    segments=(
        FetchSegment(segment=_ID, fence=Fence(0), continuous_since=Incarnation(1), at=_AT),
        FetchSegment(
            segment=_OTHER,
            fence=Fence(0),
            continuous_since=Incarnation(9),
            at=Point(Offset(0), Crc(0)),
        ),
    ),
)
_FENCES = FenceRequest(
    controller=NodeId(1),
    segments=(FenceSegment(segment=_ID, fence=_FENCE, start=Offset(500)),),
)
_COPY = CopyTail(
    segment=_ID, fence=_FENCE, controller=NodeId(1), source=NodeId(3), end=Offset(1_000)
)
_READ = ReadTail(
    segment=_ID,
    fence=_FENCE,
    node=_NODE,
    incarnation=_INCARNATION,
    start=Offset(900),
    end=Offset(1_000),
)
_SEAL = SealRequest(segment=_ID, reason=SealReason.STORAGE_FAILED)
_RAW = b"firstsecond"


def _served(payload: bytes) -> FetchedBytes:
    return FetchedBytes(_ID, Fence(0), Offset(990), _AT, Offset(980), memoryview(payload))


_FETCHED = (
    (_served(b"first"), 5),
    (_served(b"second")._replace(segment=_OTHER), 6),
)
_MESSAGES: dict[str, tuple[Packed, bytes, object]] = {
    "fetch": (wire.pack_fetch(_FETCH), b"", _FETCH),
    "fetched": (
        wire.pack_fetched(_INCARNATION, _FETCHED),
        _RAW,
        Fetched(_INCARNATION, tuple(each for each, _ in _FETCHED)),
    ),
    "watermarks": (
        wire.pack_watermarks([(_ID, Offset(5)), (_OTHER, Offset(6))]),
        b"",
        Watermarks(((_ID, Offset(5)), (_OTHER, Offset(6)))),
    ),
    "fence": (wire.pack_fence(_FENCES), b"", _FENCES),
    "fenced": (
        wire.pack_fenced([(_ANSWER, _FACTS)]),
        b"",
        WithFacts(FenceAnswers(answers=(_ANSWER,)), ((_ID, _AT, _FACTS),)),
    ),
    "copy_tail": (wire.pack_copy_tail(_COPY), b"", _COPY),
    "tail_copied": (
        wire.pack_tail_copied(_COPIED, _FACTS),
        b"",
        WithFacts(_COPIED, ((_ID, _AT, _FACTS),)),
    ),
    "read_tail": (wire.pack_read_tail(_READ), b"", _READ),
    "tail": (
        wire.pack_tail(_ID, _FENCE, _INCARNATION, 900),
        b"raw",
        TailBytes(_ID, _FENCE, _INCARNATION, Offset(900), memoryview(b"raw")),
    ),
    "seal": (wire.pack_seal_request(_SEAL), b"", _SEAL),
    "accept_loss": (wire.pack_loss_accepted(_ID), b"", wire.LossAccepted(_ID)),
}


@pytest.mark.parametrize("name", _MESSAGES)
def test_what_is_packed_is_what_arrives(name: str) -> None:
    packed, raw, expected = _MESSAGES[name]

    found = unpack(packed.operation, memoryview(packed.arguments), memoryview(raw))

    assert found == expected


@pytest.mark.parametrize("name", _MESSAGES)
def test_the_bytes_are_those_of_earlier_versions(name: str) -> None:
    packed, _, _ = _MESSAGES[name]

    assert [packed.operation, packed.arguments.hex()] == json.loads(_GOLDEN.read_text())[name]


def test_an_answer_that_announces_more_than_it_has_is_damaged() -> None:
    packed = wire.pack_fetched(_INCARNATION, ((_served(b"first"), 5),))

    with pytest.raises(Corruption, match="shorter"):
        unpack(packed.operation, memoryview(packed.arguments), memoryview(b"firs"))


@pytest.mark.parametrize("name", _MESSAGES)
def test_bytes_of_another_kind_are_refused(name: str) -> None:
    packed, raw, _ = _MESSAGES[name]

    with pytest.raises(Corruption):
        unpack(packed.operation, memoryview(packed.arguments[:-1]), memoryview(raw))


def test_an_unknown_message_is_refused() -> None:
    with pytest.raises(Corruption, match="there is no message"):
        unpack("replication.other", memoryview(b""), memoryview(b""))
