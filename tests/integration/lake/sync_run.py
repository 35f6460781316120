"""Syncs in processes of their own, each ending itself at a step, as `kill -9` would end it.

Importing what a sync needs takes longer than a sync. So one process imports it and forks one child
per sync. It takes lines of JSON, `{"options", "settings", "step", "count"}`, and answers each with
the child's number; `{"wait": number}` is answered with its exit code.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy.orm import Session

from firnmq.lake.jobs import convert, sync
from firnmq.lake.plans.source import OptionsSource
from firnmq.lake.tables.catalogs import metadata_files
from firnmq.lake.tables.deletions import Deleter
from firnmq.lake.tables.files.placing import Placing
from firnmq.lake.tables.table import TopicTable
from firnmq.tiering.stores.local import LocalStore
from tests.integration.lake import lab
from tests.integration.lake.lab import sync_here

Wrap = Callable[[Callable[..., Any], Callable[[], None]], Callable[..., Any]]


def _before(real: Callable[..., Any], passing: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        passing()
        return real(*args, **kwargs)

    return wrapped


def _after(real: Callable[..., Any], passing: Callable[[], None]) -> Callable[..., Any]:
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        result = real(*args, **kwargs)
        passing()
        return result

    return wrapped


def _after_file(part: str) -> Wrap:
    """After a metadata file whose name has this in it was written."""

    def wrap(real: Callable[..., Any], passing: Callable[[], None]) -> Callable[..., Any]:
        def close(stream: Any) -> None:
            is_it = part in stream._target.name and not stream.closed
            real(stream)
            if is_it:
                passing()

        return close

    return wrap


STEPS: dict[str, tuple[Any, str, Wrap]] = {
    "table made": (SqlCatalog, "create_table", _after),
    "nothing read": (convert, "read_split", _before),
    "files unwritten": (Placing, "_place", _before),
    "file named, folder not synced": (LocalStore, "_place", _after),
    "files written": (Placing, "_place", _after),
    "all converted": (TopicTable, "advance", _before),
    "manifest written": (metadata_files._DurableStream, "close", _after_file("-m0.avro")),
    "manifest list written": (metadata_files._DurableStream, "close", _after_file("snap-")),
    "metadata written": (metadata_files._DurableStream, "close", _after_file("metadata.json")),
    "catalog written, not committed": (Session, "commit", _before),
    "committed": (SqlCatalog, "commit_table", _after),
    "not told": (OptionsSource, "report", _before),
    "told": (OptionsSource, "report", _after),
    "pending finished": (sync, "finish_pending", _after),
}
DELETION_STEPS: dict[str, tuple[Any, str, Wrap]] = {
    "nothing taken out": (lab, "rewrite", _before),
    "file without rows written": (lab, "rewrite", _after),
    "deletions named": (Deleter, "_keep", _after),
    "rows taken out": (Deleter, "_commit", _after),
}
"""Only passed where something was deleted."""


def arm(step: str, count: int) -> None:
    """From now on this process dies at the step."""
    passed = itertools.count(1)  # Files are written by several threads.

    def passing() -> None:
        if next(passed) == count:
            os.kill(os.getpid(), signal.SIGKILL)

    owner, name, wrap = {**STEPS, **DELETION_STEPS}[step]
    setattr(owner, name, wrap(getattr(owner, name), passing))


def _child(order: dict[str, Any]) -> int:
    """The whole life of a sync; its exit code, if it lives to have one."""
    if order["step"] is not None:
        arm(order["step"], order["count"])
    sync_here(order["options"], **order["settings"])
    return 0


def serve() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            _, status = os.waitpid(order["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                try:
                    os._exit(_child(order))
                except BaseException:
                    traceback.print_exc()
                    sys.stderr.flush()
                    os._exit(1)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
