"""The bearer token of the HTTP listener: the operator's own, or one that the node generates.

If Kafka clients must authenticate, HTTP without a token would let every local process add users.
The node then generates a token at its first start, in its data directory, where only users who may
read the data can read it.
"""

from __future__ import annotations

import enum
import hmac
import os
import secrets
import stat
from collections.abc import Sequence
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


class Role(enum.IntEnum):
    """What requests may do. Each role may do what those before it may."""

    READ = 1
    """Look at everything: topics, records, groups, metrics."""
    OPERATE = 2
    """Change topics, records, groups and copies in the object store."""
    ADMINISTER = 3
    """Say who may do what: users and rules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who sends a request, as the audit log names it, and what it may do."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class TokenOf:
    token: bytes
    caller: Caller


ANYBODY = Caller(name="anonymous", role=Role.ADMINISTER)
"""Every client of a listener that requires no token."""
ADMINISTRATOR = Caller(name="admin.token", role=Role.ADMINISTER)
_LINES_MAX = 1_000


class Tokens:
    """The tokens of a listener."""

    def __init__(self, tokens: Sequence[TokenOf] = ()) -> None:
        self.all = tuple(tokens)

    @property
    def are_required(self) -> bool:
        return bool(self.all)

    def caller(self, given: bytes) -> Caller | None:
        """Who has this token."""
        found = self.find(given)
        return None if found is None else found.caller

    def find(self, given: bytes) -> TokenOf | None:
        """Every token is compared, so that the time tells nothing."""
        found = None
        for each in self.all:
            if hmac.compare_digest(given, each.token):
                found = each
        return found


def all_tokens(own: AdminToken | None, admin: AdminConfig) -> Tokens:
    """The node's own token, which may do everything, and those of `tokens_file`."""
    tokens = [] if own is None else [TokenOf(own.text.encode(), ADMINISTRATOR)]
    return Tokens((*tokens, *_tokens_of(admin)))


def _tokens_of(admin: AdminConfig) -> list[TokenOf]:
    if admin.tokens_file is None:
        return []
    path, setting = admin.tokens_file, "admin.tokens_file"
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidArgument(setting, f"{path}: {error}") from error
    if len(lines) > _LINES_MAX:
        raise InvalidArgument(setting, f"{path} has more than {_LINES_MAX:,} lines")
    tokens = []
    for number, line in enumerate(lines, 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        # The line is not shown: it may hold a secret.
        if len(words) != 3 or words[1].upper() not in Role.__members__:
            roles = ", ".join(role.name.lower() for role in Role)
            text = f"{path}, line {number} must be: NAME ROLE TOKEN, with a role of {roles}"
            raise InvalidArgument(setting, text)
        caller = Caller(name=words[0], role=Role[words[1].upper()])
        tokens.append(TokenOf(words[2].encode(), caller))
    return tokens


def admin_token(data: Path, admin: AdminConfig, security: SecurityConfig) -> AdminToken | None:
    """The token of the node of a data directory that this process has locked; None if requests
    need none."""
    if admin.token_file is not None:
        return AdminToken(path=admin.token_file, text=_read("admin.token_file", admin.token_file))
    if not security.identifies_clients and admin.tokens_file is None:
        return None
    path = data / TOKEN_NAME
    if path.exists():
        _check_owner(path)
        return AdminToken(path=path, text=_read(str(path), path))
    text = secrets.token_urlsafe(_TOKEN_BYTES)
    _write(path, text)
    return AdminToken(path=path, text=text, is_new=True)


def check_token_file(admin: AdminConfig) -> None:
    """InvalidArgument if the operator's tokens cannot be read. Called before anything is made."""
    _tokens_of(admin)
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
