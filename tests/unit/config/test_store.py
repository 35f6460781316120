"""Store settings: file, then environment, read once and refused by name."""

from pathlib import Path

import pytest

from firnmq.config import StoreConfig, load_store_config
from firnmq.errors import InvalidArgument


def test_defaults() -> None:
    assert load_store_config(environment={}) == StoreConfig()


def test_the_environment_overlays_the_file(tmp_path: Path) -> None:
    path = tmp_path / "firn.toml"
    path.write_text("[store]\nio_workers = 3\nopen_files = 7\n")
    config = load_store_config(path, {"FIRN_OPEN_FILES": "8", "FIRN_SOAK": "1", "OTHER": "x"})
    assert config == StoreConfig(io_workers=3, open_files=8)


@pytest.mark.parametrize(
    "text",
    [
        "not toml",
        "[store]\nworkers = 3\n",
        "[stores]\nio_workers = 3\n",
        "io_workers = 3\n",
        "store = 5\n",
        "[store]\nio_workers = 0\n",
        "[store]\nio_workers = true\n",
        '[store]\nio_workers = "3"\n',
        "[store]\nio_workers = 1.5\n",
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "firn.toml"
    path.write_text(text)
    with pytest.raises(InvalidArgument):
        load_store_config(path, {})


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        load_store_config(tmp_path / "none.toml", {})


@pytest.mark.parametrize("text", ["", "-1", "0", "many", "1.5"])
def test_a_bad_variable_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        load_store_config(environment={"FIRN_IO_WORKERS": text})
