"""What Spark's Python workers do between tasks, and need not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter


@contextmanager
def task() -> Iterator[None]:
    """Around a task: the next one in the same process begins 0.2 s sooner.

    Before every task Spark has all finders of modules forget what they know, and up to Python 3.12
    those of zip files then read the list of their contents again; pyspark.zip, on the path of every
    worker, has some 1,500. A finder that is not there has nothing to forget, and is made anew when
    something is imported that nobody has imported yet.
    """
    try:
        yield
    finally:
        for path, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimporter):
                del sys.path_importer_cache[path]
