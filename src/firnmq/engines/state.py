"""What engines keep durably beside the records: shards, segment chains, starts, deletions.

All of it is in the key-value store's STATE family, first byte by kind; docs/formats/state.md
describes it. Every change here is synced before the call returns.
"""

from __future__ import annotations

import struct
import threading
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from firnmq.config import TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.engines.segments import SegmentMeta
from firnmq.errors import AlreadyExists, Corruption

_SHARD, _NEXT_UID, _CHAIN, _START, _HOLE, _DEAD_KEY = b"R", b"U", b"C", b"S", b"H", b"K"
T = TypeVar("T")

_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_CHAIN_KEY = struct.Struct(
    ">"
    "I"  # shard_uid
    "I"  # segment_seq
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSpec:
    """What a shard is: its name, its number in this data directory, its topic's options."""

    name: str
    uid: int
    config: TopicConfig


class ShardState:
    """Durable facts about shards. Safe with threads."""

    def __init__(self, kv: KeyValueStore) -> None:
        self._kv = kv
        self._uid_lock = threading.Lock()

    # Shards ---------------------------------------------------------------------------------

    def add_shard(self, name: str, config: TopicConfig) -> ShardSpec:
        """Registers a shard under a number that was never used before."""
        with self._uid_lock:
            key = _SHARD + name.encode()
            if self._kv.get(Family.STATE, key) is not None:
                raise AlreadyExists("shard", name)
            stored = self._kv.get(Family.STATE, _NEXT_UID)
            uid = 1 if stored is None else _U32.unpack(stored)[0]
            spec = ShardSpec(name=name, uid=uid, config=config)
            with self._kv.batch() as batch:
                batch.put(Family.STATE, _NEXT_UID, _U32.pack(uid + 1))
                batch.put(Family.STATE, key, msgspec.msgpack.encode(spec))
            self._kv.sync()
            return spec

    def save_shard(self, spec: ShardSpec) -> None:
        """Writes a registered shard anew, with other options."""
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _SHARD + spec.name.encode(), msgspec.msgpack.encode(spec))
        self._kv.sync()

    def shards(self) -> list[ShardSpec]:
        rows = self._kv.items(Family.STATE, _SHARD, _after(_SHARD))
        configs: dict[TopicConfig, TopicConfig] = {}  # Shards of a topic share one object.
        specs = []
        for key, value in rows:
            spec = _decode(value, ShardSpec, key)
            config = configs.setdefault(spec.config, spec.config)
            specs.append(ShardSpec(name=spec.name, uid=spec.uid, config=config))
        return specs

    def remove_shard(self, spec: ShardSpec) -> None:
        """Forgets a shard and everything kept for it here."""
        uid = _U32.pack(spec.uid)
        with self._kv.batch() as batch:
            batch.delete(Family.STATE, _SHARD + spec.name.encode())
            for kind in (_CHAIN, _START, _HOLE, _DEAD_KEY):
                batch.delete_range(Family.STATE, kind + uid, _after(kind + uid))
        self._kv.sync()

    # Segment chains ---------------------------------------------------------------------------

    def chain(self, uid: int) -> list[SegmentMeta]:
        prefix = _CHAIN + _U32.pack(uid)
        rows = self._kv.items(Family.STATE, prefix, _after(prefix))
        return [_decode(value, SegmentMeta, key) for key, value in rows]

    def save_chain(self, uid: int, *metas: SegmentMeta) -> None:
        """Writes several segments' descriptions as one durable change."""
        with self._kv.batch() as batch:
            for meta in metas:
                key = _CHAIN + _CHAIN_KEY.pack(uid, meta.seq)
                batch.put(Family.STATE, key, msgspec.msgpack.encode(meta))
        self._kv.sync()

    def replace_sealed(self, uid: int, new: SegmentMeta, merged: list[SegmentMeta]) -> None:
        """Puts one sealed segment in the place of itself and of those after it, which were merged
        into it: one durable change."""
        with self._kv.batch() as batch:
            for meta in (new, *(each.become_deleted() for each in merged)):
                key = _CHAIN + _CHAIN_KEY.pack(uid, meta.seq)
                batch.put(Family.STATE, key, msgspec.msgpack.encode(meta))
        self._kv.sync()

    def undo_roll(self, uid: int, active: SegmentMeta, newer_seqs: list[int]) -> None:
        """Makes a segment the active one again and forgets those after it: one durable change."""
        with self._kv.batch() as batch:
            key = _CHAIN + _CHAIN_KEY.pack(uid, active.seq)
            batch.put(Family.STATE, key, msgspec.msgpack.encode(active))
            for seq in newer_seqs:
                batch.delete(Family.STATE, _CHAIN + _CHAIN_KEY.pack(uid, seq))
        self._kv.sync()

    def forget_segments(self, uid: int, seqs: list[int]) -> None:
        """Removes descriptions of dropped segments; unsynced, since dropping can be repeated."""
        with self._kv.batch() as batch:
            for seq in seqs:
                batch.delete(Family.STATE, _CHAIN + _CHAIN_KEY.pack(uid, seq))

    # Bounds and deletions -----------------------------------------------------------------------

    def start_offset(self, uid: int) -> int:
        stored = self._kv.get(Family.STATE, _START + _U32.pack(uid))
        return 0 if stored is None else int(_U64.unpack(stored)[0])

    def move_start(self, uid: int, start_offset: int, deleted: list[SegmentMeta]) -> None:
        """Moves the start and marks the segments below it deleted, as one durable change."""
        prefix = _HOLE + _U32.pack(uid)
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _START + _U32.pack(uid), _U64.pack(start_offset))
            for meta in deleted:
                key = _CHAIN + _CHAIN_KEY.pack(uid, meta.seq)
                batch.put(Family.STATE, key, msgspec.msgpack.encode(meta.become_deleted()))
            batch.delete_range(Family.STATE, prefix, prefix + _U64.pack(start_offset))
        self._kv.sync()

    def holes(self, uid: int) -> set[int]:
        prefix = _HOLE + _U32.pack(uid)
        rows = self._kv.items(Family.STATE, prefix, _after(prefix))
        return {_U64.unpack_from(key, len(prefix))[0] for key, _ in rows}

    def add_holes(self, uid: int, offsets: list[int]) -> None:
        prefix = _HOLE + _U32.pack(uid)
        with self._kv.batch() as batch:
            batch.put_many(Family.STATE, [(prefix + _U64.pack(at), b"") for at in offsets])
        self._kv.sync()

    def drop_holes_from(self, uid: int, offset: int) -> None:
        """Forgets deletions at and above an offset that was cut off."""
        prefix = _HOLE + _U32.pack(uid)
        with self._kv.batch() as batch:
            batch.delete_range(Family.STATE, prefix + _U64.pack(offset), _after(prefix))
        self._kv.sync()

    def dead_keys(self, uid: int) -> dict[bytes, int]:
        prefix = _DEAD_KEY + _U32.pack(uid)
        rows = self._kv.items(Family.STATE, prefix, _after(prefix))
        return {key[len(prefix) :]: _U64.unpack(value)[0] for key, value in rows}

    def set_dead_key(self, uid: int, key: bytes, below_offset: int) -> None:
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _DEAD_KEY + _U32.pack(uid) + key, _U64.pack(below_offset))
        self._kv.sync()

    def forget_dead_keys(self, uid: int, keys: list[bytes]) -> None:
        with self._kv.batch() as batch:
            for key in keys:
                batch.delete(Family.STATE, _DEAD_KEY + _U32.pack(uid) + key)


def _after(prefix: bytes) -> bytes:
    """The smallest key above every key with the prefix."""
    number = int.from_bytes(prefix, "big") + 1
    return number.to_bytes(len(prefix), "big")


def _decode(value: bytes, kind: type[T], key: bytes) -> T:
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=f"state entry {key!r}") from error
