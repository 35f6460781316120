"""What all replicas of a shard together have, as its segments' leaders made it."""

from __future__ import annotations

import random
from itertools import accumulate

from firnmq.engines.catalog.segments import SegmentMeta
from firnmq.engines.replicas import ReplicaEnd
from firnmq.record import NewRecord, crc32c, decode, encode, parse_header, patch_base
from firnmq.record.deletion import Deletion, deletion_batch, deletion_of

KEYS = [b"a", b"b", b"c"]


class Truth:
    """The batches of the active segment, and what the whole shard holds."""

    def __init__(self) -> None:
        self.meta = SegmentMeta(seq=0, base_offset=0, created_ms=0, holders=(1, 2))
        """The active segment."""
        self.sealed: SegmentMeta | None = None
        """The one before, while the replica under test does not have its end."""
        self.sealed_batches: list[bytes] = []
        self.batches: list[bytes] = []
        self.older: list[bytes] = []
        """Batches of sealed segments."""
        self._number = 0

    # Ends ------------------------------------------------------------------------------------

    @property
    def end(self) -> int:
        return self.ends()[-1]

    def ends(self) -> list[int]:
        """Batch borders of the active segment."""
        return borders(self.meta.base_offset, self.batches)

    def end_at(self, offset: int) -> ReplicaEnd:
        """The border there, with the CRC of what is before it."""
        return end_at(self.meta.base_offset, self.batches, offset)

    # Growing ---------------------------------------------------------------------------------

    def new_batch(self, rng: random.Random, now_ms: int) -> bytes:
        """A batch without its offset: records, or sometimes a deletion of one that is there."""
        deletable = [offset for offset in self.records(self.end) if offset < self.end]
        if deletable and rng.random() < 0.15:
            return bytes(deletion_batch(Deletion((rng.choice(deletable),))))
        values = []
        for _ in range(rng.randint(1, 3)):
            values.append(b"%d %s" % (self._number, bytes(rng.randrange(120))))
            self._number += 1
        new = [NewRecord(value=value, key=rng.choice(KEYS)) for value in values]
        return bytes(encode(new, now_ms=now_ms))

    def append(self, batch: bytes) -> None:
        """As the leader: numbers the batch."""
        data = bytearray(batch)
        patch_base(data, 0, self.end, self.meta.leader_epoch)
        self.batches.append(bytes(data))

    def cut(self, end: int) -> None:
        """Nothing of the active segment is left from here on."""
        self.batches = self.batches[: self.ends().index(end)]

    # What readers find -------------------------------------------------------------------------

    def records(self, end: int) -> dict[int, tuple[bytes, bytes | None]]:
        """Value and key by offset, of a log that shows everything below the end."""
        found: dict[int, tuple[bytes, bytes | None]] = {}
        deleted: set[int] = set()
        for batch in (*self.older, *self.sealed_batches, *self.batches):
            header = parse_header(batch)
            if header.last_offset >= end:
                break
            deletion = deletion_of(batch)
            if deletion is not None:
                deleted.update(deletion.offsets)
            else:
                for record in decode([batch]).records():
                    found[record.offset] = bytes(record.value or b""), record.key
        return {offset: each for offset, each in found.items() if offset not in deleted}


def borders(base_offset: int, batches: list[bytes]) -> list[int]:
    counts = (parse_header(each).last_offset_delta + 1 for each in batches)
    return list(accumulate(counts, initial=base_offset))


def end_at(base_offset: int, batches: list[bytes], offset: int) -> ReplicaEnd:
    count = borders(base_offset, batches).index(offset)
    return ReplicaEnd(offset, crc32c(b"".join(batches[:count])))


def from_offset(base_offset: int, batches: list[bytes], offset: int) -> list[bytes]:
    """The batches from a border on."""
    return batches[borders(base_offset, batches).index(offset) :]
