"""Two machines in one: some processors stand for another machine, the others are this one's.

A server that has to stand for one on another machine must not take processors from what is
measured. A lower priority is not enough: within the kernel it goes on for milliseconds.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def elsewhere() -> Iterator[None]:
    """Processes that are started within run on the other machine's processor, for good."""
    processors = _processors()
    if len(processors) < 2:
        yield
        return
    os.sched_setaffinity(0, processors[:1])
    try:
        yield
    finally:
        os.sched_setaffinity(0, processors)


@contextmanager
def here() -> Iterator[None]:
    """All threads of this process keep off the other machine's processor."""
    processors = _processors()
    if len(processors) < 2:
        yield
        return
    _keep_to(processors[1:])
    try:
        yield
    finally:
        _keep_to(processors)


def _processors() -> list[int]:
    """Those that this process may use, where the system lets it choose."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []


def _keep_to(processors: list[int]) -> None:
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):  # It has just ended.
            os.sched_setaffinity(int(thread), processors)
