"""The codec in its two forms: compiled, and the same modules interpreted."""

import importlib
from pathlib import Path
from types import ModuleType

from firnmq.record.codec import interpreted as interpreted_form

FOLDER = Path(interpreted_form.__file__).parent


def compiled() -> ModuleType | None:
    """The compiled codec, or None where it has not been compiled."""
    try:
        return importlib.import_module("firnmq.record.codec.compiled")
    except ModuleNotFoundError:
        return None


def interpreted() -> ModuleType:
    """The codec's modules as Python runs them, whether or not there is a compiled one."""
    return interpreted_form


def forms() -> list[ModuleType]:
    """Every form there is."""
    found = compiled()
    return [interpreted()] if found is None else [found, interpreted()]
