"""System calls that fail for a moment: the process goes on with what the disk holds."""

import json
import shutil
from pathlib import Path

import pytest

from tests.integration.faults.hiccups import HICCUP_OPERATIONS
from tests.integration.faults.operations import SHARED_FILE
from tests.integration.faults.processes import Nursery

_JOB = "tests.integration.faults.hiccups"
_PREPARE = "tests.integration.faults.operations:prepare"
_POINTS_MAX = 400

OPERATION_CASES = [
    ("append and roll", "EngineSegment"),
    ("append and roll", "EngineRocksDB"),
    ("roll and append", "EngineSegment"),
    ("drop segments", "EngineSegment"),
    ("drop segments", "EngineRocksDB"),
    ("drop spilled", "EngineMemory"),
    ("append and roll", SHARED_FILE),
    ("roll and append", SHARED_FILE),
    ("drop segments", SHARED_FILE),
    ("truncate", SHARED_FILE),
    ("reclaim", SHARED_FILE),
    ("change layout", SHARED_FILE),
    ("compact", "EngineSegment"),
    ("truncate", "EngineSegment"),
    ("delete by offset", "EngineSegment"),
    ("delete by key", "EngineSegment"),
    ("commit", "EngineSegment"),
    ("spill", "EngineMemory"),
    ("create topic", "EngineSegment"),
    ("grow topic", "EngineSegment"),
    ("change options", "EngineSegment"),
    ("delete topic", "EngineSegment"),
]
STORES = {
    "key-value store": "/db/",
    "metadata": "/meta.db",
    "segments": "/segments/",
    "shared files": "/shared/",
}
assert {operation for operation, _ in OPERATION_CASES} <= HICCUP_OPERATIONS.keys()


@pytest.fixture(scope="module")
def prepared(faulty_nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prepared") / "store"
    with faulty_nursery.run(_PREPARE, str(path)) as child:
        assert child.wait() == 0, faulty_nursery.log_text()[-6000:]
    return path


@pytest.mark.parametrize("failure_count", [1, 4])
@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize(("operation", "engine"), OPERATION_CASES)
def test_the_process_shows_what_a_restart_would(
    faulty_nursery: Nursery,
    prepared: Path,
    tmp_path: Path,
    operation: str,
    engine: str,
    store: str,
    failure_count: int,
) -> None:
    """Each system call of the operation fails once, or begins a series of failures."""
    for after in range(0, _POINTS_MAX, 1 if failure_count == 1 else 3):
        path = tmp_path / f"{after}"
        shutil.copytree(prepared, path)
        arguments = (str(path), operation, engine, STORES[store], after, failure_count)
        with faulty_nursery.run(f"{_JOB}:operate", *arguments) as child:
            words = [json.loads(line)[0] for line in child.lines()]
            case = f"call {after} of {operation} of {engine} in the {store}"
            assert child.wait() == 0, f"{case}: {faulty_nursery.log_text()[-3000:]}"
        shutil.rmtree(path)
        if "complete" in words:
            return
    raise AssertionError(f"{operation} is not complete after {_POINTS_MAX} system calls")


def test_no_producer_id_is_given_out_twice(faulty_nursery: Nursery, tmp_path: Path) -> None:
    with faulty_nursery.run(f"{_JOB}:producer_ids", str(tmp_path / "db")) as child:
        assert child.wait() == 0, faulty_nursery.log_text()[-6000:]


@pytest.mark.parametrize("engine", ["EngineSegment", "EngineRocksDB", "EngineMemory"])
def test_a_large_request_is_stored_whole_or_not_at_all(
    faulty_nursery: Nursery, tmp_path: Path, engine: str
) -> None:
    with faulty_nursery.run(f"{_JOB}:whole_requests", str(tmp_path), engine) as child:
        assert child.wait() == 0, faulty_nursery.log_text()[-3000:]
