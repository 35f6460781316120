"""`firn segments`, `firn verify`, `firn dump` and `firn demo`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest


@pytest.fixture
def filled(ok, data: Path) -> list[Path]:
    """A topic of several segments; gives its files, the active one last."""
    ok("topic", "create", "t", "--option", "segment.bytes=2048")
    for part, count in enumerate((100, 100, 10)):
        lines = "".join(f"part {part} value {number}\n" for number in range(count))
        ok("produce", "t", "--file", "-", "--key", "k", "--tag", "x", stdin=lines)
    return sorted(data.glob("segments/*/*.log"))


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_segments_are_listed(ok, documents, filled) -> None:
    rows = documents("segments", "t")
    assert [row["state"] for row in rows] == ["sealed", "sealed", "active"]
    assert [(row["base_offset"], row["end_offset"]) for row in rows] == [
        (0, 100),
        (100, 200),
        (200, 210),
    ]
    assert [row["length_bytes"] for row in rows] == [file.stat().st_size for file in filled]
    text = ok("segments", "t")
    assert len(text.splitlines()) == 4
    assert rows[0]["crc"] in text
    assert documents("segments", "t", "--shard", "0") == rows


def test_segments_of_a_shard_that_is_not_there(firn, filled) -> None:
    result = firn("segments", "t", "--shard", "5")
    assert result.exit_code == 1
    assert "no shard '5'" in result.stderr


@pytest.mark.parametrize("storage", ["segment", "rocksdb", "memory"])
def test_verify_finds_nothing_wrong(ok, documents, storage: str) -> None:
    ok("topic", "create", "t", "--storage", storage)
    ok("produce", "t", "--file", "-", stdin="a\nb\n")
    assert ok("verify").endswith("nothing is wrong\n")
    (result,) = documents("verify", "t")
    assert result["findings"] == []
    assert result["finding_count"] == 0
    assert result["record_count"] == (0 if storage == "memory" else 2)


def test_verify_says_what_is_wrong_and_where(firn, documents, filled) -> None:
    flip(filled[0], 100)
    result = firn("verify", "t")
    assert result.exit_code == 1
    assert "crc mismatch" in result.stdout
    assert f"segments/{filled[0].parent.name}/{filled[0].name}" in result.stdout
    (document,) = documents("verify")
    assert document["finding_count"] == len(document["findings"]) == 2
    assert {each["where"] for each in document["findings"]} == {str(filled[0])}
    assert {each["topic"] for each in document["findings"]} == {"t"}
    assert firn("verify", "--json").exit_code == 1


def test_verify_finds_damage_in_the_active_tail_before_recovery_removes_it(
    documents, filled
) -> None:
    flip(filled[-1], filled[-1].stat().st_size - 3)
    for _ in range(2):  # Looking changes nothing.
        (document,) = documents("verify")
        assert {each["kind"] for each in document["findings"]} == {"batch", "segment crc"}


def test_verify_of_everything_finds_what_belongs_to_nobody(documents, data: Path, filled) -> None:
    (data / "segments" / "stray").mkdir()
    (document,) = documents("verify")
    assert [each["kind"] for each in document["findings"]] == ["orphan"]
    (document,) = documents("verify", "t")
    assert document["findings"] == []


# dump -------------------------------------------------------------------------------------------


def test_dump_shows_batches_and_records(ok, documents, filled) -> None:
    text = ok("dump", str(filled[0]))
    assert text.startswith("byte 0  ")
    assert "offsets 0 to 99" in text
    assert text.endswith("1 batch, 100 records\n")
    text = ok("dump", str(filled[1]), "--records")
    assert "part 1 value 7" in text
    (batch,) = documents("dump", str(filled[1]), "--records")
    assert batch["base_offset"] == 100
    assert [record["value"] for record in batch["records"]][:2] == [
        "part 1 value 0",
        "part 1 value 1",
    ]
    assert batch["records"][0]["tags"] == ["x"]


def test_dump_shows_the_frames_of_a_shared_file(firn, ok, documents, data: Path) -> None:
    """1. two shards in one file, 2. one of their frames is damaged."""
    ok("topic", "create", "t", "--shards", "2", "-o", "segment.layout=shared-file")
    for shard in ("0", "1"):
        ok("produce", "t", f"value {shard}", "--shard", shard)
    files = sorted((data / "shared").glob("*.log"))
    text = "".join(ok("dump", str(each), "--records") for each in files)
    assert text.count("frame at ") == 2
    assert "value 0" in text
    assert "value 1" in text
    frames = [each for file in files for each in documents("dump", str(file)) if "frame" in each]
    assert [each["frame"]["is_whole"] for each in frames] == [True, True]
    flip(files[0], frames[0]["frame"]["position"] + 70)
    damaged = firn("dump", str(files[0]))
    assert damaged.exit_code == 1
    assert "DAMAGED" in damaged.output


def test_dump_stops_at_a_damaged_batch_and_says_so(firn, documents, filled, tmp_path: Path) -> None:
    both = tmp_path / "both.log"
    first, second = filled[0].read_bytes(), filled[1].read_bytes()
    both.write_bytes(first + second[:80] + b"\xff" + second[81:])
    result = firn("dump", str(both))
    assert result.exit_code == 1
    assert "offsets 0 to 99" in result.stdout
    assert f"at byte {len(first):,}: crc mismatch" in result.stderr
    batch, stop = documents("dump", str(both))
    assert batch["record_count"] == 100
    assert stop["stopped_at"] == len(first)


@pytest.mark.parametrize(
    "rest", [b"x", b"x" * 30, bytes(70) + b"x"], ids=["one", "some", "after zeros"]
)
def test_dump_survives_a_torn_tail(firn, filled, rest: bytes) -> None:
    filled[0].write_bytes(filled[0].read_bytes() + rest)
    result = firn("dump", str(filled[0]))
    assert result.exit_code == 1
    assert "1 batch, 100 records" in result.stdout
    assert f"{len(rest)} bytes from there on are not shown" in result.stderr


@pytest.mark.parametrize("size", [1, 70, 2_000_000])
def test_dump_tells_of_room_for_more_batches(ok, documents, filled, size: int) -> None:
    filled[0].write_bytes(filled[0].read_bytes() + bytes(size))
    text = ok("dump", str(filled[0]))
    assert text.endswith(f"1 batch, 100 records; {size:,} blank bytes follow\n")
    batch, room = documents("dump", str(filled[0]))
    assert (batch["record_count"], room) == (100, {"blank_bytes": size})


def test_dump_of_a_cut_batch(firn, filled) -> None:
    filled[0].write_bytes(filled[0].read_bytes()[:-1])
    result = firn("dump", str(filled[0]))
    assert result.exit_code == 1
    assert "is truncated" in result.stderr


def test_dump_points_out_a_gap(firn, filled, tmp_path: Path) -> None:
    gap = tmp_path / "gap.log"
    gap.write_bytes(filled[0].read_bytes() + filled[2].read_bytes())
    result = firn("dump", str(gap))
    assert result.exit_code == 1
    assert "after gap" in result.stdout
    assert "offsets do not follow each other" in result.stdout


def test_dump_of_an_empty_file_and_of_none(ok, firn, tmp_path: Path) -> None:
    empty = tmp_path / "empty.log"
    empty.touch()
    assert ok("dump", str(empty)) == "0 batches, 0 records\n"
    assert firn("dump", str(tmp_path / "none.log")).exit_code == 2


def test_dump_of_a_file_larger_than_what_is_read_at_once(ok, data: Path) -> None:
    ok("topic", "create", "t")
    lines = "".join("v" * 50_000 + "\n" for _ in range(90))
    ok("produce", "t", "--file", "-", stdin=lines)
    (file,) = data.glob("segments/*/*.log")
    assert ok("dump", str(file)).endswith("90 records\n")
    assert ok("verify").endswith("nothing is wrong\n")


# demo -------------------------------------------------------------------------------------------


def test_demo_shows_all_engines_and_leaves_nothing(ok, tmp_path: Path, monkeypatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    text = ok("demo")
    for engine in ("EngineSegment", "EngineRocksDB", "EngineMemory"):
        assert engine in text
    assert str(scratch) in text.replace("\n", "")
    assert re.search(r"firn(mq)? serve", text)
    assert list(scratch.iterdir()) == []


def test_demo_finds_what_it_wrote(ok) -> None:
    steps = [json.loads(line) for line in ok("demo", "--json").splitlines()]
    assert len(steps) == 3 * 8
    for step in steps:
        if step["step"] == "verify all of it":
            assert step["outcome"].endswith("10,000 records: 0 findings")
        if step["step"].startswith("read by key"):
            assert "offset 9975:" in step["outcome"]
