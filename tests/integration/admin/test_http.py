"""The HTTP listener: topics, records, segments, options, and what it refuses."""

from __future__ import annotations

import re

import pytest

from tests.integration.admin.serving import Served


def test_topics_from_creation_to_deletion(node: Served) -> None:
    made = node.call(
        "POST",
        "/v1/topics",
        {"topic": "life", "shard_count": 3, "options": {"segment.bytes": 65536}},
    ).document
    assert (made["topic"], made["shard_count"]) == ("life", 3)
    assert made in node.get("/v1/topics")
    described = node.get("/v1/topics/life")
    assert described["options"]["segment.bytes"] == "65536"
    assert [shard["end_offset"] for shard in described["shards"]] == [0, 0, 0]
    again = node.call("POST", "/v1/topics", {"topic": "life"})
    assert (again.status, again.document["error"]) == (409, "AlreadyExists")
    assert node.call("DELETE", "/v1/topics/life").document == {"topic": "life", "deleted": True}
    gone = node.call("GET", "/v1/topics/life")
    assert (gone.status, gone.document["error"]) == (404, "TopicNotFound")


def test_options_change_and_go_back(node: Served, topic: str) -> None:
    path = f"/v1/topics/{topic}/config"
    tried = node.call("PATCH", path, {"options": {"retention.ms": 5000}, "dry_run": True})
    assert tried.document["options"]["retention.ms"] is None
    node.call("PATCH", path, {"options": {"retention.ms": 5000}})
    assert node.get(path)["options"]["retention.ms"] == "5000"
    node.call("PATCH", path, {"options": {"retention.ms": None}})
    assert node.get(path)["options"]["retention.ms"] is None


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"retention.mss": 1}, "retention.mss"),
        ({"segment.bytes": "many"}, "segment.bytes"),
        ({"storage.type": "EngineMemory"}, "storage.type"),
    ],
)
def test_bad_options_are_refused_by_name(node: Served, topic: str, options, names: str) -> None:
    answer = node.call("PATCH", f"/v1/topics/{topic}/config", {"options": options})
    assert answer.status == 400
    assert names in answer.document["message"]


def test_records_go_in_and_come_out(node: Served, topic: str) -> None:
    path = f"/v1/topics/{topic}/records"
    records = [
        {"key": "k", "value": "text", "headers": [{"name": "h", "value": "x"}], "tags": ["red"]},
        {"key_base64": "/w==", "value_base64": "AP8="},
        {"value": None},
    ]
    placed = node.call("POST", path, {"records": records, "shard": 1}).document
    assert placed == [
        {"topic": topic, "shard": 1, "base_offset": 0, "next_offset": 3, "record_count": 3}
    ]
    first, second, third = node.lines(f"{path}?shard=1")
    assert (first["key"], first["value"], first["tags"]) == ("k", "text", ["red"])
    assert first["headers"] == [{"name": "h", "value": "x"}]
    assert (second["key_base64"], second["value_base64"]) == ("/w==", "AP8=")
    assert third["value"] is None
    assert [each["offset"] for each in node.lines(f"{path}?shard=1&offset=-1")] == [2]
    assert [each["offset"] for each in node.lines(f"{path}?shard=1&offset=1&max=1")] == [1]
    segments = node.get(f"/v1/topics/{topic}/segments?shard=1")
    assert [(each["state"], each["end_offset"]) for each in segments] == [("active", 3)]


