"""Options from a file, for secrets: `ps` shows command lines to all users."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from firnmq.errors import InvalidArgument

OPTION_FILE: Final = "FIRN_OPTION_FILE"
"""Variable that names the file."""


def options_in(path: Path) -> dict[str, str]:
    """NAME=VALUE, one per line; empty lines and lines that begin with # are ignored. Errors give
    the number of the line, not its text."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidArgument("--option-file", f"{path} cannot be read: {error}") from error
    options = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        if not name.strip() or not equals:
            raise InvalidArgument("--option-file", f"{path}: line {number} is not NAME=VALUE")
        options[name.strip()] = value.strip()
    return options
