"""Where tests find etcd, and why they are skipped where it is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def etcd_program() -> Path:
    """The program, or a skipped test."""
    program = Path(os.environ.get("FIRN_TEST_ETCD") or ROOT / "var" / "etcd" / "etcd")
    if not program.exists():
        pytest.skip("etcd is not built here; make etcd builds it")
    return program
