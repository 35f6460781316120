"""The documents show only what works: examples run, tables agree with the code, links lead on."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from firnmq import errors
from firnmq.adapter.manager import SHARDS_MAX
from firnmq.brokers.kafka.protocol.bounds import REQUEST_BYTES_MAX
from firnmq.brokers.kafka.protocol.primitives import ELEMENT_COUNT_MAX
from firnmq.config import StorageType, TopicConfig
from firnmq.config.names import GROUP_NAME_CHARS_MAX, TOPIC_NAME_CHARS_MAX
from firnmq.engines.shardlog.append import TERMS_MAX
from firnmq.record import DECOMPRESSED_BYTES_MAX
from tests.documents import ROOT, TIMEOUT_S, Shell, blocks, pages, table, text

PYTHON = [(page, code) for page in pages() for code in blocks(page, "python")]
CONSOLE = [page for page in pages() if blocks(page, "console")]


@pytest.mark.parametrize(
    "code", [code for _, code in PYTHON], ids=[f"{page}-{len(code)}-chars" for page, code in PYTHON]
)
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


@pytest.mark.parametrize("page", CONSOLE)
def test_console_examples(page: str, tmp_path: Path) -> None:
    """The console blocks of a page are one session."""
    shell = Shell(tmp_path)
    for session in blocks(page, "console"):
        shell.check(session)


def test_there_are_examples() -> None:
    assert {"README.md", "docs/python.md", "docs/kafka.md"} <= {page for page, _ in PYTHON}
    assert {"docs/cli.md", "docs/security.md", "docs/tiering.md"} <= set(CONSOLE)


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    shown = "\n".join(block for page in pages() for block in blocks(page, "sh"))
    for target in re.findall(r"^make (\w+)", shown, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_pages_that_are_read_first_stay_short() -> None:
    assert len(text("README.md").splitlines()) <= 200
    assert len(text("ARCHITECTURE.md").splitlines()) <= 150


def test_pre_commit_runs_what_make_check_runs() -> None:
    recipe = text("Makefile").split("\ncheck: setup\n")[1].split("\n\n")[0]
    checks = [line.strip().removeprefix("$(BIN)/") for line in recipe.splitlines()]
    hooks = re.findall(r"^ +entry: \.venv/bin/(.*)$", text(".pre-commit-config.yaml"), re.MULTILINE)
    assert hooks == checks


@pytest.mark.parametrize("page", [*pages(), "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_lead_somewhere(page: str) -> None:
    """Every link to a file of the repository names a file, and a heading that the file has."""
    folder = (ROOT / page).parent
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = folder / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in _anchors(file.read_text(encoding="utf-8")), target


def _anchors(markdown: str) -> set[str]:
    """The names by which the headings of a page can be linked to."""
    prose = re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_topic_options_are_those_there_are() -> None:
    shown = {
        option: None if default == "none" and option != "compression.type" else default
        for option, default, _ in table("docs/topics.md", "Topic options")
    }
    assert shown == TopicConfig().options()
    assert list(shown) == list(TopicConfig().options())


def test_storage_types_are_those_there_are() -> None:
    rows = table("docs/topics.md", "Storage types")
    assert sorted(row[0] for row in rows) == sorted(kind.value for kind in StorageType)
    for kind, short, *_ in rows:
        assert kind.lower() == f"engine{short}"


def test_errors_are_those_there_are() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.FirnError)
    }
    assert {row[0] for row in table("docs/errors.md", "Errors")} == kinds - {"FirnError"}


def test_limits_are_those_there_are() -> None:
    shown = [int(row[1].replace(",", "")) for row in table("docs/topics.md", "Limits")]
    name, group, shards, record, batch, terms, decompressed, request_bytes, elements = shown
    assert (name, group, shards) == (TOPIC_NAME_CHARS_MAX, GROUP_NAME_CHARS_MAX, SHARDS_MAX)
    assert (terms, decompressed) == (TERMS_MAX, DECOMPRESSED_BYTES_MAX)
    assert (request_bytes, elements) == (REQUEST_BYTES_MAX, ELEMENT_COUNT_MAX)
    options = {"max.record.bytes": record, "max.batch.bytes": batch}
    TopicConfig.from_options(options)
    for option, limit in options.items():
        with pytest.raises(errors.InvalidArgument):
            TopicConfig.from_options({**options, option: limit + 1})
