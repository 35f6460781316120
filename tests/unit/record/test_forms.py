"""The two forms of the codec are what they claim to be."""

import os
import shutil
import subprocess
import sys

from tests.unit.record import codec_forms


def test_where_there_is_a_compiler_the_codec_is_compiled() -> None:
    compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
    if compiler is not None:
        assert codec_forms.compiled() is not None, "run: make setup"


def test_the_interpreted_form_is_interpreted() -> None:
    assert not codec_forms.interpreted().IS_COMPILED
    assert codec_forms.interpreted().__file__ == str(codec_forms.SOURCE)


def test_importing_records_does_not_import_pyarrow() -> None:
    program = "import sys, firnmq.record; sys.exit('pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
