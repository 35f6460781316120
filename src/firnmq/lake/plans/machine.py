"""Which machine this is, and which file: whether a path in a plan means the same here.

Containers of one machine share its kernel but not its file systems, and another machine may have a
file of the same name. So a plan names the kernel's life, which is never the same twice, and each
file's device and inode, which are the same for all who share that kernel.
"""

from __future__ import annotations

import hashlib
import os
import socket
from functools import cache
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_MACHINE_ID = Path("/etc/machine-id")


@cache
def machine_id() -> str:
    """Identity of the running kernel; of the machine if the kernel has none."""
    for path in (_BOOT_ID, _MACHINE_ID):
        try:
            text = path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            continue
        if text:
            return _hashed(text)
    return _hashed(socket.gethostname())


def file_id(status: os.stat_result) -> str:
    """Identifies an open file among all files of this kernel."""
    return f"{status.st_dev:x}:{status.st_ino:x}"


def file_id_of(path: str) -> str | None:
    """The same by name; None if there is no such file."""
    try:
        return file_id(os.stat(path))
    except OSError:
        return None


def _hashed(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
