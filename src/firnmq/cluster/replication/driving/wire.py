"""The core's messages as bytes: docs/formats/peers.md. Records travel behind the arguments, raw.

What the core does not look at travels beside its values: how the segment would be sealed at an end,
which only replicas know, and the leader's high watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

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

PREFIX = "replication."


class Facts(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the record of a segment says beside its end and CRC, were it sealed at an end."""

    length: int
    max_timestamp: int
    first_expiry_ms: int
    transactions: tuple[tuple[int, int, int], ...]


NO_FACTS = Facts(0, -1, 2**63 - 1, ())


class FetchedBytes(NamedTuple):
    """One segment of an answer to a fetch, before its batches are checked."""

    segment: SegmentId
    fence: Fence
    start: Offset
    leader_end: Point
    """How far the leader's log was, with its CRC; the bytes may end before it."""
    high_watermark: Offset
    payload: memoryview


class Fetched(NamedTuple):
    """An answer to a fetch."""

    incarnation: Incarnation
    segments: tuple[FetchedBytes, ...]


class TailBytes(NamedTuple):
    """A part of a segment for a replica that lacks it, before its batches are checked."""

    segment: SegmentId
    fence: Fence
    incarnation: Incarnation
    start: Offset
    payload: memoryview


class Watermarks(NamedTuple):
    """The leader's high watermarks, for followers that have everything."""

    marks: tuple[tuple[SegmentId, Offset], ...]


class LossAccepted(NamedTuple):
    """An operator accepts that sealing a segment loses records."""

    segment: SegmentId


class WithFacts(NamedTuple):
    """A message of a replica, and how the segment would be sealed at each end that it names."""

    message: FenceAnswers | TailCopied
    facts: tuple[tuple[SegmentId, Point, Facts], ...]


Arrived = (
    Fetch
    | Fetched
    | FenceRequest
    | WithFacts
    | CopyTail
    | ReadTail
    | TailBytes
    | SealRequest
    | Watermarks
    | LossAccepted
)


class Packed(NamedTuple):
    operation: str
    arguments: bytes


_pack = msgspec.msgpack.encode


def pack_fetch(fetch: Fetch) -> Packed:
    rows = [
        (*_id(each.segment), each.fence, each.continuous_since, each.at.end, each.at.crc)
        for each in fetch.segments
    ]
    return Packed(PREFIX + "fetch", _pack((fetch.node, fetch.incarnation, rows)))


def pack_fetched(incarnation: Incarnation, served: Sequence[tuple[FetchedBytes, int]]) -> Packed:
    """`served`: each segment, whose payload is sent behind, with the payload's length."""
    rows = [
        (
            *_id(each.segment),
            each.fence,
            each.start,
            each.leader_end.end,
            each.leader_end.crc,
            each.high_watermark,
            length,
        )
        for each, length in served
    ]
    return Packed(PREFIX + "fetched", _pack((incarnation, rows)))


def pack_watermarks(marks: Sequence[tuple[SegmentId, Offset]]) -> Packed:
    rows = [(*_id(segment), offset) for segment, offset in marks]
    return Packed(PREFIX + "watermarks", _pack(rows))


def pack_fence(request: FenceRequest) -> Packed:
    rows = [(*_id(each.segment), each.fence, each.start) for each in request.segments]
    return Packed(PREFIX + "fence", _pack((request.controller, rows)))


def pack_fenced(answers: Sequence[tuple[FenceAnswer, Facts]]) -> Packed:
    rows = [
        (
            *_id(each.segment),
            each.fence,
            each.node,
            each.incarnation,
            each.continuous_since,
            each.at.end,
            each.at.crc,
            facts,
        )
        for each, facts in answers
    ]
    return Packed(PREFIX + "fenced", _pack(rows))


def pack_copy_tail(request: CopyTail) -> Packed:
    row = (*_id(request.segment), request.fence, request.controller, request.source, request.end)
    return Packed(PREFIX + "copy_tail", _pack(row))


def pack_tail_copied(copied: TailCopied, facts: Facts) -> Packed:
    row = (
        *_id(copied.segment),
        copied.fence,
        copied.node,
        copied.incarnation,
        copied.at.end,
        copied.at.crc,
        facts,
    )
    return Packed(PREFIX + "tail_copied", _pack(row))


def pack_read_tail(request: ReadTail) -> Packed:
    row = (
        *_id(request.segment),
        request.fence,
        request.node,
        request.incarnation,
        request.start,
        request.end,
    )
    return Packed(PREFIX + "read_tail", _pack(row))


def pack_tail(segment: SegmentId, fence: Fence, incarnation: Incarnation, start: int) -> Packed:
    return Packed(PREFIX + "tail", _pack((*_id(segment), fence, incarnation, start)))


def pack_seal_request(request: SealRequest) -> Packed:
    return Packed(PREFIX + "seal", _pack((*_id(request.segment), request.reason.value)))


def pack_loss_accepted(segment: SegmentId) -> Packed:
    return Packed(PREFIX + "accept_loss", _pack(_id(segment)))


