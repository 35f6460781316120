"""axe-core, the accessibility rules, which npm fetches into var/ when a test first needs it.

It is not part of the repository: its licence is another one than ours.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

_VERSION = "4.14.1"
_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
_DIRECTORY = Path(__file__).resolve().parents[3] / "var" / "axe"
_FETCH_S = 120


def axe_source() -> str:
    """The script that makes `window.axe`. Skips the test where npm cannot bring it."""
    script = _DIRECTORY / f"axe-{_VERSION}.js"
    if not script.exists():
        _fetch(script)
    raw = script.read_bytes()
    assert hashlib.sha256(raw).hexdigest() == _SHA256, f"{script} is not the known one"
    return raw.decode()


def _fetch(script: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm, which fetches axe-core")
    _DIRECTORY.mkdir(parents=True, exist_ok=True)
    command = [npm, "pack", f"axe-core@{_VERSION}", "--silent"]
    try:
        subprocess.run(command, cwd=_DIRECTORY, check=True, capture_output=True, timeout=_FETCH_S)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm cannot fetch axe-core: {error}")
    archive = _DIRECTORY / f"axe-core-{_VERSION}.tgz"
    with tarfile.open(archive) as opened:
        member = opened.extractfile("package/axe.min.js")
        assert member is not None
        part = script.with_suffix(".part")
        part.write_bytes(member.read())
    part.rename(script)
    archive.unlink()
