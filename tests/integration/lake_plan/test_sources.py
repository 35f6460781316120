"""Plans without a node: from an S3 bucket, and from a data directory."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from firnmq.errors import DirectoryInUse, InvalidArgument, StoreError
from firnmq.lake.plans.places import make_plan, report_progress, resolved
from firnmq.lake.plans.plan import Plan, Wanted
from firnmq.lake.plans.splits import split_plan
from firnmq.lake.reading.reader import SegmentUnavailable, read_split
from firnmq.testing.seaweed import ACCESS_KEY, SECRET_KEY, SeaweedServer
from tests.integration.kafka.nodes import NodeProcess
from tests.integration.lake_plan.test_changing import wait_until_cold
from tests.integration.lake_plan.topics import NodeTopic


def values(plan: Plan, options: dict[str, str], wanted: Wanted | None = None) -> list[int]:
    return [
        int(value.partition(b":")[0])
        for split in split_plan(plan, wanted)
        for batch in read_split(split, wanted, ["value"], options)
        for value in batch.column(0).to_pylist()
    ]


@pytest.fixture
def bucket(seaweed: SeaweedServer) -> dict[str, str]:
    """The options that name an empty prefix in a bucket."""
    return {
        "store": f"{seaweed.url}/{secrets.token_hex(8)}",
        "store.endpoint": seaweed.endpoint,
        "store.region": "us-east-1",
        "store.access_key": ACCESS_KEY,
        "store.secret_key": SECRET_KEY,
        "store.allow_http": "true",
    }


def settings(bucket: dict[str, str]) -> dict[str, str]:
    given = {
        f"FIRN_TIERING_{name.partition('.')[2].upper()}": each for name, each in bucket.items()
    }
    given["FIRN_TIERING_URL"] = given.pop("FIRN_TIERING_")
    return {**given, "FIRN_TIERING_INTERVAL_MS": "20"}


@pytest.mark.slow
def test_a_bucket_is_read_when_no_node_runs(tmp_path: Path, bucket: dict[str, str]) -> None:
    node = NodeProcess(tmp_path / "data", settings(bucket))
    node.start()
    try:
        topic = NodeTopic(
            node, {"segment.bytes": 20_000, "tiering": "on", "local.retention.bytes": 0}
        )
        topic.fill(0, 2000)
        wait_until_cold(topic)
        # With a node: sealed ones from the bucket, the tail from the node's file.
        plan = topic.plan()
        assert plan.store is not None
        assert SECRET_KEY not in repr(plan)
        assert values(plan, {**topic.options, **bucket}) == list(range(2000))
        sealed_end = max(each.end_offset for each in plan.shards[0].segments if each.is_sealed)
    finally:
        node.close()
    options = {**bucket, "topic": topic.name}
    found = make_plan(options)
    assert found.topic_id == plan.topic_id
    assert values(found, options) == list(range(sealed_end))
    wanted = Wanted(keys=(b"k4",), min_timestamp_ms=1_700_000_000_500)
    narrow = make_plan(options, wanted)
    assert values(narrow, options, wanted) == list(range(504, sealed_end, 10))
    with pytest.raises(StoreError):
        make_plan({**options, "store.secret_key": "wrong"})
    with pytest.raises(SegmentUnavailable):
        values(found, {**options, "store.secret_key": "wrong"})


# A directory --------------------------------------------------------------------------------------


@pytest.fixture(params=["EngineSegment", "EngineRocksDB"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    node = NodeProcess(tmp_path / "data")
    node.start()
    try:
        topic = NodeTopic(node, {"storage.type": request.param, "segment.bytes": 20_000})
        topic.fill(0, 500)
    finally:
        node.close()
    return tmp_path / "data", topic.name


def test_a_directory_is_served_for_a_while(directory: tuple[Path, str]) -> None:
    path, topic = directory
    options = {"data": str(path), "topic": topic, "target": "kept"}
    with resolved(options) as served:
        assert served["target"] == "kept"
        assert "data" not in served
        plan = make_plan(served)
        assert values(plan, served) == list(range(500))
        assert report_progress(served, plan.topic_id, {0: 100})
        with pytest.raises(DirectoryInUse):
            make_plan(options)
    with resolved(options) as served:  # It was let go of.
        assert values(make_plan(served), served) == list(range(500))
    with resolved({"bootstrap": "a:1"}) as same:
        assert same == {"bootstrap": "a:1"}


def test_a_directory_with_a_node_s_settings(directory: tuple[Path, str], tmp_path: Path) -> None:
    path, topic = directory
    config = tmp_path / "firn.toml"
    config.write_text('[lake]\nwarehouse = "s3://elsewhere/x"\n')
    plan = make_plan({"data": str(path), "topic": topic, "config": str(config)})
    assert plan.table is not None
    assert plan.table.warehouse == "s3://elsewhere/x"
    assert plan.table.catalog == f"sqlite:///{path}/lake/catalog.db"


def test_a_plan_of_a_directory_names_files_alone(directory: tuple[Path, str]) -> None:
    path, topic = directory
    options = {"data": str(path), "topic": topic}
    plan = make_plan(options)
    assert plan.shards[0].leader is None
    if all(each.path is not None for each in plan.shards[0].segments):
        assert values(plan, options) == list(range(500))
    else:
        with pytest.raises(SegmentUnavailable):
            values(plan, options)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="no directory"):
        make_plan({"data": str(tmp_path / "nothing"), "topic": "t"})
    assert not (tmp_path / "nothing").exists()
