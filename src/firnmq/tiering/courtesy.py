"""Work of cold reads lets appends go first, without ever waiting long for them."""

from __future__ import annotations

import time
from collections.abc import Callable

_LOOK_S = 0.0003
"""Between two looks whether appends are done: one alone takes about twice as long."""


class Courtesy:
    """Says when work may be done that would take a processor or the disk from appends."""

    def __init__(self, is_appending: Callable[[], bool] = lambda: False) -> None:
        """`is_appending` says whether appends are under way just now."""
        self._is_appending = is_appending

    def give_way(self, patience_s: float) -> float:
        """Returns when no append is under way, or after a while: appends may come without end.

        One that has just ended has yet to wake those who wait for it, so it counts a little longer.
        What is returned is how many seconds it took.
        """
        if patience_s <= 0 or not self._is_appending():
            return 0.0
        began = time.perf_counter()
        is_over = False
        while not is_over and time.perf_counter() < began + patience_s:
            is_over = not self._is_appending()
            time.sleep(_LOOK_S)
        return time.perf_counter() - began
