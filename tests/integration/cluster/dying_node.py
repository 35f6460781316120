"""`firn serve` that ends as by kill -9 at one step of a move, which the environment names.

No option of a node does this, only this module.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from firnmq.adapter.forwarding.moving import ShardMover
from firnmq.cli import main
from firnmq.engines.media.snapshots import SnapshotFiles
from firnmq.engines.shardlog.rolling import steps
from firnmq.meta import MetaShards

DIES_AT = "FIRN_TEST_DIES_AT"

OF_LEADER = {
    "synced": (steps, "hand_over", True),
    "handed over": (steps, "hand_over", False),
    "deciding": (MetaShards, "roll", True),
    "decided": (MetaShards, "roll", False),
    "left": (ShardMover, "_note_moved", True),
}
"""Where the leader dies: what it calls there, and whether it dies before or after."""
OF_SUCCESSOR = {
    "asked": (ShardMover, "_keep", True),
    "prepared": (SnapshotFiles, "write_packed", False),
    "answering": (ShardMover, "_keep", False),
}


def _die_at(where: object, name: str, *, is_before: bool) -> None:
    original: Any = getattr(where, name)

    def dying(*args: Any, **named: Any) -> Any:
        if is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **named)
        is_move = name != "roll" or (len(args) > 4 and args[4] is not None)
        if is_move:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    def only_moves(*args: Any, **named: Any) -> Any:
        if name == "roll" and (len(args) < 5 or args[4] is None):
            return original(*args, **named)
        return dying(*args, **named)

    setattr(where, name, only_moves)


if __name__ == "__main__":
    place, called, is_before = (OF_LEADER | OF_SUCCESSOR)[os.environ[DIES_AT]]
    _die_at(place, called, is_before=is_before)
    main()
