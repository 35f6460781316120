"""The style rules that a machine can judge, each a function from a file to what is wrong in it.

A rule yields ``Problem`` values whose text says what to do. It is given every file of the
repository and picks those it cares about, so that a rule can be tried on a made-up file.
"""

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

MODULE_LINE_COUNT_MAX = 600
FUNCTION_LINE_COUNT_MAX = 80
LINE_LENGTH_MAX = 100

NAMES_BANNED = {"util", "utils", "helper", "helpers", "common", "misc"}

BROAD_EXCEPT_ALLOWED = {
    "src/firnmq/cli/lake/running.py": "what fails in the thread is raised where it is awaited",
    "src/firnmq/brokers/kafka/connections/connection.py": "a defect costs one client",
    "src/firnmq/brokers/kafka/quotas/timing.py": "what is awaited raises it in the coroutine",
    "benchmarks/__main__.py": "a broken module must not hide the figures of the others",
    "benchmarks/harness.py": "a broken benchmark must not hide the figures of the others",
    "setup.py": "whatever stops the translation of the codec, the build must go on",
    "src/firnmq/cluster/peers/server.py": "supervisor: a defect costs one request of a node",
    "src/firnmq/cluster/replication/driving/driver.py": "supervisor: other shards go on",
    "src/firnmq/disk/kv/database.py": "rocksdict raises plain Exception for every failure",
    "src/firnmq/disk/kv/store.py": "rocksdict raises plain Exception for every failure",
    "src/firnmq/disk/pool.py": "supervisor: a defect must fail its requests, not hang them",
    "src/firnmq/engines/opener.py": "what fails in the thread is raised where it is awaited",
    "src/firnmq/engines/upkeep.py": "supervisor: one shard's defect must not end others' upkeep",
    "src/firnmq/engines/shardlog/rolling/driver.py": "supervisor: no log may stay frozen",
    "src/firnmq/lake/reading/ahead.py": "what ends the thread is raised where its work is awaited",
    "src/firnmq/server/directory.py": "what fails in the node's thread is raised by its starter",
    "src/firnmq/server/housekeeper.py": "supervisor: a defect in one round must not end upkeep",
    "src/firnmq/tiering/cold/cache.py": "supervisor: a failed fetch is its readers' error",
    "src/firnmq/tiering/move/mover.py": "supervisor: a defect in one step must not end all moving",
    "src/firnmq/record/compression.py": "cramjam raises several kinds, all meaning damaged input",
    "src/firnmq/tiering/stores/cloud.py": "what a caller's chunks raise goes through obstore as is",
}
"""Modules that may catch everything, with the reason: supervisors, and foreign libraries."""

ERROR_TEXT_ALLOWED = {
    "src/firnmq/disk/kv/database.py": "rocksdict has one type of error and no codes",
    "src/firnmq/record/compression.py": "cramjam says only so that a buffer is small",
    "src/firnmq/tiering/stores/cloud.py": "obstore has one type for a lost bucket or object",
}
"""Modules that judge an error by its text, each about one library that offers nothing else."""

WALK_SKIPPED = {"build", "dist", "var", "__pycache__"}
"""Folders that are not sources, for a tree that is not a git checkout; hidden ones as well."""

_TESTS_WITHOUT_SLEEP = ("tests/unit/", "tests/properties/", "tests/conformance/")
_MADE_TO_BE_BAD = "tests/tidy/"
_UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX)\b")
_MACHINE_PATH = re.compile(r"(?<![\w.*}-])/(?:work|root|home|Users)/")
_PLAIN_PLACES = ("benchmarks/", "docs/", "examples/", "scale/", "src/", "tests/soak/")
_OBLIQUE = re.compile(
    r"\b(?:whoever|whomever|somebody|nobody|anew|meanwhile|as such|found out|cannot be meant"
    r"|courtesy|patience|pace|guest|twofold)\b",
    re.IGNORECASE,
)
"""Words that hide who does what, or that say nothing."""
_OBLIQUE_PROSE = re.compile(r"\b(?:(?<!power )cuts?|cut off|settles?|settled)\b", re.IGNORECASE)
"""Words for which the field has better ones (truncate, complete), but which may be names."""
_QUOTED = re.compile(r"`[^`]*`")
_PRAGMA = re.compile(r"\s+# (?:type: ignore|noqa|pragma).*$")
_URL = re.compile(r"\w+://")


