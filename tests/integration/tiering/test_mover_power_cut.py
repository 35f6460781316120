"""Power cuts while segments are uploaded, dropped and removed: simulated ones, and real ones."""

import json
import random
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from firnmq.config import TieringConfig
from firnmq.errors import FirnError
from firnmq.testing import CrashFiles, CrashKeyValueStore, PowerCut
from tests.integration.faults.loops import make_image, mounted, need
from tests.integration.faults.processes import Child, Nursery
from tests.integration.tiering.moving import settings_of
from tests.integration.tiering.stage import TOPIC, Stage, check

_SIMULATED = 15
_REAL = 6
_XFS_MIB, _EXT4_MIB = 1024, 256


@dataclass
class Told:
    """What a process has said of its one topic."""

    done: int = 0
    intended: int = 0
    starts: set[int] = field(default_factory=lambda: {0})

    def take(self, line: bytes) -> None:
        match json.loads(line):
            case ["intend", int(end)]:
                self.intended = end
            case ["done", int(end)]:
                self.done = end
            case ["start", int(start)]:
                self.starts.add(start)

    def check(self, stage: Stage) -> None:
        topic = stage.store.topic(TOPIC)
        status = topic.status(0)
        assert status.start_offset in self.starts
        assert self.done <= status.end_offset <= self.intended
        check(topic, range(status.start_offset, status.end_offset))


def finish(stage: Stage) -> None:
    """What was under way is finished, and both sides agree."""
    stage.work(rounds=40)
    report = stage.mover.scrub(dry_run=False, grace_ms=0)
    assert report.missing == []
    assert stage.mover.scrub(dry_run=True, grace_ms=0).orphan_count == 0


@pytest.mark.parametrize("engine", ["EngineSegment", "EngineRocksDB"])
def test_a_cut_that_is_simulated(tmp_path: Path, file_tiering: TieringConfig, engine: str) -> None:
    """The directory forgets what was not synced; the store, another machine's, does not."""
    first_seed = random.randrange(2**32)
    for seed in range(first_seed, first_seed + _SIMULATED):
        rng = random.Random(seed)
        path, remains = tmp_path / f"{seed}", tmp_path / f"{seed}-remains"
        config = TieringConfig(url=f"{file_tiering.url}-{seed}", retry_ms=1, retry_ms_max=2)
        with Stage(path, config) as stage:
            stage.create(storage_type=engine, local_retention_ms=0)
            stage.fill(0, 48)
        cut = PowerCut(path, remains, after=rng.randrange(40), rng=rng)
        done = 48
        with Stage(
            path, config, files=CrashFiles(cut), open_kv=partial(CrashKeyValueStore, cut=cut)
        ) as stage:
            while not cut.has_come:
                stage.mover.work()
                stage.wait_for_cache()
                if not cut.has_come and rng.random() < 0.5:
                    stage.fill(done, 12)
                    done += 0 if cut.has_come else 12
                if not stage.mover.status().waiting_segments and rng.random() < 0.2:
                    break
            if not cut.has_come:
                cut.happen()
        try:
            told = Told(done=done, intended=done + 12)
            with Stage(remains, config) as stage:
                told.check(stage)
                finish(stage)
                told.check(stage)
        except (AssertionError, FirnError) as error:
            error.add_note(f"seed {seed}")
            raise
        shutil.rmtree(path)
        shutil.rmtree(remains)


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    made = Nursery(tmp_path / "log")
    yield made
    made.close()


@pytest.mark.root
def test_a_cut_that_is_real(tmp_path: Path, nursery: Nursery) -> None:
    """Directory and objects are on one device, which is cloned at some moments of the work."""
    need("mkfs.xfs", "mkfs.ext4")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    make_image(tmp_path / "xfs", _XFS_MIB, "mkfs.xfs", "-q", "-f", "-m", "reflink=1")
    with mounted(tmp_path / "xfs", tmp_path / "outer") as outer:
        make_image(outer / "disk", _EXT4_MIB, "mkfs.ext4", "-q", "-F")
        with mounted(outer / "disk", tmp_path / "inner") as inner:
            settings = settings_of(TieringConfig(url=f"file://{inner}/objects", retry_ms=1))
            job = "tests.integration.tiering.moving:toil"
            with nursery.run(job, str(inner), settings, seed) as child:
                so_far = Told()
                cuts = [_clone(outer, number, child, rng, so_far) for number in range(_REAL)]
                child.kill()
                child.wait()
        for number, told in enumerate(cuts):
            _check(outer / f"cut-{number}", tmp_path / "inner", told, f"seed {seed}, cut {number}")


def _clone(outer: Path, number: int, child: Child, rng: random.Random, so_far: Told) -> Told:
    """The device as it is now; what was said before, and what may be there already."""
    lines = child.lines()
    for _ in range(rng.randrange(20, 150)):
        line = next(lines, None)
        assert line is not None, "the process has ended"
        so_far.take(line)
    known = so_far.done
    subprocess.run(["cp", "--reflink=always", outer / "disk", outer / f"cut-{number}"], check=True)
    while child.has_more():
        so_far.take(next(lines))
    return Told(done=known, intended=so_far.intended, starts=set(so_far.starts))


def _check(image: Path, place: Path, told: Told, note: str) -> None:
    """The clone is mounted where the device was, since that is what the store's URL says."""
    with mounted(image, place) as inner:
        config = TieringConfig(url=f"file://{inner}/objects", retry_ms=1, retry_ms_max=2)
        try:
            with Stage(inner / "data", config) as stage:
                told.check(stage)
                finish(stage)
                told.check(stage)
        except (AssertionError, FirnError) as error:
            error.add_note(note)
            raise
