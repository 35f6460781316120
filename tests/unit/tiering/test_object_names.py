"""Names of objects: they say what they are, come back, and lead nowhere else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firnmq.errors import InvalidArgument
from firnmq.tiering.format import object_names
from firnmq.tiering.stores.api import check_key
from tests.unit.tiering.sources import sealed_meta

UPLOAD = "00ff00ff00ff00ff"
names = st.text("abcXYZ019._-", min_size=1, max_size=30).filter(
    lambda name: name not in (".", "..")
)
numbers = st.integers(0, 10**18 - 1)


@given(names, names, st.text("abc019", min_size=1, max_size=32), numbers, numbers, numbers)
def test_names_come_back(
    cluster: str, topic: str, topic_id: str, base: int, count: int, epoch: int
) -> None:
    meta = sealed_meta(base_offset=base, end_offset=base + count, epoch=epoch)
    shard = f"{topic_id}_12"
    key = object_names.object_key(cluster, topic, topic_id, shard, meta, UPLOAD)
    assert key.startswith(object_names.shard_prefix(cluster, topic, topic_id, shard))
    for suffix in ("", ".seg", ".idx", ".mf"):
        check_key(key + suffix)
        assert object_names.parse(key + suffix) == object_names.SegmentObject(
            cluster, topic, topic_id, shard, base, base + count, epoch, UPLOAD, suffix
        )
    assert object_names.parse_manifest(key + ".mf") is None


@given(names, names, st.text("abc019", min_size=1, max_size=32), numbers)
def test_names_of_manifests_come_back(cluster: str, topic: str, topic_id: str, number: int) -> None:
    of_topic = object_names.topic_manifest_key(cluster, topic, topic_id, number)
    of_shard = object_names.shard_manifest_key(cluster, topic, topic_id, f"{topic_id}_3", number)
    assert object_names.parse_manifest(of_topic) == (cluster, topic, topic_id, None, number)
    assert object_names.parse_manifest(of_shard) == (
        cluster,
        topic,
        topic_id,
        f"{topic_id}_3",
        number,
    )
    for key in (of_topic, of_shard):
        check_key(key)
        assert key.startswith(object_names.cluster_manifest_prefix(cluster))
        assert key.startswith(object_names.manifest_prefix(cluster, topic, topic_id))
        assert object_names.parse(key) is None


def test_a_name_looks_as_documented() -> None:
    key = object_names.object_key("prod", "orders", "ab12", "ab12_0", sealed_meta(), UPLOAD)
    assert key[8:] == (
        "/prod/orders-ab12/ab12_0/00000000000000000100-00000000000000001100-e1-00ff00ff00ff00ff"
    )
    assert (
        key[:8]
        != object_names.object_key("prod", "orders", "ab12", "ab12_1", sealed_meta(), UPLOAD)[:8]
    )


@pytest.mark.parametrize(
    "change",
    [
        {"cluster": ".."},
        {"cluster": "a/b"},
        {"cluster": ""},
        {"cluster": "c" * 1_000},
        {"topic": "a/b"},
        {"topic": ".."},
        {"topic_id": "a-b", "shard": "a-b_0"},
        {"shard": "other_0"},
        {"shard": "ab12_x"},
        {"upload_id": "short"},
        {"upload_id": "ZZZZZZZZZZZZZZZZ"},
        {"meta": sealed_meta(end_offset=-1)},
    ],
)
def test_bad_parts_are_refused(change: dict[str, object]) -> None:
    parts: dict[str, object] = {
        "cluster": "prod",
        "topic": "orders",
        "topic_id": "ab12",
        "shard": "ab12_0",
        "meta": sealed_meta(),
        "upload_id": UPLOAD,
    }
    with pytest.raises(InvalidArgument):
        object_names.object_key(**(parts | change))  # type: ignore[arg-type]


def test_foreign_names_are_not_ours() -> None:
    key = object_names.object_key("prod", "orders", "ab12", "ab12_0", sealed_meta(), UPLOAD)
    for foreign in (
        "",
        "some/other/object",
        key + ".txt",
        key + ".seg\n",
        "0" * 8 + key[8:],
        key.replace("ab12_0", "ab13_0"),
        key.replace("/prod/", "/../"),
        key.replace("/prod/", "/=prod/"),
        key.replace("/prod/", "/=../"),
        "x/" + key,
    ):
        assert object_names.parse(foreign) is None
        assert object_names.parse_manifest(foreign) is None


@pytest.mark.parametrize("cluster", ["prod", ".hidden", "a.b-c_d"])
def test_names_of_groups_say_whose_they_are(cluster: str) -> None:
    key = object_names.groups_key(cluster, 12)
    assert key.startswith(object_names.groups_prefix(cluster))
    assert object_names.parse_groups(key) == (cluster, 12)
    assert object_names.parse(key) is None
    assert object_names.parse_manifest(key) is None


@pytest.mark.parametrize(
    "key", ["groups/prod/12.mf", f"groups/.x/{1:020d}.mf", f"groups/{1:020d}.mf", "groups/a/b/c"]
)
def test_names_that_are_not_those_of_groups(key: str) -> None:
    assert object_names.parse_groups(key) is None
