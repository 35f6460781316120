"""Spark's daemon for Python workers, without a traceback where Spark wants no more rows.

A query with LIMIT, and one that is stopped, closes the connection to a worker that is still at
work. Spark's own daemon prints the ConnectionResetError that the worker meets; it is no fault.
`spark.python.daemon.module` names this module where the command line starts Spark itself.
"""

from __future__ import annotations

import socket
from typing import Any

from pyspark import daemon

_worker: Any = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    try:
        code: int = _worker(sock, authenticated)
    except ConnectionError:
        return 1  # The daemon lets this worker end.
    return code


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()  # type: ignore[no-untyped-call]
