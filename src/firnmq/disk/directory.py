"""Directories: durable changes to them, and the lock that keeps a second process out."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path
from time import sleep

from firnmq.disk.private import PRIVATE_DIRECTORY, PRIVATE_FILE
from firnmq.errors import DirectoryInUse
from firnmq.nodefile import LOCK_NAME, lock_text

_ATTEMPTS = 5
_ATTEMPT_AFTER_S = 0.02
"""A command that checks whether a node serves the directory holds its lock for an instant."""


def sync_directory(path: Path) -> None:
    """Makes created, renamed and removed entries of a directory durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(path: Path) -> None:
    """Creates a directory and its parents, durably and with mode 0700; an existing one is
    unchanged."""
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for new in reversed(missing):
        new.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
    path.mkdir(exist_ok=True)  # Fails if it is something else.
    for made in missing:
        sync_directory(made.parent)


def remove_tree(path: Path) -> None:
    """Removes a directory with its content; a missing one is no error."""
    if path.exists():
        shutil.rmtree(path)
        sync_directory(path.parent)


class DirectoryLock:
    """Holds a data directory for this process until released or the process ends."""

    def __init__(self, directory: Path) -> None:
        make_directories(directory)
        self._path = directory / LOCK_NAME
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        if not self._acquire():
            holder = os.pread(self._descriptor, 64, 0).decode("ascii", "replace").strip()
            os.close(self._descriptor)
            raise DirectoryInUse(str(directory), holder or "another process")
        text = lock_text(os.getpid())
        with suppress(OSError):  # A full disk: the lock holds without its holder's name.
            os.pwrite(self._descriptor, text, 0)
            os.ftruncate(self._descriptor, len(text))

    def _acquire(self) -> bool:
        for attempt in range(_ATTEMPTS):
            if attempt:
                sleep(_ATTEMPT_AFTER_S)
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except BlockingIOError:
                continue
        return False

    def release(self) -> None:
        os.close(self._descriptor)
