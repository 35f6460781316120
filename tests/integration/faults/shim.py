"""The library that makes system calls fail: compiled here, told what to do by a mapped file."""

from __future__ import annotations

import mmap
import os
import shutil
import struct
import subprocess
from enum import IntFlag
from pathlib import Path

import pytest

_SOURCE = Path(__file__).with_name("shim.c")
_LAYOUT = struct.Struct(
    "="
    "i"  # action
    "i"  # error
    "I"  # operations
    "i"  # is_partial
    "q"  # after
    "q"  # limit
    "q"  # matched
    "256s"  # path
)
_OFF, _FAIL, _END, _HOLD = range(4)
_CONTROL = "FIRN_FAULT_CONTROL"
EXIT_CODE = 77
"""How a process ends that the library has ended."""


class Calls(IntFlag):
    """System calls by what they do."""

    WRITE = 1
    SYNC = 2
    RENAME = 4
    UNLINK = 8
    TRUNCATE = 16
    MAKE = 32
    READ = 64
    """By a copy into memory; a file that is mapped is read by none."""
    ALL = 63
    """All that change something."""


class Faults:
    """What is to happen, in the file that the library has mapped."""

    def __init__(self, control: Path) -> None:
        with control.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    @classmethod
    def of_this_process(cls) -> Faults:
        """For a process that has loaded the library itself."""
        return cls(Path(os.environ[_CONTROL]))

    def fail(
        self,
        calls: Calls,
        path: str,
        error: int,
        *,
        after: int = 0,
        limit: int = 0,
        is_partial: bool = False,
    ) -> None:
        """From now on, such calls on such files fail; `after` of them still pass."""
        self._set(_FAIL, error, calls, is_partial, after, limit, path)

    def end(self, calls: Calls, path: str, *, after: int, is_partial: bool = False) -> None:
        """The process ends right before the call, or amid the write if it is to be partial."""
        self._set(_END, 0, calls, is_partial, after, 0, path)

    def hold(self, calls: Calls, path: str) -> None:
        """From now on, such calls on such files wait until `lift`."""
        self._set(_HOLD, 0, calls, False, 0, 0, path)

    def lift(self) -> None:
        self._set(_OFF, 0, Calls(0), False, 0, 0, "")

    @property
    def matched_count(self) -> int:
        """Calls that were meant since the last change."""
        return int(_LAYOUT.unpack(self._memory[: _LAYOUT.size])[6])

    def close(self) -> None:
        self._memory.close()

    def _set(
        self,
        action: int,
        error: int,
        calls: Calls,
        is_partial: bool,
        after: int,
        limit: int,
        path: str,
    ) -> None:
        self._memory[: _LAYOUT.size] = bytes(_LAYOUT.size)  # Nobody must see half of a change.
        packed = _LAYOUT.pack(_OFF, error, calls, is_partial, after, limit, 0, path.encode())
        self._memory[: _LAYOUT.size] = packed
        self._memory[:4] = struct.pack("=i", action)


def compiled(directory: Path) -> dict[str, str]:
    """Compiles the library; the environment in which a process loads it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler (cc) to make system calls fail")
    library, control = directory / "shim.so", directory / "control"
    subprocess.run(
        [compiler, "-O1", "-Wall", "-fPIC", "-shared", "-o", library, _SOURCE, "-ldl"], check=True
    )
    control.write_bytes(bytes(_LAYOUT.size))
    return {"LD_PRELOAD": str(library), _CONTROL: str(control)}
