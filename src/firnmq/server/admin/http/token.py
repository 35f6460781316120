"""The bearer token of the HTTP listener: the operator's own, or one that the node generates.

If Kafka clients must authenticate, HTTP without a token would let every local process add users.
The node then generates a token at its first start, in its data directory, where only users who may
read the data can read it.
"""

from __future__ import annotations

import os
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from firnmq.config import AdminConfig, SecurityConfig
from firnmq.disk import sync_directory
from firnmq.disk.private import PRIVATE_FILE
from firnmq.errors import InvalidArgument
from firnmq.eventlog import EventLogger

TOKEN_NAME = "admin.token"
"""Name of the file in the data directory."""
_TOKEN_BYTES = 32

_log = EventLogger("admin")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminToken:
    """The token and the file that holds it."""

    path: Path
    text: str
    is_new: bool = False


def admin_token(data: Path, admin: AdminConfig, security: SecurityConfig) -> AdminToken | None:
    """The token of the node of a data directory that this process has locked; None if requests
    need none."""
    if admin.token_file is not None:
        return AdminToken(path=admin.token_file, text=_read("admin.token_file", admin.token_file))
    if not security.identifies_clients:
        return None
    path = data / TOKEN_NAME
    if path.exists():
        _check_owner(path)
        return AdminToken(path=path, text=_read(str(path), path))
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    _write(path, text)
    return AdminToken(path=path, text=text, is_new=True)


def check_token_file(admin: AdminConfig) -> None:
    """InvalidArgument if the operator's token cannot be read. Called before anything is created."""
    if admin.token_file is not None:
        _read("admin.token_file", admin.token_file)


def _check_owner(path: Path) -> None:
    """InvalidArgument if another user may have written, and so may know, the token: the directory
    may have been writable by others. Makes the file private."""
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise InvalidArgument(
            TOKEN_NAME,
            f"{path} is not a file of this user, so others may know the token; remove {path.name} "
            "and the node creates a new one, or name your own file in admin.token_file",
        )
    if stat.S_IMODE(found.st_mode) & ~PRIVATE_FILE:
        path.chmod(PRIVATE_FILE)
        _log.info("permissions_tightened", path=path, entries=1)


def _read(name: str, path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidArgument(name, f"{path}: {error}") from error
    if not token:
        raise InvalidArgument(name, f"{path} is empty; remove it or write a secret into it")
    if not token.isascii() or not token.isprintable():
        raise InvalidArgument(name, f"{path} must hold one line of ASCII text")
    return token


def _write(path: Path, text: str) -> None:
    """Creates the file atomically, with all of its content, for its owner only."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync_directory(path.parent)