@dataclass(frozen=True)
class SourceFile:
    """A file of the repository: its path from the root, with slashes, and its text."""

    path: str
    text: str

    @property
    def is_python(self) -> bool:
        return self.path.endswith(".py")

    @property
    def is_source(self) -> bool:
        """Whether it is shipped Python code."""
        return self.is_python and self.path.startswith("src/")

    @property
    def is_package(self) -> bool:
        return self.is_source and self.path.endswith("/__init__.py")

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.path)


@dataclass(frozen=True)
class Problem:
    """One finding; its text is what a developer reads."""

    path: str
    line: int
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.advice}"


Rule = Callable[[SourceFile], Iterator[Problem]]


def long_modules_say_why(file: SourceFile) -> Iterator[Problem]:
    count = len(file.lines)
    if not file.is_source or count <= MODULE_LINE_COUNT_MAX:
        return
    docstring = ast.get_docstring(file.tree) or ""
    if not any(line.startswith("Long because") for line in docstring.splitlines()):
        yield Problem(
            file.path,
            1,
            f"{count} lines; split the module at {MODULE_LINE_COUNT_MAX}, or say why not in a "
            'line of its docstring that starts with "Long because"',
        )


def functions_fit_a_screen(file: SourceFile) -> Iterator[Problem]:
    if not file.is_python:
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > FUNCTION_LINE_COUNT_MAX:
                yield Problem(
                    file.path,
                    node.lineno,
                    f"{node.name} has {count} lines; give its steps names of their own until "
                    f"it has {FUNCTION_LINE_COUNT_MAX} or fewer",
                )


def lines_are_short(file: SourceFile) -> Iterator[Problem]:
    if not (file.is_python or _is_build_file(file)) or file.path.endswith(
        (".lock", "_pb2.py")  # Written by tools.
    ):
        return
    for number, line in enumerate(file.lines, start=1):
        # A remark to a tool must stand on its line, and ruff does not count it either.
        length = len(_PRAGMA.sub("", line))
        if length > LINE_LENGTH_MAX:
            yield Problem(
                file.path, number, f"{length} columns; wrap the line at {LINE_LENGTH_MAX}"
            )


def nothing_is_left_unfinished(file: SourceFile) -> Iterator[Problem]:
    if file.path.startswith(_MADE_TO_BE_BAD) or file.path.endswith(".lock"):
        return
    for number, line in enumerate(file.lines, start=1):
        if found := _UNFINISHED.search(line):
            yield Problem(
                file.path, number, f"{found.group()}: do it now, or write it down as an issue"
            )


def packages_only_re_export(file: SourceFile) -> Iterator[Problem]:
    if not file.is_package:
        return
    is_lazy = any(
        isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in file.tree.body
    )
    for index, node in enumerate(file.tree.body):
        is_docstring = (
            index == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        )
        if not is_docstring and not _is_re_export(node, is_lazy=is_lazy):
            yield Problem(
                file.path,
                node.lineno,
                "an __init__.py holds a docstring, imports and __all__; move the code to a module "
                "of its own and import it here",
            )


def _is_re_export(node: ast.stmt, *, is_lazy: bool) -> bool:
    match node:
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            # The table that a lazy __getattr__ looks names up in is part of the re-export.
            is_table = is_lazy and name.startswith("_") and name.isupper()
            return name in {"__all__", "__version__"} or is_table
        case ast.FunctionDef(name="__getattr__" | "__dir__"):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING"), body=body, orelse=[]):
            return all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in body)
        case _:
            return False


