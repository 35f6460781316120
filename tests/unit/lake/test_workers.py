"""What a task leaves behind in the process of its worker."""

import importlib
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile
from zipimport import zipimporter

import pytest

from firnmq.lake import workers


def zip_finders() -> list[str]:
    return [path for path, each in sys.path_importer_cache.items() if isinstance(each, zipimporter)]


def test_modules_of_zip_files_are_found_before_and_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "packed.zip"
    with ZipFile(packed, "w") as content:
        content.writestr("firn_packed_one.py", "number = 1")
        content.writestr("firn_packed_two.py", "number = 2")
    monkeypatch.syspath_prepend(packed)

    with workers.task():
        assert importlib.import_module("firn_packed_one").number == 1
        assert str(packed) in zip_finders()
    assert not zip_finders()

    @workers.task()
    def next_task() -> int:
        number: int = importlib.import_module("firn_packed_two").number
        return number

    assert next_task() == 2
    assert not zip_finders()


def test_what_the_first_task_leaves_is_searched_for_garbage_no_more_but_later_garbage_is() -> None:
    code = """
import gc, weakref
from firnmq.lake import workers

class Node: pass

def cycle():
    node = Node(); node.self = node
    return weakref.ref(node)

assert not gc.get_freeze_count()
with workers.task():
    first = cycle()
assert first() is None
frozen = gc.get_freeze_count()
assert frozen > 1000, frozen
with workers.task():
    seen = cycle()
assert gc.get_freeze_count() <= frozen
gc.collect()
assert seen() is None
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
