"""Two machines in one: some processors stand for another machine, the others are this one's.

A server that has to stand for one on another machine must not take processors from what is
measured. A lower priority is not enough: within the kernel it goes on for milliseconds.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def apart_from(servers: Iterable[int]) -> Iterator[None]:
    """Servers, by their process ids, get a processor of their own; this process has the others.

    They have been started before: one that finds a single processor when it starts works off what
    it has to do in long pieces, which a large server does not.
    """
    processors = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []
    if len(processors) < 2:
        yield
        return
    for server in servers:
        _keep_to(processors[:1], server)
    _keep_to(processors[1:], os.getpid())
    try:
        yield
    finally:
        _keep_to(processors, os.getpid())


def _keep_to(processors: list[int], process: int) -> None:
    for thread in os.listdir(f"/proc/{process}/task"):
        with suppress(ProcessLookupError):  # It has just ended.
            os.sched_setaffinity(int(thread), processors)
