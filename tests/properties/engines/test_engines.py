"""Each engine behaves like a plain list, whatever is done to it and in whatever order."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from firnmq.config import StorageType
from tests.conformance.lab import SHARED_FILE
from tests.properties.engines.file_machine import FileTierMachine
from tests.properties.engines.lagging_machine import LaggingMachine
from tests.properties.engines.machine import EngineMachine
from tests.properties.engines.tiered_machine import TieredMachine

KINDS = [*(each.value for each in StorageType), SHARED_FILE]
_IS_SOAK = os.environ.get("FIRN_SOAK") == "1"
SETTINGS = settings(
    max_examples=300 if _IS_SOAK else 30,
    stateful_step_count=80 if _IS_SOAK else 35,
    # Shrinking opens thousands of stores; the steps as they were found are short enough to read.
    phases=tuple(Phase) if _IS_SOAK else (Phase.explicit, Phase.reuse, Phase.generate),
    deadline=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("storage_type", KINDS)
def test_an_engine_behaves_like_its_model(storage_type: str, tmp_path: Path) -> None:
    machine = type(
        f"{storage_type}Machine",
        (EngineMachine,),
        {"storage_type": storage_type, "folder": tmp_path},
    )
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("storage_type", KINDS)
def test_a_high_watermark_behind_the_end_makes_no_difference(
    storage_type: str, tmp_path: Path
) -> None:
    machine = type(
        f"Lagging{storage_type}Machine",
        (LaggingMachine,),
        {"storage_type": storage_type, "folder": tmp_path},
    )
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("storage_type", KINDS)
def test_an_object_store_behind_an_engine_makes_no_difference(
    storage_type: str, tmp_path: Path
) -> None:
    machine = type(
        f"Tiered{storage_type}Machine",
        (TieredMachine,),
        {"storage_type": storage_type, "folder": tmp_path},
    )
    run_state_machine_as_test(machine, settings=SETTINGS)


@pytest.mark.parametrize("storage_type", KINDS)
def test_a_directory_as_object_store_makes_no_difference(storage_type: str, tmp_path: Path) -> None:
    machine = type(
        f"File{storage_type}Machine",
        (FileTierMachine,),
        {"storage_type": storage_type, "folder": tmp_path},
    )
    run_state_machine_as_test(machine, settings=SETTINGS)
