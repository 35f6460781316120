"""Settings from a TOML file, overlaid by environment variables.

A section of the file is a frozen dataclass, declared next to what it configures. Values are
checked by type, unknown names are refused by name, and everything is read once at start-up.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tomllib
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

import msgspec

from firnmq.errors import InvalidArgument

T = TypeVar("T")

ENVIRONMENT_PREFIX = "FIRN_"


class Settings:
    """The file and the environment a node was started with."""

    def __init__(
        self, path: Path | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self._environment = os.environ if environment is None else environment
        self._document: dict[str, Any] = {}
        self.variables: set[str] = set()
        """Names of all variables that were looked for so far, set or not."""
        if path is not None:
            try:
                self._document = tomllib.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError as error:
                raise InvalidArgument(
                    str(path), "there is no such configuration file; check --config or FIRN_CONFIG"
                ) from error
            except OSError as error:
                raise InvalidArgument(str(path), f"cannot be read: {error.strerror}") from error
            except ValueError as error:
                raise InvalidArgument(str(path), f"is not TOML: {error}") from error

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Refuses tables and keys at the top of the file other than these."""
        for name in self._document.keys() - set(known):
            there_are = ", ".join(sorted(known))
            raise InvalidArgument(
                str(self.path),
                f"has an unknown table or key {name!r}; {_did_you_mean(name, known)}there are "
                f"{there_are}",
            )

    def section(
        self, name: str, kind: type[T], *, prefix: str, without: Collection[str] = (), **fixed: Any
    ) -> T:
        """A section as its dataclass; the variable of a field is FIRN_, the prefix, its name.

        `without` are fields that have a section of their own; `fixed` are values for them.
        """
        fields = dataclasses.fields(kind)  # type: ignore[arg-type]
        types = get_type_hints(kind)
        names = [field.name for field in fields if field.name not in without]
        values = self.table(name)
        sources = {key: f"{self.path}: {name}.{key}" for key in values}
        for unknown in values.keys() - set(names):
            raise InvalidArgument(
                f"{self.path}: {name}.{unknown}",
                f"is unknown; {_did_you_mean(unknown, names)}there are {', '.join(sorted(names))}",
            )
        for key, value in values.items():
            values[key] = _converted(sources[key], value, types[key], strict=True)
        for field in names:
            variable = ENVIRONMENT_PREFIX + prefix + field.upper()
            self.variables.add(variable)
            text = self._environment.get(variable)
            if text is not None:
                values[field] = _converted(variable, _parts(text, types[field]), types[field])
                sources[field] = variable
        try:
            return kind(**values, **fixed)
        except InvalidArgument as error:  # Named as the user gave it.
            field = error.argument.removeprefix(f"{name}.")
            raise InvalidArgument(sources.get(field, error.argument), error.reason) from None

    def table(self, name: str) -> dict[str, Any]:
        """A section as it stands in the file."""
        table = self._document.get(name, {})
        if not isinstance(table, dict):
            raise InvalidArgument(f"{self.path}: {name}", "must be a table")
        return dict(table)

    def options(self, name: str, *, prefix: str, known: Collection[str]) -> dict[str, object]:
        """A section of dotted names; `a.b = 1` and `"a.b" = 1` mean the same."""
        options = _flat(self.table(name))
        for option in known:
            variable = ENVIRONMENT_PREFIX + prefix + option.upper().replace(".", "_")
            self.variables.add(variable)
            if variable in self._environment:
                options[option] = self._environment[variable]
        return options


def _did_you_mean(name: str, known: Collection[str]) -> str:
    closest = get_close_matches(name, known, n=1)
    return f"did you mean {closest[0]}? " if closest else ""


def _converted(name: str, value: object, kind: Any, *, strict: bool = False) -> object:
    try:
        converted: object = msgspec.convert(
            value, kind, strict=strict, str_keys=True, dec_hook=_path
        )
    except (msgspec.ValidationError, ValueError) as error:
        raise InvalidArgument(name, f"{value!r} does not fit: {error}") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise InvalidArgument(name, f"{value!r} does not fit: it must be finite")
    return converted


def _path(kind: type, value: object) -> object:
    if kind is Path and isinstance(value, str) and value:
        return Path(value)
    raise ValueError("must be a path")


def _parts(text: str, kind: Any) -> object:
    """A variable's text; lists are written with commas."""
    if str(kind).startswith("tuple"):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def _flat(table: Mapping[str, object], before: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            flat.update(_flat(value, f"{before}{name}."))
        else:
            flat[before + name] = value
    return flat
