"""`firn acl` on a data directory and through its node, and tokens of the node with roles."""

from __future__ import annotations

import json
from pathlib import Path

from tests.integration.admin.serving import Served, firn

RULE = {
    "principal": "User:ann",
    "operation": "read",
    "resource_type": "topic",
    "name": "orders",
    "pattern": "literal",
    "host": "*",
    "permission": "allow",
}


def listed(data: Path) -> list[dict[str, str]]:
    shown = firn("acl", "list", "--json", "--data", str(data))
    assert shown.returncode == 0, shown.stderr
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_rules_of_a_directory_and_of_its_node(tmp_path: Path) -> None:
    data = tmp_path / "data"
    place = ("--data", str(data))
    made = firn("acl", "add", "User:ann", "read", "--topic", "orders", *place)
    assert (made.stdout, made.returncode) == ("added 1 rule\n", 0), made.stderr
    assert listed(data) == [RULE]
    tokens = tmp_path / "tokens"
    tokens.write_text("# name role token\nviewer read aaa\nops operate bbb\nboss administer ccc\n")
    served = Served(data, settings={"FIRN_ADMIN_TOKENS_FILE": str(tokens)})
    try:
        assert listed(data) == [RULE]
        more = firn("acl", "add", "User:*", "all", "--group", "g", "--prefixed", "--deny", *place)
        assert more.stdout == "added 1 rule\n", more.stderr
        wrong = firn("acl", "add", "ann", "read", "--topic", "orders", *place)
        assert wrong.returncode != 0
        assert "User:name" in wrong.stderr
        gone = firn("acl", "remove", "--principal", "User:ann", "--json", *place)
        assert [json.loads(line) for line in gone.stdout.splitlines()] == [RULE]
        assert [each["permission"] for each in listed(data)] == ["deny"]
        assert firn("acl", "remove", *place).returncode == 2
        judge_roles(served)
    finally:
        assert served.stop() == 0
    assert firn("acl", "remove", "--all", *place).stdout.endswith("removed 1 rule\n")
    assert listed(data) == []


def judge_roles(served: Served) -> None:
    def status(token: str, method: str, path: str, body: object = None) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return served.call(method, path, body, headers).status

    new = {"topic": "made", "shard_count": 1}
    asked: list[tuple[str, str, object]] = [
        ("GET", "/v1/topics", None),
        ("GET", "/metrics", None),
        ("POST", "/v1/topics", new),
        ("DELETE", "/v1/topics/made", None),
        ("GET", "/v1/users", None),
        ("GET", "/v1/rules", None),
        ("PUT", "/v1/users/eve", {"password": "secret"}),
    ]
    found = {
        token: [status(token, *each) for each in asked] for token in ("xxx", "aaa", "bbb", "ccc")
    }
    assert found == {
        "xxx": [401] * 7,
        "aaa": [200, 200, 403, 403, 403, 403, 403],
        "bbb": [200, 200, 200, 200, 403, 403, 403],
        "ccc": [200] * 7,
    }
    log = "\n".join(served.log)
    assert 'refused who="token viewer"' in log
    assert 'changed who="token ops"' in log
    assert "refused who=unknown" in log
    assert "secret" not in log