def only_the_command_line_prints(file: SourceFile) -> Iterator[Problem]:
    if not file.is_source or file.path.startswith(("src/firnmq/cli/", "src/firnmq/cli.py")):
        return
    for node in ast.walk(file.tree):
        match node:
            case ast.Call(func=ast.Name(id="print")):
                yield Problem(
                    file.path,
                    node.lineno,
                    "log an event with fields instead of printing; only firnmq.cli prints",
                )


def broad_excepts(file: SourceFile) -> Iterator[int]:
    """The line of each handler that catches everything and does not simply raise it again."""
    if not file.is_python or file.path.startswith("tests/"):
        return
    for node in ast.walk(file.tree):
        if isinstance(node, ast.ExceptHandler) and _is_broad(node) and not _re_raises(node):
            yield node.lineno


def errors_are_caught_by_kind(file: SourceFile) -> Iterator[Problem]:
    if file.path in BROAD_EXCEPT_ALLOWED:
        return
    for line in broad_excepts(file):
        yield Problem(
            file.path,
            line,
            "catch the errors you can answer, or end the handler with a bare raise; a supervisor "
            "goes with its reason into BROAD_EXCEPT_ALLOWED of tests/tidy/rules.py",
        )


def _is_broad(handler: ast.ExceptHandler) -> bool:
    match handler.type:
        case None:
            return True
        case ast.Tuple(elts=kinds):
            pass
        case kind:
            kinds = [kind]
    names = {kind.id for kind in kinds if isinstance(kind, ast.Name)}
    return bool(names & {"Exception", "BaseException"})


def _re_raises(handler: ast.ExceptHandler) -> bool:
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


def errors_are_told_apart_by_kind(file: SourceFile) -> Iterator[Problem]:
    if file.path not in ERROR_TEXT_ALLOWED:
        yield from judged_texts(file)


def judged_texts(file: SourceFile) -> Iterator[Problem]:
    """Comparisons with the text of an error: `in str(error)`, `error.args[0] ==`."""
    if not file.is_source:
        return
    for handler in ast.walk(file.tree):
        if not isinstance(handler, ast.ExceptHandler | ast.FunctionDef):
            continue
        if isinstance(handler, ast.ExceptHandler):
            caught = {handler.name} if handler.name else set()
        else:
            caught = {
                each.arg
                for each in handler.args.args
                if each.annotation is not None and _is_error(ast.unparse(each.annotation))
            }
        for node in ast.walk(handler):
            if isinstance(node, ast.Compare) and any(
                _is_text_of(side, caught) for side in (node.left, *node.comparators)
            ):
                yield Problem(
                    file.path,
                    node.lineno,
                    "an error is told apart by its text; give it a type or a field of its own",
                )


def _is_error(annotation: str) -> bool:
    return annotation.endswith(("Exception", "Error"))


def _is_text_of(node: ast.expr, errors: set[str]) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="str" | "repr"), args=[ast.Name(id=name)]):
            return name in errors
        case ast.Call(func=ast.Attribute(value=inner)) | ast.Subscript(value=inner):
            return _is_text_of(inner, errors)
        case ast.Attribute(value=ast.Name(id=name), attr="args"):
            return name in errors
        case _:
            return False


