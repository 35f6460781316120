"""Files that cannot be read: see reading.py for what must come of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.faults.processes import Nursery

_JOB = "tests.integration.faults.reading"


@pytest.mark.parametrize("storage_type", ["EngineSegment", "EngineRocksDB", "EngineMemory"])
def test_every_read_of_a_failing_file_raises_a_typed_error(
    faulty_nursery: Nursery, tmp_path: Path, storage_type: str
) -> None:
    with faulty_nursery.run(f"{_JOB}:local_files", str(tmp_path / "data"), storage_type) as child:
        assert child.wait() == 0, faulty_nursery.log_text()[-6000:]


@pytest.mark.parametrize("failing", ["store", "cache"])
def test_cold_reads_of_failing_files(faulty_nursery: Nursery, tmp_path: Path, failing: str) -> None:
    with faulty_nursery.run(f"{_JOB}:cold_files", str(tmp_path), failing) as child:
        assert child.wait() == 0, faulty_nursery.log_text()[-6000:]
