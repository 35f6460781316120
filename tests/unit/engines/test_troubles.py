"""What is wrong with a shard is told once, shown while it lasts, and over when it is."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from firnmq.disk import FileCache
from firnmq.errors import Corruption, StorageFailed
from firnmq.health import ProblemKind
from tests.conformance.lab import Lab, Shard


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path / "data", "EngineSegment")
    yield made
    made.close()


def events(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """What the health has logged."""
    records = [each for each in caplog.records if each.name == "firnmq.health"]
    return [vars(each)["event"] for each in records if each.levelno == level]


def sealed(lab: Lab) -> tuple[Shard, Path]:
    """A shard with one sealed segment, and that segment's file."""
    shard = lab.shard()
    shard.append_values(b"a", b"b")
    shard.roll()
    shard.append_values(b"c")
    return shard, lab.path / "segments" / shard.name / f"{0:020d}.log"


def refuse_reads(shard: Shard) -> None:
    for _ in range(20):
        with pytest.raises(Corruption):
            shard.read(0)
        with pytest.raises(Corruption):
            shard.engine.read_stored(shard.name, 0, max_bytes=1000, committed=False, ranges=False)


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_segment_that_cannot_be_read(
    lab: Lab, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    caplog.set_level(logging.INFO, "firnmq")
    shard, file = sealed(lab)
    lab.reopen()
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    refuse_reads(shard)
    assert events(caplog, logging.ERROR) == ["segment_unreadable"]
    assert lab.store.health.count(ProblemKind.SEGMENT_UNREADABLE) == 1
    assert str(file) in (shard.status.failure or "")
    lab.engine.housekeep()
    assert events(caplog, logging.ERROR) == ["segment_unreadable"]
    file.write_bytes(whole)
    lab.engine.housekeep()
    assert shard.values() == [b"a", b"b", b"c"]
    assert shard.status.failure is None
    assert events(caplog, logging.INFO) == ["segment_unreadable_over"]


def test_a_missing_segment_is_noticed_when_its_shard_is_opened(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    shard, file = sealed(lab)
    lab.store.close()
    file.unlink()
    lab.store = lab._opened()
    assert "0 of" in (shard.status.failure or "")
    assert events(caplog, logging.ERROR) == ["segment_unreadable"]
    lab.engine.delete_shard(shard.name)
    assert lab.store.health.problems() == []


def test_a_device_that_refuses_every_write_is_told_of_once(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "firnmq")
    shard = lab.shard()
    shard.append_values(b"a")

    def broken(*_: object, **__: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FileCache, "write_at", broken)
        for _ in range(20):
            with pytest.raises(StorageFailed):
                shard.append_values(b"b")
        assert lab.store.health.count(ProblemKind.SHARD_FAILED) == 1
        assert "Input/output" in (shard.status.failure or "")
    assert events(caplog, logging.ERROR) == ["shard_failed"]
    lab.engine.housekeep()
    assert lab.store.health.problems() == []
    shard.append_values(b"c")
    assert shard.values() == [b"a", b"c"]


def test_a_shard_that_cannot_be_opened(
    lab: Lab, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "firnmq")
    shard, _ = sealed(lab)
    lab.reopen()

    def broken(*_: object) -> int:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(FileCache, "length", broken)
        for _ in range(5):
            with pytest.raises(StorageFailed):
                shard.read(0)
        lab.engine.housekeep()
    assert events(caplog, logging.ERROR) == ["shard_failed"]
    lab.engine.housekeep()
    assert events(caplog, logging.INFO) == ["shard_failed_over"]
    assert shard.values() == [b"a", b"b", b"c"]
