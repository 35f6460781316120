"""The token in a data directory is the node's own, whatever the directory held before."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from firnmq.config import AdminConfig, SecurityConfig
from firnmq.errors import InvalidArgument
from firnmq.server.admin.http.token import admin_token

SASL = SecurityConfig(sasl_mechanisms=("PLAIN",))


def test_a_link_is_no_token(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    planted.write_text("known to others\n")
    (tmp_path / "admin.token").symlink_to(planted)
    with pytest.raises(InvalidArgument, match=r"remove admin\.token"):
        admin_token(tmp_path, AdminConfig(), SASL)


def test_a_token_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "admin.token").write_text("known to others\n")
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(InvalidArgument, match="others may know the token"):
        admin_token(tmp_path, AdminConfig(), SASL)


def test_a_token_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / "admin.token"
    path.write_text("restored from a copy\n")
    path.chmod(0o644)
    token = admin_token(tmp_path, AdminConfig(), SASL)
    assert token is not None
    assert token.text == "restored from a copy"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("content", ["two\nlines", "\u2603"])
def test_a_token_that_no_request_can_carry_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(InvalidArgument, match="one line of ASCII text"):
        admin_token(tmp_path, AdminConfig(token_file=file), SASL)
