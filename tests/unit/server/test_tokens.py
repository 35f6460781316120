"""Tokens of the HTTP listener: the node's own, and those with roles."""

from __future__ import annotations

from pathlib import Path

import pytest

from firnmq.config import AdminConfig
from firnmq.errors import InvalidArgument
from firnmq.server.admin.errors import Refused
from firnmq.server.admin.http.guard import check_role
from firnmq.server.admin.http.token import ADMINISTRATOR, AdminToken, Caller, Role, all_tokens


def test_each_token_has_its_caller(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who may what\n\nviewer read aaa\nops OPERATE bbb\n")
    own = AdminToken(path=tmp_path / "own", text="secret")
    tokens = all_tokens(own, AdminConfig(tokens_file=file))
    assert tokens.are_required
    assert tokens.caller(b"secret") == ADMINISTRATOR
    assert tokens.caller(b"aaa") == Caller(name="viewer", role=Role.READ)
    assert tokens.caller(b"bbb") == Caller(name="ops", role=Role.OPERATE)
    for wrong in (b"", b"aa", b"viewer", "é".encode()):
        assert tokens.caller(wrong) is None
    assert not all_tokens(None, AdminConfig()).are_required


@pytest.mark.parametrize("line", ["a", "a read", "a root token", "a read b c", "é read b"])
def test_a_wrong_line_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"good read token\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidArgument) as caught:
        all_tokens(None, AdminConfig(tokens_file=file))
    assert caught.value.argument == "admin.tokens_file"
    assert "token\n" not in str(caught.value)


def test_a_role_may_do_what_those_before_it_may() -> None:
    for held in Role:
        for needed in Role:
            caller = Caller(name="a", role=held)
            if held >= needed:
                check_role(caller, needed)
            else:
                with pytest.raises(Refused) as caught:
                    check_role(caller, needed)
                assert caught.value.status == 403
