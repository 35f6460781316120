"""A disk in memory that forgets what was not synced: files, rows and the catalog of one shard."""

from __future__ import annotations

import copy
import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from firnmq.config import TopicConfig
from firnmq.disk import Family
from firnmq.disk.files import Buffer
from firnmq.engines.catalog.segments import SegmentMeta, SegmentState, Successor
from firnmq.engines.catalog.state import ShardSpec
from firnmq.engines.media.layouts import PartitionPerFile
from firnmq.engines.media.snapshots import SNAPSHOT_SUFFIX, SnapshotFiles
from firnmq.errors import NotLeader, StaleEpoch, StorageFailed
from firnmq.testing.crash_disk import SECTOR_BYTES, Fate

SHARD = "shard"
UID = 1

Rows = dict[Family, dict[bytes, bytes]]
Change = Callable[[Rows], None]


class Files:
    """A FileCache. `before` is called before every operation, and may raise."""

    def __init__(self, before: Callable[[str], None]) -> None:
        self._before = before
        self.content: dict[str, bytearray] = {}
        self.synced: dict[str, bytes] = {}

    def create(self, path: Path) -> None:
        self._before("create")
        if str(path) not in self.content:
            self.content[str(path)] = bytearray()
            self.synced[str(path)] = b""

    def write_at(
        self, path: str, buffers: Sequence[Buffer], position: int, *, durable: bool = False
    ) -> int:
        self._before("write")
        data = b"".join(buffers)
        file = self._open(path)
        file.extend(bytes(max(position - len(file), 0)))
        file[position : position + len(data)] = data
        if durable:
            self.sync(path)
        return len(data)

    def write_ahead(self, path: str, position: int, size: int) -> None:
        self.write_at(path, (bytes(size),), position, durable=True)

    def read_at(self, path: str, position: int, size: int) -> bytes:
        return bytes(self._open(path)[position : position + size])

    def read_nowait(self, path: str, position: int, size: int) -> bytearray | None:
        return None

    def sync(self, path: str) -> None:
        self._before("sync")
        self.synced[path] = bytes(self._open(path))

    def truncate(self, path: str, length: int, *, durable: bool = True) -> None:
        self._before("truncate")
        del self._open(path)[length:]
        if durable:
            self.synced[path] = bytes(self.content[path])

    def length(self, path: str) -> int | None:
        return len(self.content[path]) if path in self.content else None

    def remove(self, path: str) -> None:
        self._before("remove")
        self.content.pop(path, None)
        self.synced.pop(path, None)

    def forget(self, path: str) -> None:
        """There are no descriptors."""

    def _open(self, path: str) -> bytearray:
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def survivors(self, rng: random.Random) -> dict[str, bytes]:
        """What a power cut leaves of every file."""
        return {path: self._survivor(path, rng) for path in self.content}

    def _survivor(self, path: str, rng: random.Random) -> bytes:
        synced, written = self.synced[path], bytes(self.content[path])
        fate = rng.choice(tuple(Fate))
        if fate is Fate.LOST or written == synced:
            return synced
        if fate is Fate.PREFIX:
            return written[: rng.randrange(min(len(synced), len(written)), len(written) + 1)]
        left, before = bytearray(written), synced.ljust(len(written), b"\0")
        for at in range(0, len(written), SECTOR_BYTES):
            if rng.random() < 0.5:
                left[at : at + SECTOR_BYTES] = before[at : at + SECTOR_BYTES][: len(left) - at]
        return bytes(left)


class Layout(PartitionPerFile):
    """Finds the files of a shard in memory."""

    def files_of(self, spec: ShardSpec) -> list[Path]:
        files = self._files
        assert isinstance(files, Files)
        prefix = f"{self._directory}/{spec.name}/"
        found = [path for path in sorted(files.content) if path.startswith(prefix)]
        return [Path(path) for path in found if path.endswith(".log")]


class Snapshots(SnapshotFiles):
    """Finds the snapshots of a shard in memory."""

    def offsets(self, spec: ShardSpec) -> list[int]:
        files = self._files
        assert isinstance(files, Files)
        prefix = f"{self._directory}/{spec.name}/"
        found = [Path(path) for path in files.content if path.startswith(prefix)]
        return sorted(int(path.stem) for path in found if path.suffix == SNAPSHOT_SUFFIX)


class Batch:
    """A KvBatch."""

    def __init__(self) -> None:
        self.changes: list[Change] = []

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        self.changes.append(lambda rows: rows[family].update({key: value}))

    def put_many(self, family: Family, entries: Sequence[tuple[bytes, bytes]]) -> None:
        kept = list(entries)
        self.changes.append(lambda rows: rows[family].update(kept))

    def delete(self, family: Family, key: bytes) -> None:
        self.changes.append(lambda rows: rows[family].pop(key, None) and None)

    def delete_range(self, family: Family, lower: bytes, upper: bytes) -> None:
        def delete(rows: Rows) -> None:
            for key in [each for each in rows[family] if lower <= each < upper]:
                del rows[family][key]

        self.changes.append(delete)


