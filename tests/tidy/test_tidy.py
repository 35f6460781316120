"""The repository keeps its own style; and each rule is shown to be able to fail."""

import ast
import subprocess
from pathlib import Path

import pytest

from tests.tidy import rules
from tests.tidy.rules import RULES, Rule, SourceFile

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def files() -> list[SourceFile]:
    return rules.repository_files(REPOSITORY)


def test_the_repository_is_seen(files: list[SourceFile]) -> None:
    paths = {file.path for file in files}
    assert {"Makefile", ".ci/run", "src/firnmq/errors.py", "tests/tidy/rules.py"} <= paths
    assert not any(path.startswith(".venv/") for path in paths)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule_holds(rule: Rule, files: list[SourceFile]) -> None:
    problems = [str(problem) for file in files for problem in rule(file)]
    assert not problems, "\n" + "\n".join(problems)


def test_every_source_folder_is_a_package(files: list[SourceFile]) -> None:
    folders = rules.folders_without_init(files)
    assert not folders, f"add an __init__.py with a docstring to: {', '.join(folders)}"


def test_every_allowed_broad_except_exists(files: list[SourceFile]) -> None:
    broad = {file.path for file in files if any(rules.broad_excepts(file))}
    stale = sorted(rules.BROAD_EXCEPT_ALLOWED.keys() - broad)
    assert not stale, f"remove from BROAD_EXCEPT_ALLOWED: {', '.join(stale)}"


def test_every_allowed_judgement_by_text_exists(files: list[SourceFile]) -> None:
    judging = {file.path for file in files if any(rules.judged_texts(file))}
    stale = sorted(rules.ERROR_TEXT_ALLOWED.keys() - judging)
    assert not stale, f"remove from ERROR_TEXT_ALLOWED: {', '.join(stale)}"


