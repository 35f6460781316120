"""Each operation is interrupted at each of its system calls once; nothing is ever half done."""

import copy
import json
import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest

from firnmq.server import LocalStore, Store
from tests.integration.faults.ledger import Ledger, record_of
from tests.integration.faults.metadata import check_metadata
from tests.integration.faults.operations import ENGINES, OPERATIONS, SHARED_FILE
from tests.integration.faults.processes import Nursery
from tests.integration.faults.shim import EXIT_CODE

_JOB = "tests.integration.faults.operations"
_POINTS_MAX = 400
_VOLATILE = frozenset({"EngineMemory"})

_SAME_FOR_ALL = frozenset(
    {
        "commit",
        "delete by key",
        "delete by offset",
        "create topic",
        "grow topic",
        "change options",
        "spill",
    }
)
"""Operations that do the same for every engine that keeps shards on disk."""

_LAYOUT_OPERATIONS = {
    "reclaim": {SHARED_FILE},
    "change layout": {"EngineSegment", SHARED_FILE},
}

CASES = [
    (operation, engine)
    for operation in OPERATIONS
    for engine in (ENGINES[:1] if operation in _SAME_FOR_ALL else ENGINES)
    if operation not in _LAYOUT_OPERATIONS or engine in _LAYOUT_OPERATIONS[operation]
]


class Scenery:
    """The prepared directory and what is in it."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self.path = path
        self.ledger = ledger


@pytest.fixture(scope="module")
def scenery(faulty_nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Scenery:
    path = tmp_path_factory.mktemp("scenery") / "store"
    ledger = Ledger()
    with faulty_nursery.run(f"{_JOB}:prepare", str(path)) as child:
        for line in child.lines():
            ledger.take_line(line)
        assert child.wait() == 0, faulty_nursery.log_text()
    with Store(LocalStore(path, background=False)) as store:
        ledger.check(store, is_lossy=_VOLATILE.__contains__)
    return Scenery(path, ledger)


@pytest.mark.parametrize(("operation", "engine"), CASES)
def test_an_operation_interrupted_anywhere_is_not_half_done(
    scenery: Scenery,
    faulty_nursery: Nursery,
    tmp_path: Path,
    operation: str,
    engine: str,
) -> None:
    step = 3 if engine == "EngineRocksDB" else 1  # Most of what rows do is what every engine does.
    for after in range(0, _POINTS_MAX, step):
        is_partial = after % 2 == 1
        path = tmp_path / f"{after}"
        shutil.copytree(scenery.path, path)
        ledger = copy.deepcopy(scenery.ledger)
        job = f"{_JOB}:operate"
        with faulty_nursery.run(job, str(path), operation, engine, after, is_partial) as child:
            is_complete, deleted = follow(child.lines(), ledger)
            code = child.wait()
        if not is_complete:
            assert code == EXIT_CODE, faulty_nursery.log_text()
        try:
            check(path, ledger, deleted, is_twice=after % 6 == 0)
        except Exception as error:
            error.add_note(f"{operation} of {engine}, interrupted at call {after}")
            raise
        shutil.rmtree(path)
        if is_complete:
            assert after > 0, "the operation made no system call"
            return
    raise AssertionError(f"{operation} is not complete after {_POINTS_MAX} system calls")


def follow(lines: Iterable[bytes], ledger: Ledger) -> tuple[bool, str | None]:
    """Takes the process's lines; whether it came to the end, and which topic it was deleting."""
    is_complete, deleted = False, None
    for line in lines:
        word, *rest = json.loads(line)
        match word:
            case "complete":
                is_complete = True
            case "deleting" | "deleted":
                deleted = rest[0]
            case _:
                ledger.take_line(line)
    return is_complete, deleted


def check(path: Path, ledger: Ledger, deleted: str | None, *, is_twice: bool) -> None:
    """Opens the store, compares and writes on; and, if it is to be twice, compares once more."""
    with Store(LocalStore(path, background=False)) as store:
        there = {topic.name for topic in store.topics()}
        check_metadata(store)
        if deleted is not None and deleted not in there:
            ledger.shards = {at: each for at, each in ledger.shards.items() if at[0] != deleted}
        ledger.check(store, is_lossy=_VOLATILE.__contains__, asks_indexes=is_twice)
        number = 2_000_000
        for name in sorted(there):
            ledger.intend(number, "append", (name, 0), number, 3)
            records = [record_of(number + at) for at in range(3)]
            (written,) = store.topic(name).append(records, shard=0)
            ledger.done(number, written.base_offset)
            number += 3
    if not is_twice:
        return
    with Store(LocalStore(path, background=False)) as store:
        ledger.check(store, is_lossy=_VOLATILE.__contains__)
