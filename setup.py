"""Build of the compiled modules; everything else is declared in pyproject.toml.

Where they cannot be compiled, for want of a C compiler or for any other reason, the build goes on
with a warning: the same .py files are installed either way and run interpreted.
"""

import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

COMPILED_MODULES = ("firnmq.record.codec", "firnmq.disk.gathered")


def compiled_extensions() -> list[Extension]:
    """The modules as C extensions, or nothing where Cython cannot translate them."""
    wanted = [
        Extension(
            module,
            [f"src/{module.replace('.', '/')}.py"],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
            optional=True,
        )
        for module in COMPILED_MODULES
    ]
    try:
        from Cython.Build import cythonize

        extensions: list[Extension] = cythonize(  # type: ignore[no-untyped-call]
            wanted, build_dir="build/cython", language_level=3
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
    print(f"warning: not compiled, will run interpreted: {error}", file=sys.stderr)


setup(ext_modules=compiled_extensions(), cmdclass={"build_ext": BuildIfPossible})
