"""What a running node gives: plans by HTTP, records from its files, its store and itself."""

from __future__ import annotations

import http.client
import itertools
from pathlib import Path

import msgspec
import pytest

from firnmq.errors import InvalidArgument, OffsetOutOfRange, TopicNotFound
from firnmq.lake.plans.places import (
    HttpUnreachable,
    PlanRefused,
    PlanWarning,
    make_plan,
    report_progress,
)
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.plans.wire import (
    EARLIEST,
    HTTP_URL,
    LATEST,
    NodeRefused,
    NodeUnreachable,
    WireClient,
)
from firnmq.lake.reading.reader import read_split
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake_plan.topics import TIMEOUT_S, NodeTopic, numbers, producer

ENGINES = ("EngineSegment", "EngineRocksDB", "EngineMemory")


def elsewhere(plan: Plan) -> Plan:
    """The plan as it looks from another machine, without a store."""
    return msgspec.structs.replace(plan, machine="another", store=None)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_plan_of_every_engine(node: NodeProcess, engine: str) -> None:
    topic = NodeTopic(node, {"storage.type": engine, "segment.bytes": 20_000}, shards=2)
    topic.fill(0, 1000)
    topic.fill(1000, 500, shard=1)
    plan = topic.plan()
    has_files = engine == "EngineSegment"
    for segment in plan.shards[0].segments:
        assert (segment.path is not None) is has_files
    assert plan.table is not None
    assert plan.table.name == f"topics.{topic.name.replace('.', '_')}"
    assert numbers(topic.read(plan=plan)) == list(range(1500))
    assert numbers(topic.read(plan=elsewhere(plan), target_bytes=1)) == list(range(1500))
    wanted = Wanted(keys=(b"k3",), tags=("t1", "t2"), start_offsets={0: 100})
    expected = [n for n in range(1500) if n % 10 == 3 and n % 3 and (n >= 100)]
    for table in (topic.read(wanted), topic.read(wanted, plan=topic.leader_plan(wanted))):
        assert numbers(table) == expected


def test_without_http_everything_comes_from_the_leader(node: NodeProcess) -> None:
    topic = NodeTopic(node, {"segment.bytes": 20_000, "tag.headers": "label,tag"})
    topic.fill(0, 1000)
    with pytest.warns(PlanWarning, match="slower"):
        plan = topic.plan(admin="127.0.0.1:1")
    assert all(each.path is None for each in plan.shards[0].segments)
    assert topic.read(plan=plan).equals(topic.read())
    times = Wanted(min_timestamp_ms=1_700_000_000_900, end_timestamp_ms=1_700_000_000_950)
    narrow = topic.leader_plan(times)
    assert narrow.shards[0].segments[0].base_offset == 900
    assert numbers(topic.read(times, plan=narrow)) == list(range(900, 950))


