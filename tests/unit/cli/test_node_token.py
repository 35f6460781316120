"""Which files a command takes for the token of a node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from firnmq.cli.node import NodeClient, token_for, token_in
from firnmq.errors import InvalidArgument


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    file = tmp_path / "secret"
    file.write_text("secret\n")
    return file


def test_the_owner_of_a_directory_chooses_any_file(tmp_path: Path, secret: Path) -> None:
    assert token_in(secret, tmp_path) == "secret"


def test_a_directory_of_another_user_cannot_name_files_of_this_user(
    tmp_path: Path, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`node.json` there names the address as well: the secret would go to a stranger."""
    real, owner = Path.stat, os.geteuid()
    foreign = tmp_path / "foreign"
    foreign.mkdir()

    def stat(path: Path, **options: bool) -> os.stat_result:
        found = list(real(path, **options))
        found[4] = owner + 1 if path == foreign else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(Path, "stat", stat)
    assert token_in(secret, foreign) is None
    monkeypatch.setattr(os, "geteuid", lambda: owner + 2)  # As root may: both are of one user.
    assert token_in(secret, tmp_path) == "secret"


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://[::1", "http://a b:1"),
        *(f"http://{'a' * 300}:1", "ftp://127.0.0.1", "http://127.0.0.1/v1"),
    ],
)
def test_an_address_that_is_none_is_named(tmp_path: Path, url: str) -> None:
    with pytest.raises(InvalidArgument, match="--node"):
        NodeClient(url)


@pytest.mark.parametrize("content", [b"two\nlines", b"\xff\xfe", "\u2603".encode()])
def test_a_token_that_no_header_can_carry_is_not_shown(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    monkeypatch.setenv("FIRN_ADMIN_TOKEN_FILE", str(file))
    url = "http://127.0.0.1:9644"
    with pytest.raises(InvalidArgument, match="FIRN_ADMIN_TOKEN_FILE") as refused:
        NodeClient(url, token_for(url, tmp_path))
    assert "lines" not in str(refused.value)