def test_a_reader_waits_for_the_next_record(node: Served, topic: str) -> None:
    """The answer to a waiting request is the record that another one writes."""
    from concurrent.futures import ThreadPoolExecutor

    path = f"/v1/topics/{topic}/records"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(node.lines, f"{path}?follow=true&max=1")
        node.call("POST", path, {"records": [{"value": "now"}], "shard": 0})
        assert [each["value"] for each in waiting.result()] == ["now"]


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("shard=9", 404),
        ("shard=-1", 404),
        ("offset=99&shard=0", 416),
        ("offset=0", 400),
        ("key=k", 404),
        ("key_base64=x", 400),
        ("all=true", 400),
        ("follow=yes", 400),
        ("max=0", 400),
        ("max=lots", 400),
        ("wait_ms=30001", 400),
        ("colour=red", 400),
    ],
)
def test_bad_questions_about_records(node: Served, topic: str, query: str, status: int) -> None:
    assert node.call("GET", f"/v1/topics/{topic}/records?{query}").status == status


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/topics", b"{", 400),
        ("POST", "/v1/topics", b"\xff", 400),
        ("POST", "/v1/topics", [], 400),
        ("POST", "/v1/topics", {"topic": "../x"}, 400),
        ("POST", "/v1/topics", {"topic": "x", "shard_count": 0}, 400),
        ("POST", "/v1/topics", {"topic": "x", "shards": 1}, 400),
        ("POST", "/v1/topics", {"topic": "x", "options": {"storage.type": "None"}}, 404),
        ("POST", "/v1/topics/none/records", {"records": [{"value": "x"}]}, 404),
        ("GET", "/v1/groups/none", None, 404),
        ("DELETE", "/v1/groups/none", None, 404),
        ("DELETE", "/v1/users/none", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("DELETE", "/v1/node", None, 405),
    ],
)
def test_refusals_are_documents(
    node: Served, method: str, path: str, body: object, status: int
) -> None:
    answer = node.call(method, path, body)
    assert answer.status == status, answer
    assert set(answer.document) == {"error", "message"}


def test_a_refusal_names_the_shard_as_users_do(node: Served, topic: str) -> None:
    answer = node.call("GET", f"/v1/topics/{topic}/records?shard=0&offset=1000000")
    assert (answer.status, answer.document["error"]) == (416, "OffsetOutOfRange")
    assert f"offset 1000000 of shard 0 of topic '{topic}' " in answer.document["message"]


def test_a_record_that_is_too_large_is_refused_alone(node: Served, topic: str) -> None:
    path = f"/v1/topics/{topic}/records"
    large = node.call("POST", path, {"records": [{"value": "x" * 2_000_000}]})
    assert (large.status, large.document["error"]) == (413, "LimitExceeded")
    body = node.call("POST", path, b"[" + b" " * 33 * 1024 * 1024)
    assert body.status == 413
    assert node.call("POST", path, {"records": [{"value": "x"}]}).status == 200


def test_pages_in_a_browser_cannot_use_a_local_listener(node: Served) -> None:
    """A form is no JSON, and a name that someone else controls is not this machine."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert node.call("POST", "/v1/topics", {"topic": "forged"}, form).status == 415
    for host in ("evil.example", "127.evil.example", "127.0.0.1.evil.example:9644"):
        assert node.call("GET", "/v1/topics", headers={"Host": host}).status == 421
    for origin in ("http://evil.example", "null"):
        answer = node.call("DELETE", "/v1/topics/none", headers={"Origin": origin})
        assert answer.status == 403
    assert node.call("GET", "/v1/topics", headers={"Host": "localhost:1"}).status == 200


def test_health_and_node(node: Served) -> None:
    assert node.get("/health/live") == {"status": "live"}
    assert node.get("/health/ready") == {"status": "ready"}
    status = node.get("/v1/node")
    assert status["kafka"] == node.kafka
    assert status["durability"] == "fsync"


def test_the_openapi_document_names_every_path_and_resolves(node: Served) -> None:
    document = node.get("/openapi.json")
    assert document["openapi"].startswith("3.")
    for path in ("/v1/topics/{topic}/records", "/v1/groups/{group}/offsets", "/metrics"):
        assert path in document["paths"]
    schemas = document["components"]["schemas"]
    references = re.findall(
        r"#/components/schemas/(\w+)", node.call("GET", "/openapi.json").raw.decode()
    )
    assert references
    assert set(references) <= set(schemas)
