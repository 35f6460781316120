"""The README shows only what works: its examples run, its tables agree with the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from firnmq import errors
from firnmq.adapter.manager import SHARDS_MAX
from firnmq.config import StorageType, TopicConfig
from firnmq.config.names import GROUP_NAME_CHARS_MAX, TOPIC_NAME_CHARS_MAX
from firnmq.record import DECOMPRESSED_BYTES_MAX

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
TIMEOUT_S = 120


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def table(heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without backticks."""
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
    return cells[2:]


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: f"{len(code)}-chars")
def test_python_example(code: str, tmp_path: Path) -> None:
    """Runs as it stands, and each print gives what the comment behind it says."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown = re.findall(r"^ *print\(.*\)  # (.*)$", code, re.MULTILINE)
    assert shown
    assert done.stdout.splitlines() == shown


def test_console_examples(tmp_path: Path) -> None:
    """One session: each command's output is as shown, where ... stands for anything."""
    shim = tmp_path / "bin" / "firn"
    shim.parent.mkdir()
    shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m firnmq "$@"\n')
    shim.chmod(0o755)
    environment = {**os.environ, "PATH": f"{shim.parent}{os.pathsep}{os.environ['PATH']}"}
    environment.pop("FIRN_DATA", None)
    steps = [step for block in blocks("console") for step in re.split(r"^\$ ", block, flags=re.M)]
    steps = [step for step in steps if step]
    assert len(steps) > 5
    for step in steps:
        command, _, shown = step.partition("\n")
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        pattern = re.escape(squeezed(shown)).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, squeezed(done.stdout)), f"$ {command}\n{done.stdout}"
        assert done.returncode == (1 if shown.startswith("error: ") else 0)


def squeezed(text: str) -> str:
    """Runs of blanks as one: how wide a column is depends on what is in it."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())


def test_make_targets_exist() -> None:
    makefile = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("sh")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_topic_options_are_those_there_are() -> None:
    shown = {
        option: None if default == "none" and option != "compression.type" else default
        for option, default, _ in table("Topic options")
    }
    assert shown == TopicConfig().options()
    assert list(shown) == list(TopicConfig().options())


def test_storage_types_are_those_there_are() -> None:
    shown = [row[0] for row in table("Storage types")]
    assert sorted(shown) == sorted(kind.value for kind in StorageType)
    for kind, short, *_ in table("Storage types"):
        assert kind.lower() == f"engine{short}"


def test_errors_are_those_there_are() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.FirnError)
    }
    assert {row[0] for row in table("Errors")} == kinds - {"FirnError"}


def test_limits_are_those_there_are() -> None:
    shown = [int(row[1].replace(",", "")) for row in table("Limits")]
    name, group, shards, record, batch, decompressed = shown
    assert (name, group, shards) == (TOPIC_NAME_CHARS_MAX, GROUP_NAME_CHARS_MAX, SHARDS_MAX)
    assert decompressed == DECOMPRESSED_BYTES_MAX
    options = {"max.record.bytes": record, "max.batch.bytes": batch}
    TopicConfig.from_options(options)
    for option, limit in options.items():
        with pytest.raises(errors.InvalidArgument):
            TopicConfig.from_options({**options, option: limit + 1})
