"""How the user can call this program, for commands that are printed to be typed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def program(arguments: list[str] | None = None, folder: Path | None = None) -> str:
    """`firn` if a shell finds it; else `./firn` in a checkout, or the path it was called by."""
    called = Path((arguments or sys.argv)[0])
    here = folder or Path.cwd()
    if called.name == "__main__.py":
        return f"{_shown(Path(sys.executable), here)} -m firnmq"
    found = shutil.which("firn")
    if called.name != "firn":
        return "firn"  # Called by a program, not by a user.
    if found is not None and os.path.realpath(found) == os.path.realpath(called):
        return "firn"
    launcher = here / "firn"
    if called.absolute().parent == here / ".venv" / "bin" and launcher.is_file():
        return "./firn"
    return _shown(called.absolute(), here)


def _shown(path: Path, here: Path) -> str:
    """A path as short as it can be typed in a folder."""
    try:
        return str(path.relative_to(here))
    except ValueError:
        return str(path)
