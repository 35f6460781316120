"""What a node's directory has of shards that were deleted while the node was away."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from pathlib import Path

from firnmq.config import TopicConfig
from firnmq.disk import Family, KeyValueStore, remove_tree
from firnmq.engines.catalog.state import ShardSpec, ShardState
from firnmq.eventlog import EventLogger

_UID = struct.Struct(">I")
_END = b"\xff" * 16
_log = EventLogger("cluster")


def sweep_strays(
    directory: Path,
    kv: KeyValueStore,
    state: ShardState,
    shards: Collection[str],
    uids: Collection[int],
) -> None:
    """Removes files of shards other than these, and rows of shards with other numbers."""
    names = [path.name for path in directory.iterdir()] if directory.is_dir() else []
    gone = [name for name in names if name not in shards]
    for name in gone:
        remove_tree(directory / name)
    numbers = {
        uid for family in (Family.INDEX, Family.MESSAGES) for uid in _uids(kv, family)
    } - set(uids)
    for uid in numbers:
        lower, upper = _UID.pack(uid), _UID.pack(uid + 1)
        with kv.batch() as batch:
            batch.delete_range(Family.INDEX, lower, upper)
            batch.delete_range(Family.MESSAGES, lower, upper)
        state.forget_here([ShardSpec(name="", uid=uid, config=TopicConfig())])
    if gone or numbers:
        _log.info("strays_removed", files=len(gone), shards=len(numbers))


def _uids(kv: KeyValueStore, family: Family) -> Iterator[int]:
    """The numbers with which keys begin. One lookup for each, not for each key."""
    lower = b""
    while found := kv.items(family, lower, _END, 1):
        (uid,) = _UID.unpack_from(found[0][0])
        yield uid
        lower = _UID.pack(uid + 1)
