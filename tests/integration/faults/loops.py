"""Small file systems in files, mounted for one test and always taken down again."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def need(*programs: str) -> None:
    """Skips the test where a program or the loop device is missing."""
    for program in (*programs, "mount", "umount"):
        if shutil.which(program) is None:
            pytest.skip(f"needs the program {program}")
    if not Path("/dev/loop-control").exists():
        pytest.skip("needs loop devices")


def make_image(image: Path, size_mib: int, *make: str) -> None:
    """An image file with a new file system."""
    with image.open("wb") as file:
        file.truncate(size_mib * 1024 * 1024)
    subprocess.run([*make, str(image)], check=True, capture_output=True)


@contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    """The image's file system, mounted at a new directory."""
    at.mkdir()
    result = subprocess.run(
        ["mount", "-o", "loop", image, at], check=False, capture_output=True, text=True
    )
    if result.returncode != 0:
        pytest.skip(f"a loop device cannot be mounted here: {result.stderr.strip()}")
    try:
        yield at
    finally:
        gc.collect()  # An error that was caught may hold a file through its traceback.
        subprocess.run(["umount", at], check=True)
        at.rmdir()


def fill(path: Path) -> None:
    """Writes until the device has no room left."""
    with path.open("ab", buffering=0) as file:
        size = 1024 * 1024
        while size:
            try:
                file.write(b"\1" * size)
            except OSError:
                size //= 2
