"""Data is private to the user that a node runs as: directories have mode 0700 and files 0600."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE_DIRECTORY = 0o700
PRIVATE_FILE = 0o600
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


@contextmanager
def private_umask() -> Iterator[None]:
    """Makes files that this process creates inside the block private to its user.

    RocksDB and SQLite choose modes by the umask. The umask belongs to the whole process, so only
    our own programs may call this, never code that runs inside another program.
    """
    before = os.umask(_OTHERS)
    try:
        yield
    finally:
        os.umask(before)


def make_private(directory: Path, *names: str) -> int:
    """Removes the access of group and others to a directory, and to entries with one of the names
    or prefixes.

    Returns how many entries were accessible to them. Only entries of this user are changed. The
    directory itself is changed last: until then an interrupted call is repeated. A link to the
    directory is followed, links in it are not.
    """
    if not os.stat(directory).st_mode & _OTHERS:
        return 0
    found = [each for each in os.scandir(directory) if each.name.startswith(names)]
    count = sum(_close(path) for entry in found for path in _tree(entry.path))
    return count + _close(os.path.realpath(directory))


def _tree(path: str) -> Iterator[str]:
    """The entries of a directory, then the directory; links are not followed."""
    if os.path.isdir(path) and not os.path.islink(path):
        for folder, _, files in os.walk(path, topdown=False):
            yield from (os.path.join(folder, name) for name in files)
            yield folder
    else:
        yield path


def _close(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False  # A link, gone, or not ours.
    try:
        status = os.fstat(descriptor)
        mode = stat.S_IMODE(status.st_mode)
        is_kept = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
        if not is_kept or status.st_uid != os.geteuid() or not mode & _OTHERS:
            return False
        os.fchmod(descriptor, mode & ~_OTHERS)
        return True
    finally:
        os.close(descriptor)
