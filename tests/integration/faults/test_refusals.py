"""A disk that refuses writes or syncs: typed errors, nothing lost, nothing invented, no restart."""

import errno
import random
from pathlib import Path

import pytest

from tests.integration.faults.processes import Nursery
from tests.integration.faults.shim import Calls

_JOB = "tests.integration.faults.refusals"

# Which calls fail, how, how many pass before, and whether the first one does half of its work.
SHARD_CASES = {
    "write, disk full": (Calls.WRITE, errno.ENOSPC, 0, False),
    "half a write, disk full": (Calls.WRITE, errno.ENOSPC, 2, True),
    "half a write, broken": (Calls.WRITE, errno.EIO, 1, True),
    "sync, broken": (Calls.SYNC, errno.EIO, 0, False),
    "sync, disk full": (Calls.SYNC, errno.ENOSPC, 3, False),
    "write and sync, broken": (Calls.WRITE | Calls.SYNC, errno.EIO, 1, False),
    "new file, disk full": (Calls.MAKE, errno.ENOSPC, 0, False),
}
DATABASE_CASES = {
    "write, broken": (Calls.WRITE, errno.EIO, 0, False),
    "half a write, disk full": (Calls.WRITE, errno.ENOSPC, 3, True),
    "sync, broken": (Calls.SYNC, errno.EIO, 0, False),
    "everything, broken": (Calls.ALL, errno.EIO, 2, False),
}


def run(nursery: Nursery, job: str, *arguments: object) -> None:
    with nursery.run(f"{_JOB}:{job}", *arguments) as child:
        assert child.wait() == 0, nursery.log_text()[-6000:]


@pytest.mark.parametrize("topic", ["hurt", "shared"])
@pytest.mark.parametrize("case", SHARD_CASES)
def test_a_shard_whose_files_refuse_hurts_no_other(
    faulty_nursery: Nursery, tmp_path: Path, case: str, topic: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    run(faulty_nursery, "shard_refusal", str(tmp_path / "store"), topic, *SHARD_CASES[case], seed)


@pytest.mark.parametrize("case", DATABASE_CASES)
def test_a_database_that_refuses_is_reopened(
    faulty_nursery: Nursery, tmp_path: Path, case: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    run(faulty_nursery, "database_refusal", str(tmp_path / "store"), *DATABASE_CASES[case], seed)


@pytest.mark.parametrize("case", DATABASE_CASES)
def test_metadata_that_refuses_to_change_harms_nothing(
    faulty_nursery: Nursery, tmp_path: Path, case: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    run(faulty_nursery, "meta_refusal", str(tmp_path / "store"), *DATABASE_CASES[case], seed)


def test_a_database_that_had_refused_can_be_read_again(
    faulty_nursery: Nursery, tmp_path: Path
) -> None:
    run(faulty_nursery, "idle_database_refusal", str(tmp_path / "store"))
