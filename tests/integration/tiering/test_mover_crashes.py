"""Uploads and deletions interrupted anywhere: nothing is lost, and nothing dangles."""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from firnmq.config import TieringConfig
from firnmq.errors import TopicNotFound
from firnmq.server.recovery import recover_directory
from tests.integration.faults.processes import Child, Nursery
from tests.integration.faults.shim import EXIT_CODE, compiled
from tests.integration.tiering.moving import COUNT, ENGINES, NEWER, settings_of
from tests.integration.tiering.stage import TIERED_THERE, TOPIC, Stage, check

_JOBS = "tests.integration.tiering.moving"
_POINTS_MAX = 2000
_STEP = int(os.environ.get("FIRN_TIER_STEP", "4"))
"""Every how many calls one is the last; runs begin with different ones. 1 takes five minutes."""
_KINDS = ("upload", "expire", "delete")


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    made = Nursery(tmp_path_factory.mktemp("nursery") / "log")
    yield made
    made.close()


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    directory = tmp_path_factory.mktemp("shim")
    made = Nursery(directory / "log", compiled(directory))
    yield made
    made.close()


@pytest.fixture
def root() -> Iterator[Path]:
    """A short path: the library that ends processes compares the first 255 letters."""
    with tempfile.TemporaryDirectory(prefix="firn-tier-") as name:
        yield Path(name)


@pytest.mark.parametrize("engine", ENGINES[:2])
@pytest.mark.parametrize("kind", _KINDS)
def test_ended_at_any_system_call(root: Path, faulty: Nursery, kind: str, engine: str) -> None:
    """Data directory and objects are files here, so that the process ends at every write, sync,
    rename and removal of either, in turn."""
    scene = root / "scene"
    _prepare(faulty, scene, _settings(scene), engine)
    for after in range(random.randrange(_STEP), _POINTS_MAX, _STEP):
        place = root / f"{after}"
        shutil.copytree(scene, place)
        arguments = (str(place), _settings(place), kind, after, after % 2 == 1)
        with faulty.run(f"{_JOBS}:work", *arguments) as child:
            is_complete = _is_complete(child)
            code = child.wait()
        assert is_complete or code == EXIT_CODE, faulty.log_text()
        try:
            _check(place, msgspec.convert(_settings(place), TieringConfig), kind)
        except BaseException as error:
            error.add_note(f"{kind} of {engine}, ended at call {after}")
            raise
        shutil.rmtree(place)
        if is_complete:
            assert after > 10
            return
    raise AssertionError("there is no end to the calls")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", _KINDS)
def test_killed_at_any_call_of_a_real_store(
    root: Path, nursery: Nursery, s3_tiering: TieringConfig, kind: str, when: str
) -> None:
    """Each round has a prefix of its own in the bucket: objects cannot be copied as files can."""
    step = max(_STEP // 2, 1)
    for after in range(random.randrange(step), _POINTS_MAX, step):
        place = root / f"{after}"
        settings = settings_of(s3_tiering)
        settings["url"] = f"{s3_tiering.url}/{kind}-{when}-{after}"
        _prepare(nursery, place, settings, ENGINES[after % 3])
        with nursery.run(
            f"{_JOBS}:work_by_calls", str(place), settings, kind, after, when
        ) as child:
            is_complete = _is_complete(child)
            code = child.wait()
        assert is_complete or code == -9, nursery.log_text()
        try:
            _check(place, msgspec.convert(settings, TieringConfig), kind)
        except BaseException as error:
            error.add_note(f"{kind}, killed {when} call {after}")
            raise
        shutil.rmtree(place)
        if is_complete:
            assert after > 5
            return
    raise AssertionError("there is no end to the calls")


def test_a_recovery_that_is_ended_anywhere(root: Path, faulty: Nursery) -> None:
    """There is a whole directory or none, and the next attempt creates it."""
    scene = root / "scene"
    _prepare(faulty, scene, _settings(scene), ENGINES[0])
    shutil.rmtree(scene / "data")
    step = 5 * _STEP
    for after in range(random.randrange(step), _POINTS_MAX, step):
        place = root / f"{after}"
        shutil.copytree(scene, place)
        arguments = (str(place), _settings(place), after, after % 2 == 1)
        with faulty.run(f"{_JOBS}:recover", *arguments) as child:
            is_complete = _is_complete(child)
            code = child.wait()
        assert is_complete or code == EXIT_CODE, faulty.log_text()
        config = msgspec.convert(_settings(place), TieringConfig)
        try:
            if not (place / "new").exists():
                recover_directory(place / "new", config)
            with Stage(place / "new", config) as stage:
                check(stage.store.topic(TOPIC), range(COUNT))
                stage.fill(COUNT, NEWER)
                stage.work()
                assert stage.mover.status().state == "ok"
                assert stage.states() == {TIERED_THERE}
        except BaseException as error:
            error.add_note(f"ended at call {after}")
            raise
        shutil.rmtree(place)
        if is_complete:
            assert after > 10
            return
    raise AssertionError("there is no end to the calls")


def _settings(place: Path) -> dict[str, object]:
    quick = TieringConfig(url=f"file://{place}/objects", retry_ms=1, retry_ms_max=2)
    return settings_of(quick)


def _prepare(nursery: Nursery, place: Path, settings: dict[str, object], engine: str) -> None:
    with nursery.run(f"{_JOBS}:prepare", str(place), settings, engine) as child:
        assert [*child.lines()]
        assert child.wait() == 0, nursery.log_text()


def _is_complete(child: Child) -> bool:
    return b'["complete"]' in [*child.lines()]


def _check(place: Path, config: TieringConfig, kind: str) -> None:
    """1. What was acknowledged is there. 2. The work is finished. 3. It still is, and the store
    holds exactly what the metadata says."""
    with Stage(place / "data", config) as stage:
        is_there = _check_records(stage, kind)
        stage.work()
        if is_there:
            _check_records(stage, kind)
            assert stage.states() == {TIERED_THERE}
        status = stage.mover.status()
        assert (status.waiting_segments, status.dead_segments) == (0, 0)
        report = stage.mover.scrub(dry_run=True, grace_ms=0)
        assert report.missing == []
        assert [each.key for each in report.orphans] == []
    with Stage(place / "data", config) as stage:
        _check_records(stage, kind)


def _check_records(stage: Stage, kind: str) -> bool:
    """Whether the topic is still there, with all it has to have."""
    try:
        topic = stage.store.topic(TOPIC)
    except TopicNotFound:
        assert kind == "delete"
        return False
    start = topic.status(0).start_offset
    assert start == 0 or kind == "expire"
    check(topic, range(start, COUNT + NEWER))
    return True
