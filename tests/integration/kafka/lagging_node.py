"""`firn serve` with replicas that are late. No option of a node does this, only this module."""

from functools import partial

import firnmq.server.node
from firnmq.cli import main
from firnmq.server import LocalStore
from firnmq.testing import LaggingReplication

LAG_S = 0.003

if __name__ == "__main__":
    lagging = partial(LocalStore, replication=LaggingReplication(LAG_S))
    firnmq.server.node.LocalStore = lagging  # type: ignore[misc,assignment,attr-defined]
    main()
