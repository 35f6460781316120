"""The one deadline of a node's stop: a stop that hangs ends the process, and the log says where.

Whatever hangs, a file system, an object store or a client, the process ends. That loses nothing:
what is acknowledged with `durability=fsync` is on disk, and the rest is in the kernel's page cache,
from where it reaches the disk without the process.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
from types import FrameType

from firnmq.eventlog import EventLogger

STOP_S = 25.0
"""Kubernetes kills a container 30 seconds after it asked it to stop."""
_LAST_S = 2.0
"""How much later the process ends if no Python code runs any more."""
_FAILED = 1
_log = EventLogger("node")


def begin_stop_deadline(stop_s: float = STOP_S) -> None:
    """From now on the process has `stop_s` to end. Called by the main thread."""
    main = threading.get_ident()
    deadline = threading.Timer(stop_s, _end, (stop_s, main))
    deadline.daemon = True
    deadline.start()
    # A call into a library may hold the interpreter's lock; this thread does not need the lock.
    if sys.stderr is not None:  # It may be closed; faulthandler refuses to go without.
        faulthandler.dump_traceback_later(stop_s + _LAST_S, exit=True)


def _end(stop_s: float, main: int) -> None:
    try:
        where = _place(sys._current_frames().get(main))
        _log.error("stop_timed_out", timeout_s=f"{stop_s:g}", waiting_in=where)
    finally:
        os._exit(_FAILED)


def _place(frame: FrameType | None) -> str:
    """The innermost function of this package that a thread is in."""
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith("firnmq.") and frame.f_back is not None:
            return f"{module}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "?"