def test_only_what_is_committed_and_not_deleted(node: NodeProcess) -> None:
    topic = NodeTopic(node, {"segment.bytes": 5_000})
    topic.fill(0, 100)
    producers = []
    for name, ends in (("a", "commit"), ("b", "abort"), ("c", "commit"), ("d", "")):
        made = producer(node, transactional_id=f"{topic.name}-{name}")
        made.init_transactions(TIMEOUT_S)
        producers.append((made, ends))
    for round_ in range(3):
        for at, (made, ends) in enumerate(producers):
            if round_ and not ends:
                continue
            made.begin_transaction()
            for n in range(20):
                number = 1000 + round_ * 100 + at * 20 + n
                made.produce(topic.name, value=b"%d:" % number + b"y" * 100, partition=0)
            made.flush(TIMEOUT_S)
            if ends == "commit":
                made.commit_transaction(TIMEOUT_S)
            elif ends == "abort":
                made.abort_transaction(TIMEOUT_S)
    found = topic.plan()
    with WireClient(node.address) as client:
        stable = client.list_offsets(topic.name, [0], LATEST)[0]
    assert found.shards[0].end_offset == stable
    before_open = [*range(100), *range(1000, 1020), *range(1040, 1060)]
    assert numbers(topic.read()) == before_open
    assert numbers(topic.read(plan=elsewhere(topic.plan()))) == before_open
    producers[3][0].commit_transaction(TIMEOUT_S)
    committed = [
        n
        for n in itertools.chain(range(100), range(1000, 1280))
        if n < 100 or (n % 100 // 20 in (0, 2) or 1060 <= n < 1080)
    ]
    for plan in (topic.plan(), elsewhere(topic.plan()), topic.leader_plan()):
        assert sorted(numbers(topic.read(plan=plan))) == committed
        assert sorted(numbers(topic.read(plan=plan, target_bytes=1))) == committed


def test_a_topic_that_was_made_anew_is_another_one(node: NodeProcess) -> None:
    topic = NodeTopic(node)
    topic.fill(0, 10)
    plan = elsewhere(topic.plan())
    topic.call("DELETE", f"/v1/topics/{topic.name}")
    with pytest.raises(TopicNotFound):
        topic.read(plan=plan)
    with pytest.raises(TopicNotFound):
        topic.plan()
    topic.call("POST", "/v1/topics", {"topic": topic.name, "shard_count": 1})
    topic.fill(100, 20)
    with pytest.raises(TopicNotFound, match="another"):
        topic.read(plan=plan)


def test_records_that_retention_removes_during_a_read_are_skipped(node: NodeProcess) -> None:
    topic = NodeTopic(node, {"segment.bytes": 5_000})
    topic.fill(0, 300)
    plan = elsewhere(topic.plan())
    with WireClient(node.address) as client:
        from kafka.protocol.admin import DeleteRecordsRequest

        kind = DeleteRecordsRequest.DeleteRecordsTopic
        part = kind.DeleteRecordsPartition(partition_index=0, offset=150)
        answer = client.call(
            DeleteRecordsRequest(
                topics=[kind(name=topic.name, partitions=[part])], timeout_ms=10_000
            )
        )
        assert answer.topics[0].partitions[0].error_code == 0
    assert numbers(topic.read(plan=plan)) == list(range(150, 300))


def test_a_leader_that_is_elsewhere_now_is_found(node: NodeProcess) -> None:
    topic = NodeTopic(node)
    topic.fill(0, 30)
    (split,) = split_plan(elsewhere(topic.plan()))
    split = msgspec.structs.replace(split, leader="127.0.0.1:1")
    assert sum(batch.num_rows for batch in read_split(split, options=topic.options)) == 30


# Progress -----------------------------------------------------------------------------------------


def test_progress_goes_forward_only(node: NodeProcess) -> None:
    topic = NodeTopic(node, shards=2)
    topic.fill(0, 50)
    path = f"/v1/topics/{topic.name}/lake"
    topic_id = topic.plan().topic_id
    assert topic.call("GET", path) == {"topic_id": topic_id, "ends": {"0": 0, "1": 0}}
    for end, reached in ((20, 20), (10, 20), (50, 50)):
        assert report_progress(topic.options, topic_id, {0: end})
        assert topic.call("GET", path)["ends"] == {"0": reached, "1": 0}
    for ends, reason in (({0: 51}, "beyond"), ({2: 0}, "shard"), ({0: -1}, "beyond")):
        with pytest.raises(PlanRefused, match=reason):
            report_progress(topic.options, topic_id, ends)
    for applied, reason in (({0: "nonsense"}, "retired"), ({1: "here:1"}, "end")):
        with pytest.raises(PlanRefused, match=reason):
            report_progress(topic.options, topic_id, {0: 50}, applied)
    with pytest.raises(PlanRefused, match="another"):
        report_progress(topic.options, "0" * 32, {0: 1})
    assert not report_progress({"store": "file:///x", "topic": "t"}, topic_id, {0: 1})
    with pytest.raises(HttpUnreachable):
        report_progress({**topic.options, "admin": "127.0.0.1:1"}, topic_id, {0: 1})


def test_bad_requests_for_plans(node: NodeProcess) -> None:
    topic = NodeTopic(node)
    path = f"/v1/topics/{topic.name}/plan"
    assert topic.call("POST", path, {"shards": [7]}, status=404)["error"] == "ShardNotFound"
    assert topic.call("POST", path, {"keys": 5}, status=400)["error"] == "InvalidArgument"
    assert topic.call("POST", "/v1/topics/nobody/plan", {}, status=404)["error"] == "TopicNotFound"
    with pytest.raises(InvalidArgument, match="topic"):
        make_plan({"bootstrap": node.address})


def test_plans_ask_for_the_token(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("open sesame\n")
    node = NodeProcess(tmp_path / "data", {"FIRN_ADMIN_TOKEN_FILE": str(token)})
    node.start()
    try:
        made = producer(node)
        made.produce("t", b"1:")
        assert made.flush(TIMEOUT_S) == 0
        options = {"bootstrap": node.address, "topic": "t"}
        with pytest.warns(PlanWarning, match="token"):
            make_plan(options)
        with pytest.raises(PlanRefused, match="token"):
            make_plan({**options, "admin": node.admin_url})
        known = {**options, "admin.token": "open sesame"}
        with pytest.raises(PlanRefused, match="only to an address that the option admin gives"):
            make_plan(known)  # The node told its address, so it does not get the token.
        plan = make_plan({**known, "admin": node.admin_url})
        assert plan.shards[0].end_offset == 1
    finally:
        node.close()


# The client ---------------------------------------------------------------------------------------


def test_the_wire_says_what_is_wrong(node: NodeProcess) -> None:
    topic = NodeTopic(node)
    topic.fill(0, 10)
    with WireClient(["127.0.0.1:1", node.address]) as client:
        assert client.place(topic.name).leaders == {0: node.address}
        assert client.broker_config(HTTP_URL) == node.admin_url
        assert client.broker_config("nothing.like.it") is None
        with pytest.raises(TopicNotFound):
            client.place("nobody")
        with pytest.raises(TopicNotFound):
            client.topic_options("nobody")
        with pytest.raises(OffsetOutOfRange) as caught:
            client.fetch(topic.name, 0, 11)
        assert (caught.value.start, caught.value.end) == (0, 10)
        with pytest.raises((NodeRefused, TopicNotFound)):
            client.list_offsets(topic.name, [5], EARLIEST)
    with pytest.raises(NodeUnreachable):
        WireClient("127.0.0.1:1").place(topic.name)
    host, port = node.admin_url.removeprefix("http://").split(":")
    with pytest.raises(NodeUnreachable):
        WireClient(f"{host}:{port}", timeout_s=5).place(topic.name)
    http.client.HTTPConnection(host, int(port)).close()
    for bad in ("", "host:", ":9092", "host:port", "host:70000"):
        with pytest.raises(InvalidArgument):
            WireClient(bad).place(topic.name)


def test_reading_goes_on_after_a_restart(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        topic = NodeTopic(node, {"segment.bytes": 20_000})
        topic.fill(0, 500)
        (split,) = split_plan(elsewhere(topic.plan()))
        node.kill()
        node.start()
        batches = list(read_split(split, options=topic.options))
        assert sum(batch.num_rows for batch in batches) == 500
    finally:
        node.close()