def quick_tests_do_not_sleep(file: SourceFile) -> Iterator[Problem]:
    if not file.is_python or not file.path.startswith(_TESTS_WITHOUT_SLEEP):
        return
    for node in ast.walk(file.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep")):
                pass
            case ast.ImportFrom(module="time" | "asyncio", names=names) if any(
                alias.name == "sleep" for alias in names
            ):
                pass
            case _:
                continue
        yield Problem(
            file.path,
            node.lineno,
            "wait for the event itself or move the fake clock; a sleep is slow and flaky",
        )


def no_machine_paths(file: SourceFile) -> Iterator[Problem]:
    if file.path.startswith(_MADE_TO_BE_BAD):
        return
    for number, line in enumerate(file.lines, start=1):
        if found := _MACHINE_PATH.search(line):
            yield Problem(
                file.path,
                number,
                f"{found.group()} exists on one machine only; use a path relative to the "
                "repository, a temporary directory or a setting",
            )


def build_files_name_no_host(file: SourceFile) -> Iterator[Problem]:
    if not _is_build_file(file):
        return
    for number, line in enumerate(file.lines, start=1):
        if found := _URL.search(line):
            yield Problem(
                file.path,
                number,
                f"{found.group()}: where packages come from is the machine's setting; for the "
                "lock file, run make lock",
            )


def _is_build_file(file: SourceFile) -> bool:
    return file.path in {"Makefile", "pyproject.toml"} or (
        file.path.endswith(".lock") or file.path.startswith(".ci/")
    )


def modules_are_named_after_their_subject(file: SourceFile) -> Iterator[Problem]:
    if not file.is_python:
        return
    path = PurePosixPath(file.path)
    for name in (*path.parent.parts, path.stem):
        if name in NAMES_BANNED:
            yield Problem(
                file.path, 1, f"{name!r} says nothing; name the module after what it is about"
            )


def packages_say_what_they_are(file: SourceFile) -> Iterator[Problem]:
    if file.is_package and not ast.get_docstring(file.tree):
        yield Problem(
            file.path, 1, "begin with a docstring that says in a line what the package is for"
        )


def words_are_plain(file: SourceFile) -> Iterator[Problem]:
    is_page = "/" not in file.path and file.path.endswith(".md")
    is_place = file.path.startswith(_PLAIN_PLACES)
    if not (is_page or is_place) or not file.path.endswith((".md", ".py", ".pyx", ".c")):
        return
    for number, line in enumerate(file.lines, 1):
        for found in _OBLIQUE.findall(line):
            yield Problem(file.path, number, f"{found!r}: say plainly who does what")
    for number, line in _prose(file):
        for found in _OBLIQUE_PROSE.findall(_QUOTED.sub("", line)):
            yield Problem(file.path, number, f"{found!r}: use the word of the field")


def _prose(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Lines of text with their numbers: of a Python file its comments and strings."""
    if not file.is_python:
        yield from enumerate(file.lines, 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(file.text).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING):
            yield from enumerate(token.string.splitlines(), token.start[0])


RULES: tuple[Rule, ...] = (
    long_modules_say_why,
    functions_fit_a_screen,
    lines_are_short,
    nothing_is_left_unfinished,
    packages_only_re_export,
    only_the_command_line_prints,
    errors_are_caught_by_kind,
    errors_are_told_apart_by_kind,
    quick_tests_do_not_sleep,
    no_machine_paths,
    build_files_name_no_host,
    modules_are_named_after_their_subject,
    packages_say_what_they_are,
    words_are_plain,
)


def folders_without_init(files: list[SourceFile]) -> list[str]:
    """Folders below ``src/firnmq`` that hold modules but are no package."""
    folders = {str(PurePosixPath(file.path).parent) for file in files if file.is_source}
    packages = {str(PurePosixPath(file.path).parent) for file in files if file.is_package}
    return sorted(folders - packages)


def repository_files(root: Path) -> list[SourceFile]:
    """Every text file that is or would be committed."""
    files = []
    for path in _paths(root):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except (FileNotFoundError, UnicodeDecodeError, IsADirectoryError):
            continue  # Deleted but still tracked, golden bytes, or a submodule.
        files.append(SourceFile(path, text))
    return files


def _paths(root: Path) -> list[str]:
    if (root / ".git").exists():
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            capture_output=True,
            check=False,
        )
        if listing.returncode == 0:
            return sorted(set(filter(None, listing.stdout.decode().split("\0"))))
    return sorted(_walk(root, root))


def _walk(folder: Path, root: Path) -> Iterator[str]:
    for entry in folder.iterdir():
        if entry.is_dir():
            is_hidden = entry.name.startswith(".") and entry.name != ".ci"
            if not (is_hidden or entry.name in WALK_SKIPPED or entry.name.endswith(".egg-info")):
                yield from _walk(entry, root)
        elif entry.is_file():
            yield entry.relative_to(root).as_posix()