def unpack(operation: str, arguments: memoryview, raw: memoryview) -> Arrived:
    """The message; Corruption if the bytes are none of these."""
    reader = _READERS.get(operation.removeprefix(PREFIX))
    if reader is None:
        raise Corruption(f"there is no message {operation!r}", where="a message of another node")
    kind, make = reader
    try:
        return make(msgspec.msgpack.decode(arguments, type=kind), raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise Corruption(str(error), where=f"{operation} of another node") from error


def _id(segment: SegmentId) -> tuple[int, int]:
    return segment.shard, segment.seq


def _segment(uid: int, seq: int) -> SegmentId:
    return SegmentId(ShardUid(uid), SegmentSeq(seq))


def _point(end: int, crc: int) -> Point:
    return Point(Offset(end), Crc(crc))


_FetchRow = tuple[int, int, int, int, int, int]
_FetchArguments = tuple[int, int, tuple[_FetchRow, ...]]


def _read_fetch(arguments: _FetchArguments, raw: memoryview) -> Fetch:
    node, incarnation, rows = arguments
    segments = tuple(
        FetchSegment(
            segment=_segment(uid, seq),
            fence=Fence(fence),
            continuous_since=Incarnation(since),
            at=_point(end, crc),
        )
        for uid, seq, fence, since, end, crc in rows
    )
    return Fetch(node=NodeId(node), incarnation=Incarnation(incarnation), segments=segments)


_FetchedRow = tuple[int, int, int, int, int, int, int, int]
_FetchedArguments = tuple[int, tuple[_FetchedRow, ...]]


def _read_fetched(arguments: _FetchedArguments, raw: memoryview) -> Fetched:
    incarnation, rows = arguments
    found = []
    at = 0
    for uid, seq, fence, start, end, crc, mark, length in rows:
        if length < 0 or at + length > len(raw):
            raise ValueError("it is shorter than what it announces")
        found.append(
            FetchedBytes(
                _segment(uid, seq),
                Fence(fence),
                Offset(start),
                _point(end, crc),
                Offset(mark),
                raw[at : at + length],
            )
        )
        at += length
    return Fetched(Incarnation(incarnation), tuple(found))


_WatermarkArguments = tuple[tuple[int, int, int], ...]


def _read_watermarks(arguments: _WatermarkArguments, raw: memoryview) -> Watermarks:
    return Watermarks(tuple((_segment(uid, seq), Offset(mark)) for uid, seq, mark in arguments))


_FenceArguments = tuple[int, tuple[tuple[int, int, int, int], ...]]


def _read_fence(arguments: _FenceArguments, raw: memoryview) -> FenceRequest:
    controller, rows = arguments
    segments = tuple(
        FenceSegment(segment=_segment(uid, seq), fence=Fence(fence), start=Offset(start))
        for uid, seq, fence, start in rows
    )
    return FenceRequest(controller=NodeId(controller), segments=segments)


_FencedArguments = tuple[tuple[int, int, int, int, int, int, int, int, Facts], ...]


def _read_fenced(arguments: _FencedArguments, raw: memoryview) -> WithFacts:
    answers, facts = [], []
    for uid, seq, fence, node, incarnation, since, end, crc, each in arguments:
        segment, at = _segment(uid, seq), _point(end, crc)
        answers.append(
            FenceAnswer(
                segment=segment,
                fence=Fence(fence),
                node=NodeId(node),
                incarnation=Incarnation(incarnation),
                continuous_since=Incarnation(since),
                at=at,
            )
        )
        facts.append((segment, at, each))
    return WithFacts(FenceAnswers(answers=tuple(answers)), tuple(facts))


_CopyArguments = tuple[int, int, int, int, int, int]


def _read_copy_tail(arguments: _CopyArguments, raw: memoryview) -> CopyTail:
    uid, seq, fence, controller, source, end = arguments
    return CopyTail(
        segment=_segment(uid, seq),
        fence=Fence(fence),
        controller=NodeId(controller),
        source=NodeId(source),
        end=Offset(end),
    )


_CopiedArguments = tuple[int, int, int, int, int, int, int, Facts]


def _read_tail_copied(arguments: _CopiedArguments, raw: memoryview) -> WithFacts:
    uid, seq, fence, node, incarnation, end, crc, facts = arguments
    segment, at = _segment(uid, seq), _point(end, crc)
    copied = TailCopied(
        segment=segment,
        fence=Fence(fence),
        node=NodeId(node),
        incarnation=Incarnation(incarnation),
        at=at,
    )
    return WithFacts(copied, ((segment, at, facts),))


_ReadTailArguments = tuple[int, int, int, int, int, int, int]


def _read_read_tail(arguments: _ReadTailArguments, raw: memoryview) -> ReadTail:
    uid, seq, fence, node, incarnation, start, end = arguments
    return ReadTail(
        segment=_segment(uid, seq),
        fence=Fence(fence),
        node=NodeId(node),
        incarnation=Incarnation(incarnation),
        start=Offset(start),
        end=Offset(end),
    )


_TailArguments = tuple[int, int, int, int, int]


def _read_tail(arguments: _TailArguments, raw: memoryview) -> TailBytes:
    uid, seq, fence, incarnation, start = arguments
    return TailBytes(_segment(uid, seq), Fence(fence), Incarnation(incarnation), Offset(start), raw)


_SealArguments = tuple[int, int, str]


def _read_seal(arguments: _SealArguments, raw: memoryview) -> SealRequest:
    uid, seq, reason = arguments
    return SealRequest(segment=_segment(uid, seq), reason=SealReason(reason))


def _read_loss_accepted(arguments: tuple[int, int], raw: memoryview) -> LossAccepted:
    return LossAccepted(_segment(*arguments))


_READERS: dict[str, tuple[Any, Callable[[Any, memoryview], Arrived]]] = {
    "fetch": (_FetchArguments, _read_fetch),
    "fetched": (_FetchedArguments, _read_fetched),
    "watermarks": (_WatermarkArguments, _read_watermarks),
    "fence": (_FenceArguments, _read_fence),
    "fenced": (_FencedArguments, _read_fenced),
    "copy_tail": (_CopyArguments, _read_copy_tail),
    "tail_copied": (_CopiedArguments, _read_tail_copied),
    "read_tail": (_ReadTailArguments, _read_read_tail),
    "tail": (_TailArguments, _read_tail),
    "seal": (_SealArguments, _read_seal),
    "accept_loss": (tuple[int, int], _read_loss_accepted),
}
