"""The two forms of the codec are what they claim to be."""

import os
import re
import shutil
import subprocess
import sys

import firnmq.record.codec
from tests.unit.record import codec_forms


def test_where_there_is_a_compiler_the_codec_is_compiled() -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is not None:
        assert codec_forms.compiled() is not None, "run: make setup"


def test_the_compiled_form_is_the_one_in_use() -> None:
    form = codec_forms.compiled() or codec_forms.interpreted()
    assert (codec_forms.compiled() is not None) == form.IS_COMPILED
    for name in firnmq.record.codec.__all__:
        assert getattr(firnmq.record.codec, name) is getattr(form, name)


def test_the_interpreted_form_is_interpreted() -> None:
    codec = codec_forms.interpreted()
    assert not codec.IS_COMPILED
    assert codec.__all__ == firnmq.record.codec.__all__
    for name in set(codec.__all__) - {"IS_COMPILED"}:
        module = sys.modules[getattr(codec, name).__module__]
        assert module.__file__ is not None
        assert module.__file__.endswith(".py")


def test_the_compiled_form_includes_every_module() -> None:
    included = re.findall(
        r'^include "(\w+)\.py"$', (codec_forms.FOLDER / "compiled.pyx").read_text(), re.MULTILINE
    )
    modules = {path.stem for path in codec_forms.FOLDER.glob("*.py")}
    assert sorted(included) == sorted(modules - {"__init__", "installed", "interpreted"})


def test_without_a_compiled_form_the_modules_are_used() -> None:
    program = (
        "import sys; sys.modules['firnmq.record.codec.compiled'] = None\n"
        "from firnmq.record import IS_COMPILED, NewRecord, decode, encode\n"
        "batch = encode([NewRecord(value=b'v')], now_ms=1)\n"
        "sys.exit(IS_COMPILED or decode([batch]).records()[0].value != b'v')"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_importing_records_does_not_import_pyarrow() -> None:
    program = "import sys, firnmq.record; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
