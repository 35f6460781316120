"""`firn verify` looks at copies that are nowhere else."""

from pathlib import Path

import pytest

from firnmq.config import TieringConfig
from firnmq.engines.verify.findings import Verification
from firnmq.errors import StoreUnavailable
from firnmq.tiering.archive.copy_check import CopyChecker
from firnmq.tiering.stores import ObjectStore
from tests.integration.tiering.stage import TOPIC, Stage, Wrapped

WRONG = {
    ".seg is gone": lambda store, keys: store.delete([keys[".seg"]]),
    ".idx is gone": lambda store, keys: store.delete([keys[".idx"]]),
    ".mf is gone": lambda store, keys: store.delete([keys[".mf"]]),
    "5 bytes where": lambda store, keys: store.put(keys[".idx"], b"short", if_absent=False),
    "is no manifest": lambda store, keys: store.put(keys[".mf"], b"what?", if_absent=False),
}


def verified(stage: Stage, *, is_deep: bool = False) -> Verification:
    checker = CopyChecker(stage.objects, is_deep=is_deep)
    shard = stage.store.topic(TOPIC).topic.shard_name(0)
    return stage.local.verifier.verify(shard, check_copies=checker)


def keys_of(stage: Stage, at: int) -> dict[str, str]:
    copy = stage.metas()[at].tier
    assert copy is not None
    return {suffix: copy.key + suffix for suffix in (".seg", ".idx", ".mf")}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_with_a_copy_is_found(
    tmp_path: Path, tiering: TieringConfig, what: str
) -> None:
    with Stage(tmp_path / "data", tiering) as stage:
        stage.create(local_retention_ms=0)
        stage.fill(0, 60)
        stage.work()
        found = verified(stage)
        assert (found.findings, found.store_failure) == ((), None)
        assert found.checked_copy_count == found.store_only_count > 2
        WRONG[what](stage.objects, keys_of(stage, 1))
        found = verified(stage)
        assert found.checked_copy_count == found.store_only_count
        (finding,) = found.findings
        expected = f"its {what.split()[0]} object is not in" if "gone" in what else what
        assert (finding.segment_seq, expected in finding.message) == (stage.metas()[1].seq, True)


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_a_flipped_bit_is_found_by_reading_everything(
    tmp_path: Path, file_tiering: TieringConfig, suffix: str
) -> None:
    with Stage(tmp_path / "data", file_tiering) as stage:
        stage.create(local_retention_ms=0)
        stage.fill(0, 60)
        stage.work()
        assert verified(stage, is_deep=True).findings == ()
        key = keys_of(stage, 1)[suffix]
        content = bytearray(stage.objects.get_range(key, 0, stage.objects.head(key).size))
        content[len(content) // 2] ^= 1
        stage.objects.put(key, content, if_absent=False)
        assert verified(stage).findings == ()
        (finding,) = verified(stage, is_deep=True).findings
        assert f"its {suffix} object has CRC" in finding.message


@pytest.mark.parametrize("call", ["list", "get_range"])
def test_a_store_that_is_down_is_asked_once(
    tmp_path: Path, file_tiering: TieringConfig, call: str
) -> None:
    asked: list[str] = []
    is_down = False

    def watch(moment: str, name: str, key: str) -> None:
        if is_down and moment == "before" and name == call:
            asked.append(name)
            raise StoreUnavailable("file:///down", "is down")

    def wrap(inner: ObjectStore) -> ObjectStore:
        return Wrapped(inner, watch)

    with Stage(tmp_path / "data", file_tiering, wrap=wrap) as stage:
        stage.create(shards=2, local_retention_ms=0)
        stage.fill(0, 12)
        stage.store.topic(TOPIC).append(["x"], shard=1)
        stage.local.roll_tiered()
        stage.wait_for_cache()
        stage.work()
        is_down = True
        checker = CopyChecker(stage.objects)
        for shard in stage.store.topic(TOPIC).topic.shard_names():
            found = stage.local.verifier.verify(shard, check_copies=checker)
            assert found.findings == ()
            assert (found.checked_copy_count, found.store_only_count > 0) == (0, True)
            assert found.store_failure == "file:///down: is down"
            assert len(asked) <= len(stage.metas())
        assert asked
