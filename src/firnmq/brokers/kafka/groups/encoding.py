"""The bytes of what survives a restart of a group, of either kind."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from firnmq.brokers.kafka.groups.consumer.snapshot import CONSUMER, ConsumerGroupSnapshot
from firnmq.brokers.kafka.groups.snapshot import GroupSnapshot
from firnmq.errors import Corruption

AnySnapshot: TypeAlias = GroupSnapshot | ConsumerGroupSnapshot


class _Kind(msgspec.Struct):
    """The one field by which the two are told apart."""

    type: str = ""


_encoder = msgspec.msgpack.Encoder()
_kind_decoder = msgspec.msgpack.Decoder(_Kind)
_classic_decoder = msgspec.msgpack.Decoder(GroupSnapshot)
_consumer_decoder = msgspec.msgpack.Decoder(ConsumerGroupSnapshot)


def encode_snapshot(snapshot: AnySnapshot) -> bytes:
    """The snapshot as MessagePack."""
    return _encoder.encode(snapshot)


def decode_snapshot(data: bytes, *, group_id: str = "") -> AnySnapshot:
    """The snapshot in `data`; raises Corruption where there is none."""
    try:
        if _kind_decoder.decode(data).type == CONSUMER:
            return _consumer_decoder.decode(data)
        return _classic_decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Corruption(f"not a group snapshot: {error}", where=f"group {group_id!r}") from error
