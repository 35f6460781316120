"""Build of the one compiled module; everything else is declared in pyproject.toml.

Where the codec cannot be compiled, for want of a C compiler or for any other reason, the build
goes on with a warning: the same .py file is installed either way and runs interpreted.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

CODEC_SOURCE = "src/firnmq/record/codec.py"


def codec_extensions() -> list[Extension]:
    """The codec as a C extension, or nothing where Cython cannot translate it."""
    codec = Extension(
        "firnmq.record.codec",
        [CODEC_SOURCE],
        extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
        optional=True,
    )
    try:
        from Cython.Build import cythonize

        extensions: list[Extension] = cythonize(  # type: ignore[no-untyped-call]
            [codec], build_dir="build/cython", language_level=3
        )
    except Exception as error:  # Whatever stops the translation, the build must go on.
        warn_interpreted(error)
        return []
    for extension in extensions:
        extension.optional = True  # Cython makes new objects and forgets this one attribute.
    return extensions


class BuildIfPossible(build_ext):  # type: ignore[misc]
    """``optional`` forgives a compiler's errors, but not that there is no compiler at all."""

    def build_extension(self, ext: Extension) -> None:
        try:
            super().build_extension(ext)
        except Exception as error:  # Whatever stops the compiler, the build must go on.
            warn_interpreted(error)


def warn_interpreted(error: Exception) -> None:
    print(f"warning: the codec is not compiled and will run interpreted: {error}", file=sys.stderr)


setup(ext_modules=codec_extensions(), cmdclass={"build_ext": BuildIfPossible})
