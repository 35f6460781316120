"""Build of the compiled modules and of the launcher; pyproject.toml declares everything else.

Where they cannot be compiled, for want of a C compiler or for any other reason, the build goes on
with a warning: the same .py files are installed either way and run interpreted, and the command
`firn` is a Python script.
"""

import sys
from pathlib import Path

from setuptools import Distribution, Extension, setup
from setuptools.command.build_ext import build_ext, customize_compiler, new_compiler

LAUNCHER = "src/firnmq/cli/launcher.c"
SCRIPT = """\
#!python
from firnmq.__main__ import run

run()
"""
"""`firn` without a launcher; the first line is for pip to complete."""
COMPILED_SOURCES = {
    "firnmq.record.codec.compiled": "src/firnmq/record/codec/compiled.pyx",
    "firnmq.disk.gathered": "src/firnmq/disk/gathered.py",
}


def compiled_extensions() -> list[Extension]:
    """The modules as C extensions, or nothing where Cython cannot translate them."""
    wanted = [
        Extension(
            module,
            [source],
            extra_compile_args=[] if sys.platform == "win32" else ["-O3"],
            optional=True,
        )
        for module, source in COMPILED_SOURCES.items()
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


class BuildLauncher(Distribution().get_command_class("build_scripts")):  # type: ignore[misc]
    """Makes `firn` from the launcher's source, or from Python."""

    def run(self) -> None:
        self.mkpath(self.build_dir)
        firn = Path(self.build_dir) / "firn"
        try:
            compiler = new_compiler()
            customize_compiler(compiler)
            compiler.define_macro("_GNU_SOURCE")
            compiler.define_macro("VERSION", f'"{self.distribution.get_version()}"')
            temporary = self.get_finalized_command("build").build_temp
            objects = compiler.compile(self.scripts, temporary, extra_preargs=["-O2"])
            compiler.link_executable(objects, str(firn))
        except Exception as error:  # Whatever stops the compiler, the build must go on.
            warn_interpreted(error)
            firn.write_text(SCRIPT)


def warn_interpreted(error: Exception) -> None:
    print(f"warning: not compiled, will run interpreted: {error}", file=sys.stderr)


setup(
    ext_modules=compiled_extensions(),
    scripts=[LAUNCHER],
    cmdclass={"build_ext": BuildIfPossible, "build_scripts": BuildLauncher},
)