class KeyValues:
    """A KeyValueStore. Unsynced writes survive a power cut up to one of them."""

    has_failed = False
    opened_count = 1

    def __init__(self, before: Callable[[str], None], rows: Rows | None = None) -> None:
        self._before = before
        self.rows: Rows = rows or {family: {} for family in Family}
        self._synced = copy.deepcopy(self.rows)
        self._unsynced: list[list[Change]] = []

    def get(self, family: Family, key: bytes) -> bytes | None:
        return self.rows[family].get(key)

    def floor(self, family: Family, lower: bytes, key: bytes) -> tuple[bytes, bytes] | None:
        found = max((each for each in self.rows[family] if lower <= each <= key), default=None)
        return None if found is None else (found, self.rows[family][found])

    def items(
        self,
        family: Family,
        lower: bytes,
        upper: bytes,
        limit: int = 1_000_000_000,
        max_bytes: int | None = None,
    ) -> list[tuple[bytes, bytes]]:
        assert max_bytes is None
        rows = self.rows[family]
        return [(key, rows[key]) for key in sorted(rows) if lower <= key < upper][:limit]

    @contextmanager
    def batch(self, opened_count: int | None = None) -> Iterator[Batch]:
        batch = Batch()
        yield batch
        self._before("write rows")
        for change in batch.changes:
            change(self.rows)
        self._unsynced.append(batch.changes)

    def sync(self) -> None:
        self._before("sync rows")
        for changes in self._unsynced:
            for change in changes:
                change(self._synced)
        self._unsynced = []

    def survivors(self, rng: random.Random) -> Rows:
        rows = copy.deepcopy(self._synced)
        for changes in self._unsynced[: rng.randrange(len(self._unsynced) + 1)]:
            for change in changes:
                change(rows)
        return rows


class Outcome:
    """What becomes of a transaction."""

    HAPPENS = "happens"
    FAILS = "fails"
    UNKNOWN_HAPPENS = "unknown, happens"
    UNKNOWN_FAILS = "unknown, fails"


class Catalog:
    """A ShardCatalog of one shard, whose transactions are durable and may fail."""

    def __init__(self, config: TopicConfig) -> None:
        self._spec = ShardSpec(name=SHARD, uid=UID, config=config)
        self.metas = {0: SegmentMeta(seq=0, base_offset=0, created_ms=0)}
        self.start = 0
        self.outcome: Callable[[str], str] = lambda _: Outcome.HAPPENS

    def shards(self) -> list[ShardSpec]:
        return [self._spec]

    def ranges(self) -> list[object]:
        return []

    def chain(self, uid: int) -> list[SegmentMeta]:
        return [self.metas[seq] for seq in sorted(self.metas)]

    def active_seq(self, uid: int) -> int:
        return max(self.metas)

    def start_offset(self, uid: int) -> int:
        return self.start

    def segment(self, uid: int, seq: int) -> SegmentMeta | None:
        return self.metas.get(seq)

    def lake_end(self, uid: int) -> int:
        return 0

    def has_lake(self, uid: int) -> bool:
        return False

    def roll(
        self,
        uid: int,
        sealed: SegmentMeta,
        active: SegmentMeta,
        successor: Successor | None = None,
    ) -> SegmentMeta:
        def change() -> None:
            held = self.metas[sealed.seq]
            if held.state is not SegmentState.ACTIVE or held.epoch != sealed.epoch - 1:
                raise StaleEpoch(f"{SHARD}/{sealed.seq}", sealed.epoch - 1, held.epoch)
            assert active.base_offset == sealed.end_offset
            self.metas |= {sealed.seq: sealed, active.seq: active}

        self._decide("roll", change)
        return active

    own_holders: tuple[int, ...] = ()

    def not_led(self, uid: int) -> NotLeader:
        raise AssertionError("the only node leads")

    def move_start(
        self,
        uid: int,
        start_offset: int,
        deleted: Sequence[SegmentMeta],
        active: SegmentMeta | None = None,
    ) -> None:
        def change() -> None:
            for meta in deleted:
                held = self.metas[meta.seq]
                if held.epoch != meta.epoch:
                    raise StaleEpoch(f"{SHARD}/{meta.seq}", meta.epoch, held.epoch)
                self.metas[meta.seq] = dataclasses.replace(
                    held, state=SegmentState.DELETED, epoch=held.epoch + 1
                )
            self.start = start_offset

        self._decide("move start", change)

    def forget_segments(self, uid: int, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self.metas.pop(seq, None)

    def _decide(self, what: str, change: Callable[[], None]) -> None:
        outcome = self.outcome(what)
        if outcome in (Outcome.HAPPENS, Outcome.UNKNOWN_HAPPENS):
            change()
        if outcome is not Outcome.HAPPENS:
            failure = StorageFailed("the metadata", OSError(5, "Input/output error"))
            failure.is_outcome_unknown = outcome is not Outcome.FAILS
            raise failure

    def __getattr__(self, name: str) -> Callable[..., object]:
        """What the simulation does not use."""

        def unused(*arguments: object) -> object:
            raise AssertionError(f"{name} is not simulated")

        return unused