def test_every_type_of_id_is_used(files: list[SourceFile]) -> None:
    (ids,) = [file for file in files if file.path == "src/firnmq/ids.py"]
    names = {
        target.id
        for node in ids.tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    imported = {
        alias.name
        for file in files
        if file.is_source
        for node in ast.walk(file.tree)
        if isinstance(node, ast.ImportFrom) and node.module == "firnmq.ids"
        for alias in node.names
    }
    assert names == imported


LONG_MODULE = "x = 1\n" * 601
LONG_FUNCTION = "def long():\n" + "    x = 1\n" * 80

# Each rule, a file it must refuse, and a file it must let pass.
SAMPLES: list[tuple[Rule, SourceFile, SourceFile]] = [
    (
        rules.words_are_plain,
        SourceFile("docs/a.md", "Whoever reads the segment rebuilds the index.\n"),
        SourceFile("docs/a.md", "The reader rebuilds the index.\n"),
    ),
    (
        rules.words_are_plain,
        SourceFile("src/firnmq/disk/a.py", "x = 1  # The log is cut here.\n"),
        SourceFile("src/firnmq/disk/a.py", "cut = 1  # As `cut` does, after a power cut.\n"),
    ),
    (
        rules.long_modules_say_why,
        SourceFile("src/firnmq/a.py", '"""Tables."""\n' + LONG_MODULE),
        SourceFile("src/firnmq/a.py", '"""Tables.\n\nLong because one table.\n"""\n' + LONG_MODULE),
    ),
    (
        rules.functions_fit_a_screen,
        SourceFile("src/firnmq/a.py", LONG_FUNCTION),
        SourceFile("src/firnmq/a.py", LONG_FUNCTION.removesuffix("    x = 1\n")),
    ),
    (
        rules.lines_are_short,
        SourceFile("tests/unit/test_a.py", "#" * 101),
        SourceFile("tests/unit/test_a.py", "x" * 100 + "  # type: ignore[misc]"),
    ),
    (
        rules.nothing_is_left_unfinished,
        SourceFile("docs/a.md", "TODO: the rest"),
        SourceFile("docs/a.md", "TODOS and XXXL are words of their own"),
    ),
    (
        rules.packages_only_re_export,
        SourceFile("src/firnmq/a/__init__.py", '"""A."""\n_CACHE = {}\n'),
        SourceFile(
            "src/firnmq/a/__init__.py",
            '"""A."""\nfrom typing import TYPE_CHECKING\n'
            "if TYPE_CHECKING:\n    from firnmq.a.b import B\n"
            '__all__ = ["B"]\n_LAZY = {"B": "firnmq.a.b"}\ndef __getattr__(name): ...\n',
        ),
    ),
    (
        rules.packages_only_re_export,
        SourceFile("src/firnmq/a/__init__.py", '"""A."""\ndef open(): ...\n'),
        SourceFile("src/firnmq/a/b.py", '"""B."""\ndef open(): ...\n'),
    ),
    (
        rules.only_the_command_line_prints,
        SourceFile("src/firnmq/a.py", "print(1)"),
        SourceFile("src/firnmq/cli/a.py", "print(1)"),
    ),
    (
        rules.errors_are_caught_by_kind,
        SourceFile("src/firnmq/a.py", "try: f()\nexcept: pass"),
        SourceFile("src/firnmq/a.py", "try: f()\nexcept BaseException:\n    g()\n    raise"),
    ),
    (
        rules.errors_are_caught_by_kind,
        SourceFile("src/firnmq/a.py", "try: f()\nexcept (OSError, Exception): pass"),
        SourceFile("src/firnmq/a.py", "try: f()\nexcept (OSError, ValueError): pass"),
    ),
    (
        rules.errors_are_caught_by_kind,
        SourceFile("benchmarks/bench_a.py", "try: f()\nexcept Exception: pass"),
        SourceFile("benchmarks/harness.py", "try: f()\nexcept Exception: pass"),
    ),
    (
        rules.errors_are_told_apart_by_kind,
        SourceFile("src/firnmq/a.py", "try: f()\nexcept OSError as e:\n    'x' in str(e).lower()"),
        SourceFile("src/firnmq/a.py", "try: f()\nexcept OSError as e:\n    e.errno == 28"),
    ),
    (
        rules.errors_are_told_apart_by_kind,
        SourceFile("src/firnmq/a.py", "def f(error: FirnError): return error.args[0] == 'x'"),
        SourceFile("src/firnmq/a.py", "def f(text: str): return 'x' in str(text)"),
    ),
    (
        rules.quick_tests_do_not_sleep,
        SourceFile("tests/unit/test_a.py", "import time\ntime.sleep(1)"),
        SourceFile("tests/integration/test_a.py", "import time\ntime.sleep(1)"),
    ),
    (
        rules.quick_tests_do_not_sleep,
        SourceFile("tests/conformance/test_a.py", "async def f(): await asyncio.sleep(0.1)"),
        SourceFile("tests/conformance/test_a.py", "async def f(): await clock.sleep(0.1)"),
    ),
    (
        rules.quick_tests_do_not_sleep,
        SourceFile("tests/properties/test_a.py", "from asyncio import sleep"),
        SourceFile("tests/properties/test_a.py", "from asyncio import wait_for"),
    ),
    (
        rules.no_machine_paths,
        SourceFile("README.md", "cd /home/someone/firnmq"),
        SourceFile("README.md", "see docs/home/page.md and ./work/x"),
    ),
    (
        rules.build_files_name_no_host,
        SourceFile("requirements.lock", "click @ https://example.org/click.whl"),
        SourceFile("README.md", "https://example.org/"),
    ),
    (
        rules.build_files_name_no_host,
        SourceFile(".ci/run", "curl http://example.org"),
        SourceFile(".ci/run", "make test"),
    ),
    (
        rules.modules_are_named_after_their_subject,
        SourceFile("src/firnmq/utils.py", ""),
        SourceFile("src/firnmq/commonwealth.py", ""),
    ),
    (
        rules.modules_are_named_after_their_subject,
        SourceFile("tests/helpers/clock.py", ""),
        SourceFile("tests/clock.py", ""),
    ),
    (
        rules.packages_say_what_they_are,
        SourceFile("src/firnmq/a/__init__.py", "import os\n"),
        SourceFile("src/firnmq/a/__init__.py", '"""A."""\n'),
    ),
]


@pytest.mark.parametrize(("rule", "bad", "good"), SAMPLES)
def test_rule_can_fail(rule: Rule, bad: SourceFile, good: SourceFile) -> None:
    assert [problem.path for problem in rule(bad)] == [bad.path]
    assert list(rule(good)) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {rule for rule, _, _ in SAMPLES} == set(RULES)


def test_a_folder_without_init_is_found() -> None:
    package = SourceFile("src/firnmq/a/__init__.py", "")
    stray = SourceFile("src/firnmq/b/c.py", "")
    assert rules.folders_without_init([package, stray]) == ["src/firnmq/b"]


def test_files_are_found_with_and_without_git(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("")
    (tmp_path / "golden.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_text("")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "b.py").write_text("")
    (tmp_path / ".gitignore").write_text(".venv/\n")
    expected = [".ci/run", ".gitignore", "src/a.py"]

    assert [file.path for file in rules.repository_files(tmp_path)] == expected
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert [file.path for file in rules.repository_files(tmp_path)] == expected
