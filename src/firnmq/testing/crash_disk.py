"""A disk that loses what was not synced.

`CrashFiles`, `CrashKeyValueStore` and `CrashMetaStore` work on a real directory and record what has
been synced. At a chosen operation they write what a power failure at that moment would leave into
another directory, from which a store can then be opened.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from firnmq.disk import FileCache, KeyValueStore
from firnmq.disk.files import Buffer
from firnmq.meta import Compare, Session, SqliteMetaStore

SECTOR_BYTES = 512
"""What a disk writes whole or not at all."""
_JOURNALS = "journal-*.log"


class Fate(Enum):
    """What happens to bytes that were written and not synced."""

    LOST = "lost"
    PREFIX = "prefix"
    """A prefix of them survives, and the file ends after it."""
    TORN = "torn"
    """Each sector survives or not; a lost one reads as before, or as zeros."""


class PowerCut:
    """A simulated power failure: before which operation it happens, and where the remains go."""

    def __init__(self, source: Path, remains: Path, *, after: int, rng: random.Random) -> None:
        self._source = source
        self._remains = remains
        self._countdown = after
        self._rng = rng
        self.lock = threading.RLock()
        """Held during every change of a file, so that the failure happens between two of them."""
        self._files = {
            str(path): path.read_bytes()
            for pattern in ("segments/*/*", "shared/*")
            for path in source.glob(pattern)
        }
        self.journal_lengths: Callable[[], dict[str, int]] = dict
        """How much of each file of the key-value store's journal is on the device; −1: all."""
        self.has_come = False

    def step(self) -> None:
        """Called before every change of the disk."""
        if self._countdown == 0 and not self.has_come:
            self.happen()
        self._countdown -= 1

    def happen(self) -> None:
        """Writes the remains."""
        self.has_come = True
        self._remains.mkdir(parents=True)
        for name, synced in self._files.items():
            path = Path(name)
            if not path.exists():
                continue  # Removed with its directory.
            target = self._remains / path.relative_to(self._source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(self._survivors(synced, path.read_bytes()))
        self._copy_database()
        for path in self._source.glob(
            "meta.db*"
        ):  # Every commit is synced, and none is in progress.
            shutil.copy(path, self._remains / path.name)

    def note_synced(self, path: str) -> None:
        """What the file holds now is on the device."""
        self._files[path] = Path(path).read_bytes()

    def note_removed(self, path: str) -> None:
        self._files.pop(path, None)

    def _database_files(self, pattern: str) -> dict[str, int] | None:
        """Those of one kind with their lengths; None if one went just now."""
        try:
            return {each.name: each.stat().st_size for each in (self._source / "db").glob(pattern)}
        except FileNotFoundError:
            return None

    def _survivors(self, synced: bytes, written: bytes) -> bytes:
        fate = self._rng.choice(tuple(Fate))
        if fate is Fate.LOST or written == synced:
            return synced
        if fate is Fate.PREFIX:
            shared = min(len(synced), len(written))
            return written[: self._rng.randrange(shared, len(written) + 1)]
        left = bytearray(written)
        before = synced.ljust(len(written), b"\0")
        for at in range(0, len(written), SECTOR_BYTES):
            if self._rng.random() < 0.5:
                left[at : at + SECTOR_BYTES] = before[at : at + SECTOR_BYTES][: len(left) - at]
        return bytes(left)

    def _copy_database(self) -> None:
        """Tables and the manifest are synced by RocksDB itself; the journal only when asked to.

        Threads change them at any time: the copy is repeated until no table and no name of a
        journal changed during it. The journal comes last, since it is never behind the tables.
        """
        source, target = self._source / "db", self._remains / "db"
        while True:
            before = self._database_files("[!j]*"), set(self._database_files(_JOURNALS) or ())
            try:
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK", "journal*"))
                synced = self.journal_lengths()
                for name in before[1]:
                    shutil.copy(source / name, target / name)
                after = self._database_files("[!j]*"), set(self._database_files(_JOURNALS) or ())
                if before[0] is not None and after == before:
                    break
            except (shutil.Error, FileNotFoundError):
                pass  # A table went while it was copied.
            shutil.rmtree(target, ignore_errors=True)
        for name in before[1]:
            length = (target / name).stat().st_size
            if synced.get(name, -1) >= 0:
                os.truncate(target / name, self._rng.randrange(synced[name], length + 1))


class CrashFiles(FileCache):
    """A FileCache that records what is synced."""

    def __init__(self, cut: PowerCut, *, open_max: int = 1000) -> None:
        super().__init__(open_max=open_max)
        self._cut = cut

    def create(self, path: Path) -> None:
        with self._cut.lock:
            self._cut.step()
            is_new = not path.exists()
            super().create(path)
            if is_new:
                self._cut.note_synced(str(path))

    def write_at(
        self, path: str, buffers: Sequence[Buffer], position: int, *, durable: bool = False
    ) -> int:
        """Always two steps, since the power can fail in between."""
        with self._cut.lock:
            self._cut.step()
            written = super().write_at(path, buffers, position)
        if durable:
            self.sync(path)
        return written

    def sync(self, path: str) -> None:
        with self._cut.lock:
            self._cut.step()
            super().sync(path)
            self._cut.note_synced(path)

    def write_ahead(self, path: str, position: int, size: int) -> None:
        self.write_at(path, (bytes(size),), position, durable=True)

    def truncate(self, path: str, length: int, *, durable: bool = True) -> None:
        with self._cut.lock:
            self._cut.step()
            super().truncate(path, length, durable=durable)
            if durable:
                self._cut.note_synced(path)

    def remove(self, path: str) -> None:
        with self._cut.lock:
            self._cut.step()
            super().remove(path)
            self._cut.note_removed(path)


class CrashKeyValueStore(KeyValueStore):
    """A KeyValueStore that records what is synced."""

    def __init__(self, path: Path, cut: PowerCut) -> None:
        super().__init__(path)
        self._cut = cut
        cut.journal_lengths = self.journal_synced_lengths

    def sync(self) -> None:
        with self._cut.lock:
            self._cut.step()
            super().sync()


class CrashMetaStore(SqliteMetaStore):
    """A SqliteMetaStore before whose transactions the power may fail."""

    def __init__(self, path: Path, cut: PowerCut) -> None:
        super().__init__(path)
        self._cut = cut

    def txn(
        self,
        compares: Sequence[Compare] = (),
        puts: Mapping[str, bytes] | None = None,
        deletes: Sequence[str] = (),
        session: Session | None = None,
    ) -> int:
        with self._cut.lock:
            self._cut.step()
            return super().txn(compares, puts, deletes, session)
