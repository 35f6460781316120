"""Since which incarnation of a node nothing durable of its replicas was lost.

With durability=fsync that is the one in which its directory was made. With `os` and `interval` a
power failure loses a tail, and so does a crash of the operating system. Whether there was one is
told by the boot that the last process ran in, and by a mark that it leaves when it has closed with
everything synced. What is in memory is of the present incarnation.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import msgspec

from firnmq.config import Durability, StorageType, TopicConfig
from firnmq.disk import Family, KeyValueStore
from firnmq.errors import Corruption

_KEY = b"C"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class ContinuityRecord(msgspec.Struct, frozen=True):
    """What a directory knows of the processes that had it."""

    made: int
    """The incarnation in which the directory was made, or from which on it is known."""
    since: int
    """The incarnation since which no page cache was lost."""
    boot: str
    """The boot in which the directory was opened last."""
    is_closed: bool
    """Whether everything was synced after that."""


def present_boot() -> str:
    """Names the present boot of the machine; where the system does not tell, no boot is the same as
    another."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex


class Continuity:
    """Of one life of a directory. Close it once nothing is stored any more."""

    def __init__(self, kv: KeyValueStore, incarnation: int, boot: str | None = None) -> None:
        """Takes note of the life that begins, durably, before anything is stored in it."""
        self._kv = kv
        self._incarnation = incarnation
        boot = boot or present_boot()
        known = _known(kv)
        if known is None:
            made = since = incarnation
        else:
            made = known.made
            is_whole = known.is_closed or known.boot == boot
            since = known.since if is_whole else incarnation
        self._record = ContinuityRecord(made=made, since=since, boot=boot, is_closed=False)
        self._keep()

    def since(self, config: TopicConfig) -> int:
        """Of the replicas of a topic's shards."""
        if config.storage_type == StorageType.MEMORY.value:
            return self._incarnation
        return self._record.made if config.durability is Durability.FSYNC else self._record.since

    def close(self) -> None:
        """Everything of every topic is synced."""
        self._record = msgspec.structs.replace(self._record, is_closed=True)
        self._keep()

    def _keep(self) -> None:
        with self._kv.batch() as batch:
            batch.put(Family.STATE, _KEY, msgspec.msgpack.encode(self._record))
        self._kv.sync()


def _known(kv: KeyValueStore) -> ContinuityRecord | None:
    stored = kv.get(Family.STATE, _KEY)
    if stored is None:
        return None
    try:
        return msgspec.msgpack.decode(stored, type=ContinuityRecord)
    except msgspec.MsgspecError as error:
        raise Corruption(str(error), where=f"state entry {_KEY!r}") from error
