"""What Spark's Python workers do between tasks, and need not."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from zipimport import zipimporter

_frozen_process = 0


@contextmanager
def task() -> Iterator[None]:
    """Wraps a task, so that the next one in the same process starts a quarter of a second sooner.

    Before every task Spark has all finders of modules forget what they know, and up to Python 3.12
    those of zip files then read the list of their contents again; pyspark.zip, on the path of every
    worker, has some 1,500. A finder that is not there has nothing to forget, and is made again when
    something is imported for the first time.

    After every task it collects garbage among all objects, of which nearly all are modules and
    their parts; those that the first task leaves behind are taken out of that search.
    """
    global _frozen_process
    try:
        yield
    finally:
        for path, finder in list(sys.path_importer_cache.items()):
            if isinstance(finder, zipimporter):
                del sys.path_importer_cache[path]
        if _frozen_process != os.getpid():
            _frozen_process = os.getpid()
            gc.collect()
            gc.freeze()
