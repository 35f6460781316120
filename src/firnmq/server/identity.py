"""The identity of a data directory's node, and the check that its two databases belong together.

Segment chains are in one database, indexes and deletions in the other, under shard numbers from the
first. If one of them is lost or restored from an older backup, numbers would be assigned twice, so
such a directory is refused before anything is changed.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from firnmq.clock import Clock
from firnmq.disk import Family, KeyValueStore
from firnmq.engines.media.files.engine import SEGMENT_DIRECTORY
from firnmq.errors import Corruption, OtherFormat
from firnmq.meta import Compare, Entry, MetaStore, NodeIdentity, register_node
from firnmq.meta.records import (
    CLUSTER,
    NODES,
    RANGES,
    SHARDS,
    Incarnation,
    NodeRecord,
    decode,
    incarnation_key,
)

FIRST_NODE = 1
SINGLE_KEY = "directory"
"""The id of the directory whose metadata this is, if it is of a node that is alone."""
_STATE_KEY = b"D"
_KEY_END = b"\xff" * 16
"""After every existing key, in any family."""


class DirectoryRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The key-value store's record of the metadata that it belongs to."""

    directory_id: str
    node: int
    incarnation: int
    mark: int = 0
    """Of a cluster's node: goes up while the node stores something."""
    made_in: int = 1
    """The incarnation in which the directory was made: nothing that was synced is lost since."""
    kept_since: int = 1
    """The first incarnation after the last boot that found the directory in use: what was not
    synced is there since."""
    boot_id: str = ""
    """Of the machine's present boot; empty once the directory was closed, with everything synced.
    """


def register_directory(
    path: Path, kv: KeyValueStore, meta: MetaStore, clock: Clock, node: int | None
) -> NodeIdentity:
    """Registers the directory's node with a new incarnation, by default under its last number.

    It needs no session: the lock on the directory excludes other processes.
    """
    entry, _ = check_directory(path, kv, meta)
    if entry is None:  # First here: metadata without shards may stand alone, shards may not.
        _refuse_foreign(path, kv)
        directory_id = uuid.uuid4().hex
        meta.txn([Compare.absent(SINGLE_KEY)], {SINGLE_KEY: directory_id.encode()})
    else:
        directory_id = entry.value.decode()
    identity = register_node(meta, _last_node(meta) if node is None else node, clock)
    write_down(kv, DirectoryRecord(directory_id, identity.node, identity.incarnation))
    return identity


def check_directory(
    path: Path, kv: KeyValueStore, meta: MetaStore
) -> tuple[Entry | None, DirectoryRecord | None]:
    """What both databases of a node that is alone say of the directory; Corruption if they do not
    belong together."""
    entry, known = meta.get(SINGLE_KEY), known_directory(kv)
    reason = _difference(meta, entry, known)
    if reason is not None:
        text = f"{reason}; put meta.db and db back from the same copy of the directory"
        raise Corruption(text, where=str(path))
    return entry, known


def write_down(kv: KeyValueStore, record: DirectoryRecord) -> None:
    """Returns once the directory has its record durably."""
    with kv.batch() as batch:
        batch.put(Family.STATE, _STATE_KEY, msgspec.msgpack.encode(record))
    kv.sync()


def single_directory(meta: MetaStore) -> bool:
    """Whether the metadata is that of a node that is alone."""
    return meta.get(SINGLE_KEY) is not None


def directory_id(meta: MetaStore) -> str:
    """The id of a registered directory."""
    entry = meta.get(SINGLE_KEY)
    if entry is None:
        raise Corruption("the directory has no name", where=SINGLE_KEY)
    return entry.value.decode()


def known_directory(kv: KeyValueStore) -> DirectoryRecord | None:
    stored = kv.get(Family.STATE, _STATE_KEY)
    if stored is None:
        return None
    try:
        return msgspec.msgpack.decode(stored, type=DirectoryRecord)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=f"state entry {_STATE_KEY!r}") from error


def _difference(meta: MetaStore, entry: Entry | None, known: DirectoryRecord | None) -> str | None:
    if entry is None:
        if known is None:
            return None if meta.get(CLUSTER) is None else "the metadata is a cluster's"
        return "the metadata is gone, or it is a cluster's: then start it with [cluster]"
    if known is None:
        has_shards = meta.range(SHARDS).entries or meta.range(RANGES).entries
        return "the key-value store is gone" if has_shards else None
    if entry.value != known.directory_id.encode():
        return "the metadata is of another data directory"
    life = meta.get(incarnation_key(known.node))
    if life is None or decode(life, Incarnation).incarnation < known.incarnation:
        return "the metadata is older than the key-value store"
    return None


def _refuse_foreign(path: Path, kv: KeyValueStore) -> None:
    """Refuses data that the metadata does not know: this version has not written it."""
    segments = path / SEGMENT_DIRECTORY
    if any(kv.items(family, b"", _KEY_END, 1) for family in Family):
        found = "db holds data"
    elif segments.is_dir() and any(segments.iterdir()):
        found = f"{SEGMENT_DIRECTORY} holds files"
    else:
        return
    raise OtherFormat(
        f"{found} of which meta.db knows nothing: made by an earlier version, or parts of the "
        "directory are gone; open it with the version that made it, put meta.db and db back from "
        "the same copy of the directory, or choose another directory",
        where=str(path),
    )


def _last_node(meta: MetaStore) -> int:
    """The node that was registered last, by revision: the wall clock may have been set back."""
    known = meta.range(NODES).entries
    return (
        decode(max(known, key=lambda each: each.mod_revision), NodeRecord).node
        if known
        else FIRST_NODE
    )
