"""Objects as this version wrote them once: they are written the same way, and read, for good."""

import json
from pathlib import Path

import pytest

from firnmq.engines.catalog.transactions import AbortedTransaction
from firnmq.engines.tiering.api import IndexDump
from firnmq.record.deletion import Deletion
from firnmq.tiering.format import object_names
from firnmq.tiering.format.index_object import read_index, write_index
from firnmq.tiering.format.manifest import Manifest
from tests.unit.tiering.sources import sealed_meta
from tests.unit.tiering.test_manifest import GROUPS, SEGMENT, SHARD, TOPIC

FOLDER = Path(__file__).parents[2] / "golden"
GOLDEN = json.loads((FOLDER / "tiered_objects_v1.json").read_text("utf-8"))
INDEX_V2 = json.loads((FOLDER / "tiered_index_v2.json").read_text("utf-8"))["idx"]
META = sealed_meta()
DUMP = IndexDump(
    points=[(100, 0, -(2**63)), (600, 70_000, 1_000), (900, 500_000, 70_000)],
    keys=[(b"", 101, 0), (b"a", 900, 500_000), (b"k" * 129, 1_099, 999_999)],
    tags=[(b"b", 100, 0, [0, 5]), (b"b", 900, 500_000, [1, 300]), (b"aa", 100, 0, [7])],
    aborted=(AbortedTransaction(7, 110, 120, 121),),
    producers=((7, b"state"), (70_000, b"")),
    deletions=((130, Deletion((3, 120), ((b"a", 130), (b"", 7)))), (1_000, Deletion((999,)))),
)


def test_an_index_is_written_and_read_as_ever() -> None:
    data, _ = write_index(DUMP, META)
    assert data.hex() == INDEX_V2
    assert read_index(bytes.fromhex(INDEX_V2), "golden")[1] == DUMP


def test_an_index_of_the_first_version_is_read() -> None:
    assert read_index(bytes.fromhex(GOLDEN["idx"]), "golden")[1] == DUMP._replace(deletions=())


@pytest.mark.parametrize("manifest", [SEGMENT, SHARD, TOPIC, GROUPS])
def test_manifests_are_written_and_read_as_ever(manifest: Manifest) -> None:
    golden = GOLDEN[manifest.format].encode()
    assert manifest.pack() == golden
    assert type(manifest).unpack(golden, "golden") == manifest


def test_names_are_as_ever() -> None:
    key = object_names.object_key("prod", "orders", "ab12", "ab12_0", META, "00ff00ff00ff00ff")
    assert key == GOLDEN["key"]
