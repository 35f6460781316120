"""The codec in its two forms: compiled, and the same source interpreted."""

import importlib.machinery
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import firnmq.record
from firnmq.record import codec as installed

SOURCE = Path(firnmq.record.__file__).with_name("codec.py")


def compiled() -> ModuleType | None:
    """The compiled codec, or None where it has not been compiled."""
    return installed if installed.IS_COMPILED else None


@cache
def interpreted() -> ModuleType:
    """The codec's source as a module of its own, whether or not there is a compiled one."""
    name = "firnmq_codec_interpreted"
    loader = importlib.machinery.SourceFileLoader(name, str(SOURCE))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    loader.exec_module(module)
    return module


def forms() -> list[ModuleType]:
    """Every form there is."""
    found = compiled()
    return [interpreted()] if found is None else [found, interpreted()]
