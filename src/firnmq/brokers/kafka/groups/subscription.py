"""Looking into a consumer's subscription, for the one question that its bytes cannot answer.

A consumer that restarts sends the same topics, but other bytes: which partitions it owned and in
which generation are part of the subscription. Bytes that differ therefore do not mean that
partitions need to be assigned again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"

_HEAD = struct.Struct(
    ">"
    "h"  # version of the subscription
    "i"  # number of topics
)
assert _HEAD.size == 6
_LENGTH = struct.Struct(">h")


def is_same_interest(protocol_type: str | None, before: bytes, after: bytes) -> bool:
    """Whether a member that said `before` and now says `after` wants the same as it did."""
    if before == after:
        return True
    if protocol_type != CONSUMER_PROTOCOL_TYPE:
        return False
    topics = _topics(before)
    return topics is not None and topics == _topics(after)


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """The topics of all subscriptions, or None where the bytes of one are something else."""
    found: set[str] = set()
    for subscription in subscriptions:
        topics = _topics(subscription)
        if topics is None:
            return None
        found.update(topic.decode(errors="replace") for topic in topics)
    return frozenset(found)


def _topics(subscription: bytes) -> frozenset[bytes] | None:
    """The subscribed topics, or None where the bytes are something else."""
    if len(subscription) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(subscription)
    position = _HEAD.size
    if version < 0 or not 0 <= count <= (len(subscription) - position) // _LENGTH.size:
        return None
    topics: set[bytes] = set()
    for _ in range(count):
        if position + _LENGTH.size > len(subscription):
            return None
        (length,) = _LENGTH.unpack_from(subscription, position)
        position += _LENGTH.size
        if not 0 <= length <= len(subscription) - position:
            return None
        topics.add(subscription[position : position + length])
        position += length
    return frozenset(topics)
