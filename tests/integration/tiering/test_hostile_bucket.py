"""Recovery from a bucket in which an attacker has changed objects, with every CRC right."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from firnmq.config import TieringConfig
from firnmq.errors import Corruption, FirnError
from firnmq.server.recovery import recover_directory
from firnmq.tiering.archive.ownership import latest_claim
from firnmq.tiering.format.fields import SHARD_COUNT_MAX
from firnmq.tiering.format.object_names import topic_manifest_key
from firnmq.tiering.stores import open_store
from tests.integration.tiering.stage import TOPIC, Stage

HOSTILE: tuple[object, ...] = (
    *(0, -5, 1, 10**9, 2**31, 2**63 - 1, 2**64),
    *("", "..", "../../x", "g" * 32, "0" * 32, None, True, [], {}),
)
OBJECTS = {
    "topic": lambda key: key.startswith("manifests/") and "/topic-" in key,
    "shard": lambda key: key.startswith("manifests/") and "_0-" in key,
    "segment": lambda key: "-e" in key and key.endswith(".mf"),
    "groups": lambda key: key.startswith("groups/"),
    "claim": lambda key: key.startswith("owners/"),
}


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The objects of a small cluster: a topic with two shards, deletions, and a group."""
    path = tmp_path_factory.mktemp("hostile")
    tiering = TieringConfig(url=f"file://{path}/objects", cluster="c")
    with Stage(path / "data", tiering) as stage:
        topic = stage.create(shards=2)
        stage.fill(0, 60)
        topic.delete_by_offset(40)
        topic.delete_by_key(b"key-3", shard=0)
        stage.local.offsets.commit("readers", {topic.topic.shard_name(0): 20})
        stage.wait_for_cache()
        stage.work(rounds=40)
    return path / "objects"


def objects(bucket: Path, is_wanted: Callable[[str], bool]) -> list[Path]:
    every = sorted(each for each in bucket.rglob("*") if each.is_file())
    return [each for each in every if is_wanted(each.relative_to(bucket).as_posix())]


def body_of(path: Path) -> Any:
    document = msgspec.json.decode(path.read_bytes())
    return document.get("body", document)


def write_body(path: Path, body: object) -> None:
    document = msgspec.json.decode(path.read_bytes())
    raw = msgspec.json.encode(body)
    if "body" in document:
        framed = {**document, "body": msgspec.Raw(raw), "crc32c": f"{crc32c(raw):08x}"}
        raw = msgspec.json.encode(framed)
    path.write_bytes(raw)


def settings(bucket: Path) -> TieringConfig:
    return TieringConfig(url=f"file://{bucket}", cluster="c")


@pytest.mark.parametrize("kind", OBJECTS)
def test_every_field_of_every_object(bucket: Path, tmp_path: Path, kind: str) -> None:
    """A recovery is refused by a typed error, or what it has made opens and can be read."""
    shutil.copytree(bucket, tmp_path / "objects")
    tiering = settings(tmp_path / "objects")
    path = objects(tmp_path / "objects", OBJECTS[kind])[0]
    original, body = path.read_bytes(), body_of(path)
    accepted = []
    for name in body:
        for value in HOSTILE:
            write_body(path, {**body, name: value})
            try:
                for skip_gaps in (False, True):
                    recover_directory(tmp_path / "no", tiering, dry_run=True, skip_gaps=skip_gaps)
            except FirnError:
                pass
            else:
                accepted.append((name, value))
            path.write_bytes(original)
    shutil.rmtree(tmp_path / "objects")
    for number, (name, value) in enumerate(accepted[:: max(1, len(accepted) // 10)]):
        # What changes who owns the objects is made on a copy of them.
        copied = tmp_path / f"objects-{number}"
        shutil.copytree(bucket, copied)
        write_body(objects(copied, OBJECTS[kind])[0], {**body, name: value})
        data = tmp_path / f"data-{number}"
        try:
            recover_directory(data, settings(copied), skip_gaps=True)
        except FirnError:
            continue
        with Stage(data, settings(copied)) as stage:
            for topic in stage.store.topics():
                with contextlib.suppress(FirnError):
                    assert len(list(stage.store.topic(topic.name).records())) <= 60


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *(("topic", "shard_count", value) for value in (0, -5, 10**9)),
        ("topic", "topic_id", "z" * 32),
        ("topic", "topic_id", "0" * 32),
        ("topic", "cluster", "other"),
        ("topic", "options", {"storage.type": "Elsewhere"}),
        ("topic", "options", {"no.such.option": "1"}),
        ("shard", "start_offset", -1),
        ("shard", "number", 77),
        ("groups", "number", 77),
    ],
)
def test_refusals_name_object_and_field(
    bucket: Path, tmp_path: Path, kind: str, name: str, value: object
) -> None:
    shutil.copytree(bucket, tmp_path / "objects")
    path = objects(tmp_path / "objects", OBJECTS[kind])[0]
    write_body(path, {**body_of(path), name: value})
    with pytest.raises(Corruption, match=name) as caught:
        recover_directory(tmp_path / "data", settings(tmp_path / "objects"))
    assert path.name in caught.value.where
    assert not (tmp_path / "data").exists()


def test_segments_with_the_same_number(bucket: Path, tmp_path: Path) -> None:
    """They cannot have one place in the metadata: the second is told as a gap."""
    shutil.copytree(bucket, tmp_path / "objects")
    first, second, *_ = objects(tmp_path / "objects", OBJECTS["segment"])
    write_body(second, {**body_of(second), "seq": body_of(first)["seq"]})
    with pytest.raises(FirnError, match="not in the store"):
        recover_directory(tmp_path / "data", settings(tmp_path / "objects"))


def test_a_claim_after_which_none_can_come(bucket: Path, tmp_path: Path) -> None:
    shutil.copytree(bucket, tmp_path / "objects")
    path = objects(tmp_path / "objects", OBJECTS["claim"])[0]
    shutil.copy(path, path.with_name(f"{10**20 - 1}.json"))
    store = open_store(f"file://{tmp_path}/objects")
    with pytest.raises(Corruption) as caught:
        latest_claim(store, "c")
    store.close()
    assert str(10**20 - 1) in caught.value.where


def test_topics_that_have_too_many_shards_together(bucket: Path, tmp_path: Path) -> None:
    """Each of them has as many as a topic may have."""
    shutil.copytree(bucket, tmp_path / "objects")
    (own,) = objects(tmp_path / "objects", OBJECTS["topic"])[-1:]
    body = body_of(own)
    for number in (1, 2):
        name, topic_id = f"large{number}", f"{number:032x}"
        key = topic_manifest_key("c", name, topic_id, body["number"])
        path = tmp_path / "objects" / key
        path.parent.mkdir(parents=True)
        shutil.copy(own, path)
        changed = {"topic": name, "topic_id": topic_id, "shard_count": SHARD_COUNT_MAX}
        write_body(path, {**body, **changed})
    with pytest.raises(Corruption, match="200,002 shards"):
        recover_directory(tmp_path / "data", settings(tmp_path / "objects"), skip_gaps=True)


def test_the_bucket_is_whole(bucket: Path, tmp_path: Path) -> None:
    shutil.copytree(bucket, tmp_path / "objects")
    report = recover_directory(tmp_path / "data", settings(tmp_path / "objects"))
    assert ([each.topic for each in report.topics], report.groups) == ([TOPIC], ["readers"])
