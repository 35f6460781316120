"""Keeps Python's collections of garbage short: each of them stops every thread.

A full collection visits all that is there, half a second's worth on a node with twenty thousand
open shards. What a slow one has visited is in use and mostly stays so, and is not visited again.
When it goes, its last reference frees it, unless it is part of a cycle; logs are not.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Final

PAUSE_S_MAX: Final = 0.01
"""Seconds of a full collection after which what it has visited is left out of later ones."""
_FULL: Final = 2
"""The generation that a full collection ends with."""


class ShortCollections:
    """A callback of the collector."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began_s = 0.0

    def __call__(self, phase: str, collection: Mapping[str, int]) -> None:
        if collection["generation"] != _FULL:
            return
        if phase == "start":
            self._began_s = self._clock()
        elif self._clock() - self._began_s > PAUSE_S_MAX:
            gc.freeze()
