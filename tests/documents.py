"""README.md and the pages of `docs/`, as the tests look at them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TIMEOUT_S = 600


def pages() -> list[str]:
    """README.md and every page of `docs/` that users read, as paths from the root."""
    return ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page that are marked with a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)


def table(page: str, heading: str) -> list[list[str]]:
    """The rows of the first table below a heading, without backticks."""
    section = re.split(rf"^#+ {re.escape(heading)}$", text(page), flags=re.MULTILINE)[1]
    section = re.split(r"^#+ ", section, flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip().replace("`", "") for cell in line.split("|")[1:-1]] for line in lines]
    return cells[2:]


class Shell:
    """Runs the commands of a console block; `firn` is the one of this environment."""

    def __init__(self, folder: Path) -> None:
        shim = folder / "bin" / "firn"
        shim.parent.mkdir()
        shim.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m firnmq "$@"\n')
        shim.chmod(0o755)
        self.folder = folder
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FIRN_")
        }
        # The default, but named: a node at the default address is then left alone.
        self.environment["FIRN_DATA"] = "firn-data"
        self.environment["PATH"] = f"{shim.parent}{os.pathsep}{os.environ['PATH']}"

    def check(self, session: str) -> None:
        """Runs each command; its output must be as shown, where ... stands for anything."""
        for step in filter(None, re.split(r"^\$ ", session, flags=re.MULTILINE)):
            command, _, shown = step.partition("\n")
            if command.startswith("export "):
                name, _, value = command.removeprefix("export ").partition("=")
                self.environment[name] = value
                continue
            done = subprocess.run(
                ["/bin/sh", "-c", command],
                cwd=self.folder,
                env=self.environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
            pattern = re.escape(_squeezed(shown)).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, _squeezed(done.stdout)), f"$ {command}\n{done.stdout}"
            assert done.returncode == (1 if shown.startswith("error: ") else 0)


def _squeezed(text: str) -> str:
    """Runs of blanks as one: the width of a column depends on its content."""
    return "\n".join(" ".join(line.split()) for line in text.splitlines())
